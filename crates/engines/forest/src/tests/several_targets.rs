//! Models that predict several targets, and leaves with a value for each.

use super::*;

fn best(scores: &[f64]) -> f32 {
    (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap() as f32
}

/// The results of a case's model with these parameters.
fn results(name: &str, options: &[(&str, &str)]) -> (Vec<i64>, Vec<f32>) {
    let case = case(name);
    let options = [options, &[("model_type", case.model_type.as_str())]].concat();
    let config = parameters(&options) + "default_model_filename: 'model'";
    let (_folder, model) = load_file(&case.file, "model", &config);
    let shape = [case.rows.len() as i64, 8];
    infer(&*model.unwrap(), &case.rows(), shape, &["output__0"]).unwrap().remove(0)
}

#[test]
fn each_target_of_a_classifier_has_a_class() {
    let case = case("sk_target_classes");
    let (shape, classes) = results(&case.name, &[]);
    assert_eq!(shape, [case.rows.len() as i64, 2]);
    let expected = case.expected.iter().flat_map(|row| [best(&row[..2]), best(&row[4..])]);
    assert_eq!(classes, expected.collect::<Vec<_>>());
    let (shape, probabilities) = results(&case.name, &[("predict_proba", "true")]);
    assert_eq!(shape, [case.rows.len() as i64, 8]);
    assert!(difference(&probabilities, &case.expected) <= 1e-6);
}

#[test]
fn each_label_is_above_or_below_the_threshold() {
    for name in ["xgboost3.2.0_vector_labels_json", "xgboost2.1.4_vector_labels_ubj"] {
        let case = case(name);
        for threshold in ["0.5", "0.25"] {
            let (shape, labels) = results(name, &[("threshold", threshold)]);
            assert_eq!(shape, [case.rows.len() as i64, 3]);
            let least: f64 = threshold.parse().unwrap();
            let expected = case.expected.iter().flatten().map(|&label| f32::from(u8::from(label > least)));
            assert_eq!(labels, expected.collect::<Vec<_>>(), "{name} {threshold}");
        }
        let (_, probabilities) = results(name, &[("predict_proba", "true")]);
        assert!(difference(&probabilities, &case.expected) <= 1e-6);
    }
}

#[test]
fn classes_of_leaves_with_several_values_are_those_with_the_highest_probability() {
    let case = case("xgboost3.2.0_vector_classes_ubj");
    let (shape, classes) = results(&case.name, &[]);
    assert_eq!(shape, [case.rows.len() as i64, 1]);
    assert_eq!(classes, case.expected.iter().map(|row| best(row)).collect::<Vec<_>>());
}

#[test]
fn explanations_of_leaves_with_several_values_add_up_to_each_target() {
    for name in ["xgboost3.2.0_vectors_json", "xgboost2.1.4_vectors_ubj", "sk_targets"] {
        let case = case(name);
        let forest = case.forest();
        let means = shap::means(&forest);
        let rows = case.rows();
        let sums = rows.chunks(8).flat_map(|row| {
            let explained = shap::explain::<_, f64>(&forest, &means, row);
            let sums = explained.chunks(9).map(|parts| parts.iter().sum::<f64>() as f32);
            sums.collect::<Vec<_>>()
        });
        assert!(difference(&sums.collect::<Vec<_>>(), &case.expected) <= 1e-5, "{name}");
    }
}

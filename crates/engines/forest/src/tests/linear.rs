//! Models with linear functions of the features: `linear_tree` of LightGBM, and `gblinear` of XGBoost.

use super::*;

fn text(name: &str) -> String {
    fs::read_to_string(models().join(name)).unwrap()
}

#[test]
fn damaged_linear_leaves_of_lightgbm_are_refused() {
    let text = text("lightgbm4.7.0_linear.txt");
    // The second tree is the first one with functions of features.
    let line = |key: &str| {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{key}=")));
        lines.collect::<Vec<_>>()[1].to_owned()
    };
    let [constants, sizes, features, coefficients] =
        ["leaf_const", "num_features", "leaf_features", "leaf_coeff"].map(line);
    let with_first = |line: &str, number: &str| {
        let (key, numbers) = line.split_once('=').unwrap();
        format!("{key}={number}{}", &numbers[numbers.find(' ').unwrap()..])
    };
    for (old, new, expected) in [
        (&constants, String::new(), "it lacks 'leaf_const'"),
        (&constants, "leaf_const=1 2".to_owned(), "leaf_const has 2 values instead of 6"),
        (&sizes, String::new(), "it lacks 'num_features'"),
        (&sizes, with_first(&sizes, "9"), "leaf_features has"),
        (&sizes, with_first(&sizes, "-1"), "num_features has a value that is not a number"),
        (&sizes, with_first(&sizes, "18446744073709551615"), "num_features has too many features"),
        (&features, String::new(), "it lacks 'leaf_features'"),
        (&features, with_first(&features, "8"), "a leaf depends on feature 8 of 8"),
        (&features, with_first(&features, "x"), "leaf_features has a value that is not a number"),
        (&coefficients, String::new(), "it lacks 'leaf_coeff'"),
        (&coefficients, "leaf_coeff=0.5".to_owned(), "leaf_coeff has 1 values instead of"),
    ] {
        assert_ne!(*old, new);
        let damaged = text.replacen(old, &new, 1);
        let error = format::parse(damaged.as_bytes(), Format::LightGbm, false).unwrap_err().to_string();
        assert!(error.starts_with("tree 1: ") && error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn trees_with_numbers_as_leaves_stand_beside_linear_ones() {
    let text = text("lightgbm4.7.0_linear.txt");
    let forest = |text: &str| match format::parse(text.as_bytes(), Format::LightGbm, false) {
        Ok(AnyForest::Single(forest)) => forest,
        other => panic!("{other:?}"),
    };
    // Without the flag, leaves have their numbers for all rows, as for rows that lack features.
    let numbers = forest(&text.replace("is_linear=1", "is_linear=0"));
    let tree = text.find("Tree=2").unwrap();
    let mixed = text[..tree].replace("is_linear=1", "is_linear=0") + &text[tree..];
    let (linear, mixed) = (forest(&text), forest(&mixed));
    let rows: Vec<f32> = (0..160_u16).map(|at| f32::from(at * 37 % 101) / 40.0 - 1.0).collect();
    let [numbers, linear, mixed] = [numbers, linear, mixed].map(|forest| forest.predict::<f32>(&rows, 1));
    for at in 0..rows.len() / 8 {
        assert!(numbers[at] != linear[at] && numbers[at] != mixed[at] && linear[at] != mixed[at], "row {at}");
    }
}

#[test]
fn linear_leaves_are_not_explained_but_gblinear_is() {
    let explained = |name: &str, model_type: &str, outputs: usize, dims: usize| {
        let config = format!(
            "{} default_model_filename: 'model'
             input {{ name: 'input__0' data_type: TYPE_FP32 dims: 8 }}
             output {{ name: 'output__0' data_type: TYPE_FP32 dims: {outputs} }}
             output {{ name: 'treeshap_output' data_type: TYPE_FP32 dims: {dims} }}",
            parameters(&[("model_type", model_type), ("predict_proba", "true")])
        );
        load_file(name, "model", &config)
    };
    let error = explained("lightgbm4.7.0_linear.txt", "lightgbm", 1, 9).1.err().unwrap();
    assert!(error.message().contains("linear ones (linear_tree)"), "{error}");
    for name in ["xgboost3.2.0_linear_classes_ubj", "xgboost2.1.4_linear_classes_deprecated"] {
        let case = case(name);
        let (_folder, model) = explained(&case.file, &case.model_type, 4, 36);
        let shape = [case.rows.len() as i64, 8];
        let outputs =
            infer(&*model.unwrap(), &case.rows(), shape, &["output__0", "treeshap_output"]).unwrap();
        assert!(difference(&outputs[0].1, &case.expected) <= 1e-6, "{name}");
        assert!(difference(&outputs[1].1, case.explained.as_ref().unwrap()) <= 1e-5, "{name}");
    }
}

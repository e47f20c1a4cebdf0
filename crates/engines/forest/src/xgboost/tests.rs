//! Changes of models in JSON that are refused, or mean the same.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// A model, as a document.
fn document(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
    serde_json::from_slice(&json::standard(&fs::read(path).unwrap())).unwrap()
}

fn read(document: &Value) -> Result<Forest, FormatError> {
    read_json(&serde_json::to_vec(document).unwrap())
}

const TREE: &str = "/learner/gradient_booster/model/trees/1";

/// The reason to refuse a model whose value at a place, within its second tree if it is not a whole path, is another.
fn refusal(name: &str, place: &str, value: Value) -> String {
    let mut document = document(name);
    let place = if place.starts_with("/learner") { place.to_owned() } else { format!("{TREE}{place}") };
    *document.pointer_mut(&place).unwrap() = value;
    read(&document).expect_err(&place).to_string()
}

#[test]
fn damaged_leaves_with_several_values_are_refused() {
    const NEW: &str = "xgboost3.2.0_vectors.json";
    const OLD: &str = "xgboost2.1.4_vectors.json";
    for (name, place, value, expected) in [
        (NEW, "/leaf_weights", json!([0.5]), "lacks its 3 values"),
        (NEW, "/tree_param/size_leaf_vector", json!("4"), "4 values"),
        (NEW, "/tree_param/size_leaf_vector", json!("2"), "2 values"),
        (NEW, "/tree_param/size_leaf_vector", json!("99999999999999999999"), "size_leaf_vector"),
        (NEW, "/tree_param/size_leaf_vector", json!("9223372036854775807"), "lacks its"),
        (NEW, "/right_children/14", json!(-1), "lacks its 3 values"),
        (NEW, "/right_children/14", json!(1_i64 << 40), "lacks its 3 values"),
        (OLD, "/base_weights", json!([]), "lacks its 3 values"),
        (OLD, "/base_weights", json!([0.5, 1.5, null]), "lacks its 3 values"),
        (NEW, "/learner/learner_model_param/num_target", json!("2"), "2 outputs"),
        (NEW, "/learner/learner_model_param/base_score", json!("[1,2]"), "base_score has 2 values for 3"),
    ] {
        let reason = refusal(name, place, value);
        assert!(reason.contains(expected), "{place}: {reason}");
    }
}

#[test]
fn lists_that_overlap_are_refused() {
    let mut vectors = document("xgboost3.2.0_vectors.json");
    let tree = vectors.pointer_mut(TREE).unwrap();
    let leaves = tree["left_children"].as_array().unwrap().clone();
    for (right, left) in tree["right_children"].as_array_mut().unwrap().iter_mut().zip(leaves) {
        if left == json!(-1) {
            *right = json!(0);
        }
    }
    // The array has values for two leaves, and more of them share the first one's.
    tree["leaf_weights"].as_array_mut().unwrap().truncate(6);
    let reason = read(&vectors).unwrap_err().to_string();
    assert!(reason.contains("lacks its 3 values"), "{reason}");

    let mut categories = document("xgb_categories.json");
    let tree = categories.pointer_mut("/learner/gradient_booster/model/trees/0").unwrap();
    let all = tree["categories"].as_array().unwrap().len();
    let nodes = tree["categories_nodes"].as_array().unwrap().len();
    assert!(nodes > 1);
    tree["categories_segments"] = json!(vec![0; nodes]);
    tree["categories_sizes"] = json!(vec![all; nodes]);
    let reason = read(&categories).unwrap_err().to_string();
    assert!(reason.contains("lists of categories are damaged"), "{reason}");
}

#[test]
fn damaged_linear_models_are_refused() {
    const WEIGHTS: &str = "/learner/gradient_booster/model";
    for (place, value, expected) in [
        (WEIGHTS, json!({}), "has no weights"),
        (WEIGHTS, json!({"weights": []}), "0 weights instead of 36, for 8 features and 4 outputs"),
        (WEIGHTS, json!({"weights": ["x"]}), "invalid type"),
        (WEIGHTS, json!(null), "has no trees"),
        ("/learner/learner_model_param/num_feature", json!("9"), "36 weights instead of 40"),
        ("/learner/learner_model_param/num_feature", json!("0"), "instead of 4"),
        ("/learner/learner_model_param/num_class", json!("3"), "base_score has 4 values for 3"),
        ("/learner/gradient_booster/name", json!("gbtree"), "the model has no trees"),
    ] {
        let reason = refusal("xgboost3.2.0_linear_classes.json", place, value);
        assert!(reason.contains(expected), "{place}: {reason}");
    }
}

#[test]
fn leaves_may_have_several_values_in_some_trees_only() {
    let vectors = document("xgboost3.2.0_vectors.json");
    let mut mixed = document("xgb_targets.json");
    let own = mixed.pointer_mut("/learner/gradient_booster/model").unwrap();
    own["trees"].as_array_mut().unwrap().push(vectors.pointer(TREE).unwrap().clone());
    own["tree_info"].as_array_mut().unwrap().push(json!(0));
    let row = [0.5_f32, -1.0, 2.0, 0.25, f32::NAN, 1.0, -2.0, 0.0];
    let results = |document: &Value| read(document).unwrap().predict::<f32>(&row, 1);
    let alone = results(&document("xgb_targets.json"));
    assert!(results(&mixed).iter().zip(&alone).all(|(mixed, alone)| mixed != alone));
}

#[test]
fn weights_of_dart_apply_to_all_values_of_a_leaf() {
    let plain = document("xgboost3.2.0_vectors.json");
    let mut dart = plain.clone();
    let model = plain.pointer("/learner/gradient_booster").unwrap();
    dart["learner"]["gradient_booster"] =
        json!({"name": "dart", "gbtree": {"model": model["model"]}, "weight_drop": [1.0, 0.0, 0.0]});
    let mut first = plain.clone();
    let model = first.pointer_mut("/learner/gradient_booster/model").unwrap();
    model["trees"].as_array_mut().unwrap().truncate(1);
    model["tree_info"].as_array_mut().unwrap().truncate(1);
    let row = [0.5_f32; 8];
    let results = |document: &Value| read(document).unwrap().predict::<f32>(&row, 1);
    assert_eq!(results(&dart), results(&first));
    assert_ne!(results(&dart), results(&plain));
}

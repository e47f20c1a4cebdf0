//! Operators of classical machine learning with damaged attributes. tests/end_to_end/frameworks/test_classical_learning.py
//! compares answers with ONNX Runtime's.

use nereid_backend_api::{DataType, ModelConfig};
use prost::Message;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{AttributeProto, ModelProto, NodeProto, OperatorSetIdProto};

use super::onnx::{graph, node, port, with_int, with_ints, with_text};
use super::server::{config, serve, try_serve};
use super::{fp32, fp32_output};

fn list(kind: AttributeType, name: &str) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind as i32, ..AttributeProto::default() }
}

fn with_floats(mut node: NodeProto, name: &str, floats: &[f32]) -> NodeProto {
    node.attribute.push(AttributeProto { floats: floats.to_vec(), ..list(AttributeType::Floats, name) });
    node
}

fn with_texts(mut node: NodeProto, name: &str, texts: &[&str]) -> NodeProto {
    let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    node.attribute.push(AttributeProto { strings, ..list(AttributeType::Strings, name) });
    node
}

fn operator(name: &str) -> NodeProto {
    NodeProto { domain: "ai.onnx.ml".into(), ..node(name, &["X"], &["Y"]) }
}

/// Two features; above 0.5, the second one decides.
fn regressor() -> NodeProto {
    let node = with_ints(operator("TreeEnsembleRegressor"), "nodes_treeids", &[0; 5]);
    let node = with_ints(node, "nodes_nodeids", &[0, 1, 2, 3, 4]);
    let node = with_ints(node, "nodes_featureids", &[0, 0, 1, 0, 0]);
    let node = with_texts(node, "nodes_modes", &["BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF"]);
    let node = with_floats(node, "nodes_values", &[0.5, 0.0, 2.0, 0.0, 0.0]);
    let node = with_ints(node, "nodes_truenodeids", &[1, 0, 3, 0, 0]);
    let node = with_ints(node, "nodes_falsenodeids", &[2, 0, 4, 0, 0]);
    let node = with_ints(node, "target_treeids", &[0; 3]);
    let node = with_ints(node, "target_nodeids", &[1, 3, 4]);
    let node = with_ints(node, "target_ids", &[0; 3]);
    let node = with_floats(node, "target_weights", &[1.0, 10.0, 100.0]);
    with_int(node, "n_targets", 1)
}

fn file(node: NodeProto) -> Vec<u8> {
    let ports = (vec![port("X", Element::Float, &[-1, 2])], vec![port("Y", Element::Float, &[-1, -1])]);
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![opset("", 17), opset("ai.onnx.ml", 3)],
        graph: Some(graph(ports.0, vec![node], ports.1, vec![])),
        ..ModelProto::default()
    };
    model.encode_to_vec()
}

fn ports() -> ModelConfig {
    config(0, &[("X", DataType::Fp32, &[-1, 2])], &[("Y", DataType::Fp32, &[-1, -1])])
}

#[test]
fn a_tree_sends_rows_to_its_leaves() {
    let rows = [[0.5, 9.0], [0.6, 3.0], [0.6, 2.0], [f32::NAN, 3.0], [f32::NAN, f32::NAN]];
    let mut model = serve(&file(regressor()), ports());
    let found = fp32_output(&model.infer(vec![fp32("X", &[5, 2], rows.as_flattened())]).unwrap());
    assert_eq!(found, (vec![5, 1], vec![1.0, 10.0, 100.0, 10.0, 100.0]));
}

#[test]
fn damaged_trees_are_refused_in_words() {
    type Damage = fn(&mut AttributeProto);
    let damages: [(&str, Damage, &str); 17] = [
        ("nodes_treeids", |it| it.ints.truncate(4), "5 nodes_nodeids for 4 nodes"),
        ("nodes_nodeids", |it| it.ints[1] = 0, "two nodes with the number 0"),
        ("nodes_featureids", |it| it.ints[2] = -1, "feature -1"),
        ("nodes_featureids", |it| it.ints[2] = i64::MAX, "features"),
        ("nodes_featureids", |it| it.ints[2] = 2, "it needs 3 features, and its input has 2"),
        ("nodes_modes", |it| it.strings[0] = b"OTHER".to_vec(), "mode 'OTHER'"),
        ("nodes_modes", |it| it.strings.truncate(1), "differ in length"),
        ("nodes_values", |it| it.floats.clear(), "differ in length"),
        ("nodes_truenodeids", |it| it.ints[0] = 7, "tree 0 has no node 7"),
        ("nodes_truenodeids", |it| it.ints[0] = 0, "no split leads to some nodes"),
        ("nodes_truenodeids", |it| it.ints[0] = 2, "one root"),
        ("nodes_falsenodeids", |it| it.ints[2] = 3, "one root"),
        ("nodes_falsenodeids", |it| it.ints[2] = 1, "one root"),
        ("target_ids", |it| it.ints[1] = 1, "a weight is for output 1 of 1"),
        ("target_ids", |it| it.ints[1] = -1, "a weight is for output -1 of 1"),
        ("n_targets", |it| it.i = i64::MAX, "outputs"),
        ("n_targets", |it| it.i = -1, ""),
    ];
    for (name, damage, expected) in damages {
        let mut node = regressor();
        damage(node.attribute.iter_mut().find(|it| it.name == name).unwrap());
        let refused = match try_serve(&file(node), ports()) {
            Err(error) => error.to_string(),
            Ok(mut model) => model.infer(vec![fp32("X", &[1, 2], &[0.0, 0.0])]).unwrap_err().to_string(),
        };
        assert!(refused.contains(expected) && !refused.contains("panicked"), "{name}: {refused}");
    }
}

/// Covers cycles in a tree, and beside it.
#[test]
fn circles_are_refused() {
    for (truths, falses) in [([1, 0, 3, 2, 0], [2, 0, 4, 4, 0]), ([2, 0, 0, 0, 0], [1, 0, 3, 0, 0])] {
        let mut node = regressor();
        for (name, list) in [("nodes_truenodeids", truths), ("nodes_falsenodeids", falses)] {
            node.attribute.iter_mut().find(|it| it.name == name).unwrap().ints = list.to_vec();
        }
        node.attribute.iter_mut().find(|it| it.name == "nodes_modes").unwrap().strings[3] =
            b"BRANCH_LEQ".to_vec();
        let refused = try_serve(&file(node), ports()).err().unwrap().to_string();
        let reasons = ["one root", "several splits lead to a node", "no split leads to some nodes"];
        assert!(reasons.iter().any(|reason| refused.contains(reason)), "{refused}");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let scaler = |offset: &[f32], scale: &[f32]| {
        with_floats(with_floats(operator("Scaler"), "offset", offset), "scale", scale)
    };
    let linear = |coefficients: &[f32], intercepts: &[f32]| {
        let node = with_floats(operator("LinearRegressor"), "coefficients", coefficients);
        with_int(with_floats(node, "intercepts", intercepts), "targets", 2)
    };
    for (node, expected) in [
        (scaler(&[1.0, 2.0], &[1.0]), "an offset for each scale"),
        (scaler(&[1.0; 3], &[1.0; 3]), "3 values for 2 features"),
        (scaler(&[], &[]), "an offset for each scale"),
        (linear(&[1.0; 5], &[1.0; 2]), "5 coefficients do not fit 2 outputs"),
        (linear(&[1.0; 6], &[1.0; 2]), "it needs 3 features, and its input has 2"),
        (linear(&[1.0; 6], &[1.0; 3]), "3 intercepts for 2 targets"),
        (with_text(operator("Normalizer"), "norm", "L3"), "Normalizer with norm=L3"),
        (operator("Imputer"), "either imputed_value_floats or"),
        (operator("OneHotEncoder"), "either cats_int64s or"),
        (operator("LabelEncoder"), "it has no keys"),
        (with_text(regressor(), "aggregate_function", "MIN"), "aggregate_function=MIN"),
        (with_text(regressor(), "post_transform", "OTHER"), "post_transform 'OTHER'"),
        (with_floats(regressor(), "base_values", &[1.0, 2.0]), "2 base_values for 1 targets"),
        (operator("SVMClassifier"), "ai.onnx.ml.SVMClassifier"),
    ] {
        let refused = match try_serve(&file(node), ports()) {
            Err(error) => error.to_string(),
            Ok(mut model) => model.infer(vec![fp32("X", &[1, 2], &[0.0, 0.0])]).unwrap_err().to_string(),
        };
        assert!(refused.contains(expected) && !refused.contains("panicked"), "{expected}: {refused}");
    }
}

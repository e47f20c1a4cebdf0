//! Conditions that are constants of the file.

use nereid_backend_api::DataType;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::onnx::{file, floats, graph, node, port, with_graph};
use super::server::{config, refusal, serve};
use super::{fp32, fp32_output};

fn truth(name: &str, value: bool) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: Element::Bool as i32,
        raw_data: vec![value.into()],
        ..TensorProto::default()
    }
}

/// A node that makes a truth value.
fn constant(name: &str, value: bool) -> NodeProto {
    let mut constant = node("Constant", &[], &[name]);
    constant.attribute.push(AttributeProto {
        name: "value".into(),
        r#type: AttributeType::Tensor as i32,
        t: Some(truth("", value)),
        ..AttributeProto::default()
    });
    constant
}

/// A branch that makes X times a number of its own. All branches have the same names within.
fn branch(factor: f32) -> GraphProto {
    let nodes = vec![node("Mul", &["X", "factor"], &["product"])];
    graph(vec![], nodes, vec![port("product", Element::Float, &[2])], vec![floats("factor", &[], &[factor])])
}

/// A branch that returns the result of another condition.
fn nested(condition: &str, then: GraphProto, r#else: GraphProto) -> GraphProto {
    let nodes = vec![condition_on(condition, "product", then, r#else)];
    graph(vec![], nodes, vec![port("product", Element::Float, &[2])], vec![])
}

fn condition_on(condition: &str, output: &str, then: GraphProto, r#else: GraphProto) -> NodeProto {
    with_graph(with_graph(node("If", &[condition], &[output]), "then_branch", then), "else_branch", r#else)
}

/// Y of a model with these nodes, for X = [1, -2].
fn run(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Vec<f32> {
    let (inputs, outputs) = (vec![port("X", Element::Float, &[2])], vec![port("Y", Element::Float, &[2])]);
    let config = config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]);
    let response = serve(&file(graph(inputs, nodes, outputs, constants)), config).infer(vec![fp32(
        "X",
        &[2],
        &[1.0, -2.0],
    )]);
    fp32_output(&response.unwrap()).1
}

#[test]
fn the_branch_of_a_constant_condition_is_run() {
    for value in [false, true] {
        let factor = if value { 3.0 } else { 5.0 };
        let condition = || condition_on("C", "Y", branch(3.0), branch(5.0));
        let expected = [factor, -2.0 * factor];
        assert_eq!(run(vec![condition()], vec![truth("C", value)]), expected);
        assert_eq!(run(vec![constant("C", value), condition()], vec![]), expected);
    }
}

#[test]
fn conditions_within_branches_and_one_after_the_other_are_resolved() {
    for bits in 0..8 {
        let [a, b, c] = [1, 2, 4].map(|bit| bits & bit > 0);
        let inner = nested("B", branch(2.0), branch(3.0));
        let nodes = vec![
            condition_on("A", "Z", inner, branch(5.0)),
            condition_on("C", "F", branch(7.0), branch(11.0)),
            node("Add", &["Z", "F"], &["Y"]),
        ];
        let found = run(nodes, vec![truth("A", a), truth("B", b), truth("C", c)]);
        let first = if a { if b { 2.0 } else { 3.0 } } else { 5.0 };
        let factor = first + if c { 7.0 } else { 11.0 };
        assert_eq!(found, [factor, -2.0 * factor], "{a} {b} {c}");
    }
}

#[test]
fn a_condition_that_a_request_decides_is_refused() {
    let ports = [("X", DataType::Fp32, &[2][..]), ("C", DataType::Bool, &[1])];
    let config = config(0, &ports, &[("Y", DataType::Fp32, &[2])]);
    let inputs = vec![port("X", Element::Float, &[2]), port("C", Element::Bool, &[1])];
    let outputs = vec![port("Y", Element::Float, &[2])];
    // Also if the file has a value for it, since a request may override that.
    for constants in [vec![], vec![truth("C", true)]] {
        let nodes = vec![condition_on("C", "Y", branch(3.0), branch(5.0))];
        let message =
            refusal(&file(graph(inputs.clone(), nodes, outputs.clone(), constants)), config.clone());
        assert!(message.contains("If"), "{message}");
    }
}

#[test]
fn a_branch_without_an_output_of_the_condition_is_refused() {
    let config = config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]);
    let (inputs, outputs) = (vec![port("X", Element::Float, &[2])], vec![port("Y", Element::Float, &[2])]);
    let empty = graph(vec![], vec![], vec![], vec![]);
    let nodes = vec![condition_on("C", "Y", empty, branch(5.0))];
    let message = refusal(&file(graph(inputs, nodes, outputs, vec![truth("C", true)])), config);
    assert!(message.contains("has 0 outputs instead of 1"), "{message}");
}

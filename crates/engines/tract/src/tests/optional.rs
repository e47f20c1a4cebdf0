//! Inputs that a request may omit because the file has a value for them.

use nereid_backend_api::{DataType, ModelConfig};
use tract_onnx::pb::TensorProto;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file, floats, graph, node, port};
use super::server::{config, refusal, serve};
use super::{fp32, fp32_output};

/// Y = X * W, where W is one number, initialised with `value`.
fn product(w: &[i64], value: Vec<TensorProto>) -> Vec<u8> {
    let inputs = vec![port("X", Element::Float, &[-1]), port("W", Element::Float, w)];
    let nodes = vec![node("Mul", &["X", "W"], &["Y"])];
    file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1])], value))
}

fn optional(w: &[i64]) -> ModelConfig {
    let inputs = [("X", DataType::Fp32, [-1].as_slice()), ("W", DataType::Fp32, w)];
    let mut config = config(0, &inputs, &[("Y", DataType::Fp32, &[-1])]);
    config.input[1].optional = true;
    config
}

#[test]
fn an_optional_input_that_is_left_out_has_the_value_of_the_file() {
    let mut model = serve(&product(&[1], vec![floats("W", &[1], &[3.0])]), optional(&[1]));
    let x = || fp32("X", &[2], &[1.0, 2.0]);
    let answers = model.execute(vec![
        (vec![x()], &[]),
        (vec![x(), fp32("W", &[1], &[10.0])], &[]),
        (vec![fp32("X", &[1], &[5.0])], &[]),
        (vec![x()], &[]),
    ]);
    let outputs: Vec<_> = answers.iter().map(|answer| fp32_output(answer.as_ref().unwrap()).1).collect();
    assert_eq!(outputs, [vec![3.0, 6.0], vec![10.0, 20.0], vec![15.0], vec![3.0, 6.0]]);
    let error = model.infer(vec![fp32("W", &[1], &[1.0])]).unwrap_err();
    assert!(error.message().contains("lacks input 'X'"), "{error}");
}

#[test]
fn the_value_may_be_a_scalar_or_of_another_length_than_a_request_gives() {
    let mut model = serve(&product(&[], vec![floats("W", &[], &[3.0])]), optional(&[1]));
    assert_eq!(fp32_output(&model.infer(vec![fp32("X", &[1], &[2.0])]).unwrap()).1, [6.0]);
    let given = vec![fp32("X", &[1], &[2.0]), fp32("W", &[1], &[4.0])];
    assert_eq!(fp32_output(&model.infer(given).unwrap()).1, [8.0]);

    let mut model = serve(&product(&[-1], vec![floats("W", &[2], &[3.0, 4.0])]), optional(&[-1]));
    assert_eq!(fp32_output(&model.infer(vec![fp32("X", &[2], &[1.0, 1.0])]).unwrap()).1, [3.0, 4.0]);
    let given = vec![fp32("X", &[3], &[1.0; 3]), fp32("W", &[3], &[5.0, 6.0, 7.0])];
    assert_eq!(fp32_output(&model.infer(given).unwrap()).1, [5.0, 6.0, 7.0]);
}

#[test]
fn an_input_without_a_value_cannot_be_optional() {
    let message = refusal(&product(&[1], vec![]), optional(&[1]));
    assert!(message.contains("input 'W' cannot be optional: the model has no default value"), "{message}");
    let mut unknown = optional(&[1]);
    unknown.input[1].name = "V".into();
    let message = refusal(&product(&[1], vec![floats("W", &[1], &[3.0])]), unknown);
    assert!(message.contains("input 'V' cannot be optional"), "{message}");
}

#[test]
fn an_optional_input_takes_a_model_without_batching_and_is_not_ragged() {
    let file = product(&[1], vec![floats("W", &[1], &[3.0])]);
    let mut batching = optional(&[1]);
    batching.max_batch_size = 8;
    let message = refusal(&file, batching);
    assert!(message.contains("input 'W' cannot be optional: max_batch_size is above 0"), "{message}");
    let mut ragged = optional(&[1]);
    ragged.input[1].allow_ragged_batch = true;
    let message = refusal(&file, ragged);
    assert!(message.contains("input 'W' cannot be optional: it has allow_ragged_batch"), "{message}");
}

#[test]
fn a_value_that_is_not_what_the_model_declares_is_refused() {
    let message = refusal(&product(&[1], vec![floats("W", &[2], &[3.0, 4.0])]), optional(&[1]));
    assert!(message.contains("input 'W' is FP32 [1], but its value in the file is F32 [2]"), "{message}");
    let odd = TensorProto { data_type: Element::Complex64 as i32, ..floats("W", &[1], &[3.0]) };
    let message = refusal(&product(&[1], vec![odd]), optional(&[1]));
    assert!(message.contains("cannot read the value of 'W'"), "{message}");
}

//! DynamicQuantizeLSTM. tests/end_to_end/frameworks/test_quantised_lstm.py compares it with ONNX Runtime.

use nereid_backend_api::{DataType, ModelConfig};
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};

use super::onnx::{file, floats, graph, node, port, with_text};
use super::server::{config, serve, try_serve};
use super::{fp32, fp32_output};

const INPUTS: [&str; 12] = ["X", "W", "R", "", "", "", "", "", "Ws", "Wz", "Rs", "Rz"];

fn bytes(name: &str, dims: &[i64], value: i32) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: Element::Uint8 as i32,
        int32_data: vec![value; dims.iter().product::<i64>() as usize],
        ..TensorProto::default()
    }
}

fn lstm(inputs: &[&str]) -> NodeProto {
    NodeProto { domain: "com.microsoft".into(), ..node("DynamicQuantizeLSTM", inputs, &["Y"]) }
}

/// One unit with one feature, all weights 0.5.
fn constants() -> Vec<TensorProto> {
    vec![
        bytes("W", &[1, 1, 4], 178),
        bytes("R", &[1, 1, 4], 178),
        floats("Ws", &[1], &[0.01]),
        bytes("Wz", &[1], 128),
        floats("Rs", &[1], &[0.01]),
        bytes("Rz", &[1], 128),
    ]
}

fn model(node: NodeProto, constants: Vec<TensorProto>) -> Vec<u8> {
    let (x, y) = (port("X", Element::Float, &[3, 1, 1]), port("Y", Element::Float, &[3, 1, 1, 1]));
    file(graph(vec![x], vec![node], vec![y], constants))
}

fn ports() -> ModelConfig {
    config(0, &[("X", DataType::Fp32, &[3, 1, 1])], &[("Y", DataType::Fp32, &[3, 1, 1, 1])])
}

/// The hidden states of such a unit, by the definition of an LSTM.
fn states(x: impl Iterator<Item = f32>) -> Vec<f32> {
    let (mut hidden, mut cell) = (0.0_f32, 0.0_f32);
    x.map(|x| {
        let gate = 0.5 * x + 0.5 * hidden;
        let open = 1.0 / (1.0 + (-gate).exp());
        cell = open * cell + open * gate.tanh();
        hidden = open * cell.tanh();
        hidden
    })
    .collect()
}

#[test]
fn states_are_those_of_the_definition_in_each_direction() {
    // The first two are bytes without rounding; states are rounded to bytes of their own range.
    let x = [2.0, -0.55, 1.0];
    for direction in ["forward", "reverse"] {
        let file = model(with_text(lstm(&INPUTS), "direction", direction), constants());
        let found = fp32_output(&serve(&file, ports()).infer(vec![fp32("X", &[3, 1, 1], &x)]).unwrap()).1;
        let mut expected = match direction {
            "forward" => states(x.into_iter()),
            _ => states(x.into_iter().rev()),
        };
        if direction == "reverse" {
            expected.reverse();
        }
        let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 0.01);
        assert!(near, "{direction}: {found:?}, not {expected:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let without = |name: &str| -> Vec<_> { constants().into_iter().filter(|it| it.name != name).collect() };
    let with = |other: TensorProto| [without(&other.name), vec![other]].concat();
    let inputs = |at: usize, name: &'static str| {
        let mut inputs = INPUTS;
        inputs[at] = name;
        lstm(&inputs)
    };
    let ints = TensorProto {
        data_type: Element::Int32 as i32,
        int32_data: vec![3],
        ..TensorProto { name: "L".into(), dims: vec![1], ..TensorProto::default() }
    };
    for (node, constants, expected) in [
        (inputs(4, "L"), [constants(), vec![ints]].concat(), "lengths of sequences"),
        (inputs(7, "P"), [constants(), vec![floats("P", &[1, 3], &[0.0; 3])]].concat(), "peepholes"),
        (inputs(11, ""), constants(), "two scales and two zero points"),
        (with_text(lstm(&INPUTS), "direction", "up"), constants(), "direction=up"),
        (with_text(lstm(&INPUTS), "activations", "Relu"), constants(), "activations=Relu"),
        (lstm(&INPUTS), with(bytes("W", &[1, 1, 8], 1)), "do not fit"),
        (lstm(&INPUTS), with(bytes("W", &[1, 2, 4], 1)), "do not fit"),
        (lstm(&INPUTS), with(bytes("W", &[2, 1, 4], 1)), "do not fit"),
        (lstm(&INPUTS), with(bytes("R", &[1, 1, 0], 1)), "without elements"),
        (lstm(&INPUTS), with(floats("Ws", &[3], &[1.0; 3])), "scales do not fit"),
        (lstm(&INPUTS), with(floats("Wz", &[1], &[1.0])), "bytes of one type"),
        (inputs(3, "B"), [constants(), vec![floats("B", &[1, 7], &[0.0; 7])]].concat(), "bias"),
        (inputs(3, "X"), constants(), "must be constant"),
    ] {
        let what = format!("{node:?}");
        let error = try_serve(&model(node, constants), ports()).err();
        let message = error.unwrap_or_else(|| panic!("{what} is served, not refused for {expected}"));
        assert!(message.message().contains(expected), "{what}: {message}");
    }
}

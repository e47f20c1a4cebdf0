//! Quantised patterns: any operator between a DequantizeLinear and a QuantizeLinear, of either type.

use nereid_backend_api::DataType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};

use super::onnx::{file, floats, graph, node, port, with_int, with_ints};
use super::server::{config, serve};
use super::{fp32, fp32_output};

/// A scale and a zero point of a type.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    scale: f32,
    zero_point: i32,
    element: Element,
}

impl Parameters {
    fn range(self) -> (f32, f32) {
        if self.element == Element::Uint8 { (0.0, 255.0) } else { (-128.0, 127.0) }
    }

    /// The value after a QuantizeLinear and a DequantizeLinear, as ONNX defines them.
    fn rounded(self, value: f32) -> f32 {
        let (low, high) = self.range();
        let quantised = (value / self.scale).round_ties_even() + self.zero_point as f32;
        (quantised.clamp(low, high) - self.zero_point as f32) * self.scale
    }

    fn constants(self, name: &str) -> [TensorProto; 2] {
        let zero_point = TensorProto {
            name: format!("{name}_zero_point"),
            data_type: self.element as i32,
            int32_data: vec![self.zero_point],
            ..TensorProto::default()
        };
        [floats(&format!("{name}_scale"), &[], &[self.scale]), zero_point]
    }
}

/// The nodes that quantise `from` and make `to` of it again.
fn there_and_back(name: &str, from: &str, to: &str) -> [NodeProto; 2] {
    let (scale, zero_point) = (format!("{name}_scale"), format!("{name}_zero_point"));
    let quantised = format!("{name}_quantised");
    [
        node("QuantizeLinear", &[from, &scale, &zero_point], &[&quantised]),
        node("DequantizeLinear", &[&quantised, &scale, &zero_point], &[to]),
    ]
}

const ROWS: i64 = 3;
const COLUMNS: i64 = 5;

fn values() -> Vec<f32> {
    (0..ROWS * COLUMNS).map(|index| ((index * 7919) % 101) as f32 / 9.0 - 5.0).collect()
}

/// The values of Y in a model of these nodes, for X.
fn run(nodes: Vec<NodeProto>, constants: Vec<TensorProto>, x: &[f32], dims: &[i64]) -> Vec<f32> {
    let inputs = vec![port("X", Element::Float, &[ROWS, COLUMNS])];
    let outputs = vec![port("Y", Element::Float, dims)];
    let file = file(graph(inputs, nodes, outputs, constants));
    let config = config(0, &[("X", DataType::Fp32, &[ROWS, COLUMNS])], &[("Y", DataType::Fp32, dims)]);
    let response = serve(&file, config).infer(vec![fp32("X", &[ROWS, COLUMNS], x)]).unwrap();
    fp32_output(&response).1
}

/// Operators with their outputs' dimensions.
fn operators() -> Vec<(NodeProto, Vec<i64>)> {
    let unary = |name: &str| node(name, &["A"], &["B"]);
    let same = vec![ROWS, COLUMNS];
    let mut operators: Vec<_> =
        ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "HardSigmoid", "Softplus"]
            .iter()
            .map(|name| (unary(name), same.clone()))
            .collect();
    for axis in [0, 1, -1] {
        operators.push((with_int(unary("Softmax"), "axis", axis), same.clone()));
        operators.push((with_int(unary("LogSoftmax"), "axis", axis), same.clone()));
    }
    operators.push((with_ints(unary("Transpose"), "perm", &[1, 0]), vec![COLUMNS, ROWS]));
    operators.push((with_ints(unary("ReduceMean"), "axes", &[1]), vec![ROWS, 1]));
    operators.push((with_ints(unary("ReduceMax"), "axes", &[0]), vec![1, COLUMNS]));
    operators.push((with_int(unary("Flatten"), "axis", 0), vec![1, ROWS * COLUMNS]));
    operators
}

#[test]
fn operator_between_dequantize_and_quantize_keeps_its_meaning() {
    let parameters = |element, scale, zero_point| Parameters { scale, zero_point, element };
    let before = [parameters(Element::Uint8, 0.05, 114), parameters(Element::Int8, 0.043, -7)];
    let after = [parameters(Element::Uint8, 0.02, 100), parameters(Element::Int8, 0.031, 3)];
    let x = values();
    for (operator, dims) in operators() {
        for before in before {
            for after in after {
                let mut nodes = there_and_back("before", "X", "A").to_vec();
                nodes.push(operator.clone());
                nodes.extend(there_and_back("after", "B", "Y"));
                let constants = [before.constants("before"), after.constants("after")].concat();
                let found = run(nodes, constants, &x, &dims);

                // The operator alone, on numbers, between roundings by hand.
                let rounded: Vec<f32> = x.iter().map(|value| before.rounded(*value)).collect();
                let mut alone = operator.clone();
                (alone.input[0], alone.output[0]) = ("X".to_owned(), "Y".to_owned());
                let real = run(vec![alone], vec![], &rounded, &dims);
                let name = &operator.op_type;
                assert_eq!(found.len(), real.len(), "{name}");
                for (found, real) in found.iter().zip(real) {
                    // The operator's own rounding may decide a tie.
                    let error = (found - after.rounded(real)).abs();
                    assert!(error <= after.scale * 1.001, "{name} {before:?} {after:?}: {found}, not {real}");
                    let (low, high) = after.range();
                    let lowest = (low - after.zero_point as f32) * after.scale;
                    let highest = (high - after.zero_point as f32) * after.scale;
                    let clamped = real.clamp(lowest, highest);
                    assert!((found - clamped).abs() <= after.scale * 0.501, "{name}: {found}, not {real}");
                }
            }
        }
    }
}

#[test]
fn values_beyond_the_range_saturate() {
    for (element, zero_point, lowest, highest) in
        [(Element::Uint8, 200, -200.0, 55.0), (Element::Int8, -100, -28.0, 227.0)]
    {
        let parameters = Parameters { scale: 1.0, zero_point, element };
        let x = [f32::MIN, -1e10, 0.0, 1e10, f32::INFINITY].repeat(3);
        let nodes = there_and_back("q", "X", "Y").to_vec();
        let found = run(nodes, parameters.constants("q").to_vec(), &x, &[ROWS, COLUMNS]);
        assert_eq!(found, [lowest, lowest, 0.0, highest, highest].repeat(3), "{element:?}");
    }
}

#[test]
fn halves_round_to_even_and_what_is_no_number_is_the_lowest_bits_of_zero() {
    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e30, 4_194_305.0, f32::MIN_POSITIVE];
    for (element, zero_points) in [(Element::Uint8, [0, 7, 255]), (Element::Int8, [0, 7, -128])] {
        for zero_point in zero_points {
            for scale in [1.0, 0.37, 1e-30, 1e30] {
                let parameters = Parameters { scale, zero_point, element };
                let near_limits = [-257, -130, -4, 124, 252].into_iter().flat_map(|first| first..first + 8);
                let halves = near_limits.map(|half| (half as f32 + 0.5) * scale);
                let all: Vec<_> = halves.chain(special).chain(values()).collect();
                for x in all.chunks((ROWS * COLUMNS) as usize) {
                    let mut x = x.to_vec();
                    x.resize((ROWS * COLUMNS) as usize, 0.0);
                    let constants = parameters.constants("x").to_vec();
                    let nodes = there_and_back("x", "X", "Y").to_vec();
                    let nothing = (0.0 - zero_point as f32) * scale;
                    let expected = x.iter().map(|value| match value.is_nan() {
                        true => nothing,
                        false => parameters.rounded(*value),
                    });
                    let expected: Vec<_> = expected.collect();
                    assert_eq!(run(nodes, constants, &x, &[ROWS, COLUMNS]), expected, "{parameters:?} {x:?}");
                }
            }
        }
    }
}

#[test]
fn quotients_round_to_even_without_the_detour_of_a_reciprocal() {
    // Scales whose reciprocals are rounded, and numbers at and near the middle of two steps.
    for scale in [0.1_f32, 0.003, 0.007, 1.0 / 3.0, 0.0235, 1e-3] {
        let parameters = Parameters { scale, zero_point: 0, element: Element::Int8 };
        let x: Vec<f32> = (0..15).map(|step| (step as f32 - 7.5) * scale).collect();
        let nodes = there_and_back("q", "X", "Y").to_vec();
        let found = run(nodes, parameters.constants("q").to_vec(), &x, &[ROWS, COLUMNS]);
        let expected: Vec<f32> = x.iter().map(|value| parameters.rounded(*value)).collect();
        assert_eq!(found, expected, "scale {scale}");
    }
}

#[test]
fn the_range_of_the_numbers_decides_their_dynamic_scale() {
    for x in [
        vec![0.0; 15],
        values(),
        values().iter().map(|value| value.abs() + 1.0).collect(),
        values().iter().map(|value| -value.abs() - 1.0).collect(),
        [1e-20, 0.0, -3e-20].repeat(5),
        [f32::MAX, 0.0, f32::MIN].repeat(5),
        [f32::INFINITY, 0.0, 2.0].repeat(5),
        [f32::NEG_INFINITY, f32::NAN, 2.0].repeat(5),
        [f32::NAN; 15].to_vec(),
    ] {
        let low = x.iter().copied().fold(0.0, f32::min);
        let high = x.iter().copied().fold(0.0, f32::max);
        let scale = if low == high { 1.0 } else { (high - low) / 255.0 };
        let zero_point = (-low / scale).round_ties_even();
        let nodes = vec![
            node("DynamicQuantizeLinear", &["X"], &["Q", "scale", "zero_point"]),
            with_int(node("Cast", &["Q"], &["Y"]), "to", Element::Float as i64),
        ];
        let found = run(nodes, vec![], &x, &[ROWS, COLUMNS]);
        // NaN becomes 0.
        let nearest = |x: &f32| ((x / scale).round_ties_even() + zero_point) as u8;
        let expected: Vec<f32> = x.iter().map(|x| nearest(x).into()).collect();
        assert_eq!(found, expected, "{x:?}");
    }
}

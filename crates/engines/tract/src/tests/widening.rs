//! Operators on FP16 return the rounded results of FP32.

use nereid_backend_api::{DataType, Tensor};
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};
use tract_onnx::prelude::f16;

use super::onnx::{file_of_version, graph, node, port, with_int, with_ints};
use super::server::{config, serve};

fn halves(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let raw_data = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let data_type = Element::Float16 as i32;
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type, raw_data, ..TensorProto::default() }
}

/// Y of these nodes for X, both FP16, with a constant W.
fn run(nodes: Vec<NodeProto>, x: (&[i64], &[f32]), w: (&[i64], &[f32]), y: &[i64]) -> Vec<f32> {
    let (inputs, outputs) = (vec![port("X", Element::Float16, x.0)], vec![port("Y", Element::Float16, y)]);
    let file = file_of_version(graph(inputs, nodes, outputs, vec![halves("W", w.0, w.1)]), 13);
    let config = config(0, &[("X", DataType::Fp16, x.0)], &[("Y", DataType::Fp16, y)]);
    let bytes: Vec<u8> = x.1.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let response = serve(&file, config).infer(vec![Tensor::new("X", DataType::Fp16, x.0, bytes)]).unwrap();
    let contents = response.outputs[0].contiguous().unwrap();
    contents.as_chunks().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32()).collect()
}

/// Numbers that FP16 has.
fn values(count: i64) -> Vec<f32> {
    (0..count).map(|at| f16::from_f32((at * 7919 % 101) as f32 / 64.0 - 0.75).to_f32()).collect()
}

/// Checks FP16 within one unit of rounding.
fn assert_rounded(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (&found, &expected) in found.iter().zip(expected) {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= 1e-6 + 5e-4 * expected.abs(), "{what}: {found} instead of {expected}");
    }
}

#[test]
fn sums_of_many_numbers_keep_their_digits() {
    const COUNT: i64 = 4096;
    let x = values(COUNT);
    let exact = |of: fn(f64) -> f64| x.iter().map(|x| of(f64::from(*x))).sum::<f64>();
    let (sum, squares) = (exact(|x| x), exact(|x| x * x));
    for (operator, expected) in [
        ("ReduceSumSquare", squares),
        ("ReduceL1", exact(f64::abs)),
        ("ReduceL2", squares.sqrt()),
        ("ReduceMean", sum / COUNT as f64),
        ("ReduceLogSumExp", exact(f64::exp).ln()),
    ] {
        let reduce = with_int(with_ints(node(operator, &["X"], &["Y"]), "axes", &[1]), "keepdims", 0);
        let found = run(vec![reduce], (&[1, COUNT], &x), (&[1], &[0.0]), &[1]);
        assert_rounded(&found, &[expected], operator);
    }
    let product =
        run(vec![node("MatMul", &["X", "W"], &["Y"])], (&[1, COUNT], &x), (&[COUNT, 1], &x), &[1, 1]);
    assert_rounded(&product, &[squares], "MatMul");
}

#[test]
fn numbers_between_operators_are_rounded_to_fp16() {
    let x = values(64);
    let nodes = vec![node("Exp", &["X"], &["A"]), node("Sub", &["A", "W"], &["Y"])];
    let found = run(nodes, (&[64], &x), (&[], &[1.0]), &[64]);
    let expected = x.iter().map(|x| f64::from(f16::from_f32(x.exp()).to_f32()) - 1.0);
    assert_rounded(&found, &expected.collect::<Vec<_>>(), "Exp");
}

#[test]
fn convolutions_and_recurrent_operators_run() {
    let x = values(2 * 3 * 16);
    let w = values(4 * 3 * 3);
    let found =
        run(vec![node("Conv", &["X", "W"], &["Y"])], (&[2, 3, 16], &x), (&[4, 3, 3], &w), &[2, 4, 14]);
    let at = |batch: usize, channel: usize, place: usize| {
        let terms = (0..3).flat_map(|input| (0..3).map(move |tap| (input, tap)));
        let term = |(input, tap): (usize, usize)| {
            f64::from(x[(batch * 3 + input) * 16 + place + tap])
                * f64::from(w[(channel * 3 + input) * 3 + tap])
        };
        terms.map(term).sum::<f64>()
    };
    let expected: Vec<_> = (0..2 * 4 * 14).map(|index| at(index / 56, index / 14 % 4, index % 14)).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 2e-3, "{found} instead of {expected}");
    }
}

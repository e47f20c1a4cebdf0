//! OneHot against ONNX's definition of it.

use nereid_backend_api::{DataType, Tensor};
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file, floats, graph, ints, node, port, with_int};
use super::server::{config, serve};
use super::{fp32, fp32_output};

const INDICES: [i64; 12] = [0, 3, 1, -1, -4, 2, 4, -5, i64::MAX, i64::MIN, 1 << 32, -(1 << 32)];

/// The answer for indices of the shape [3, 4], as an input or as constants that only a sum of constants makes.
fn run(axis: i64, depth: i64, is_constant: bool) -> (Vec<i64>, Vec<f32>) {
    let contents: Vec<u8> = INDICES.iter().flat_map(|index| index.to_le_bytes()).collect();
    let mut nodes = vec![with_int(node("OneHot", &["I", "depth", "values"], &["H"]), "axis", axis)];
    let mut constants = vec![ints("depth", &[], &[depth]), floats("values", &[2], &[2.0, 5.0])];
    let (mut inputs, mut given) = (vec![port("X", Element::Float, &[1])], vec![fp32("X", &[1], &[1.0])]);
    let mut configured = vec![("X", DataType::Fp32, &[1_i64][..])];
    if is_constant {
        constants.extend([ints("J", &[3, 4], &INDICES.map(narrow)), ints("zero", &[1], &[0])]);
        nodes.insert(0, node("Add", &["J", "zero"], &["I"]));
    } else {
        inputs.push(port("I", Element::Int64, &[3, 4]));
        given.push(Tensor::new("I", DataType::Int64, [3, 4], contents));
        configured.push(("I", DataType::Int64, &[3, 4]));
    }
    nodes.push(node("Mul", &["H", "X"], &["Y"]));
    let outputs = vec![port("Y", Element::Float, &[-1, -1, -1])];
    let config = config(0, &configured, &[("Y", DataType::Fp32, &[-1, -1, -1])]);
    fp32_output(&serve(&file(graph(inputs, nodes, outputs, constants)), config).infer(given).unwrap())
}

/// The index, or another one out of range: the engine takes no constants beyond 32 bits.
fn narrow(index: i64) -> i64 {
    index.clamp(i32::MIN.into(), i32::MAX.into())
}

#[test]
fn an_index_names_one_place_unless_it_is_out_of_range() {
    let mut hot = 0;
    for (depth, axis) in [1, 4, 7].into_iter().flat_map(|depth| (-3..3).map(move |axis| (depth, axis))) {
        let at = (if axis < 0 { axis + 3 } else { axis }) as usize;
        let mut shape = vec![3, 4];
        shape.insert(at, depth);
        let mut expected = Vec::new();
        for element in 0..12 * depth {
            let mut place =
                [element / (shape[1] * shape[2]), element / shape[2] % shape[1], element % shape[2]].to_vec();
            let depth_place = place.remove(at);
            let index = INDICES[(place[0] * 4 + place[1]) as usize];
            let is_hot = index == depth_place || index == depth_place - depth;
            hot += usize::from(is_hot);
            expected.push(if is_hot { 5.0 } else { 2.0 });
        }
        for is_constant in [false, true] {
            assert_eq!(run(axis, depth, is_constant), (shape.clone(), expected.clone()), "{axis} {depth}");
        }
    }
    assert!(hot > 20, "{hot}");
}

//! Tensors without elements: inputs, constants of the file, and what slices leave of others.

use nereid_backend_api::{DataType, ErrorCode, Result};
use tract_onnx::pb::NodeProto;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file_of_version, floats, graph, ints, node, port, with_int, with_ints};
use super::server::{config, try_serve};
use super::{fp32, fp32_output};

const INFINITE: f32 = f32::INFINITY;

/// Where X, which has no elements, comes from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Input,
    Constant,
    Slice,
}

const ORIGINS: [Origin; 3] = [Origin::Input, Origin::Constant, Origin::Slice];

/// The shape and the numbers of Y, which `nodes` make of X and of other tensors without elements. The input Z is [1, 2].
fn run(origin: Origin, x: &[i64], nodes: &[NodeProto], rank: usize) -> Result<(Vec<i64>, Vec<f32>)> {
    let open = vec![-1; x.len()];
    let (mut inputs, mut ports) =
        (vec![fp32("Z", &[1, 2], &[5.0, 6.0])], vec![port("Z", Element::Float, &[1, 2])]);
    let mut constants = vec![
        ints("place", &[1, 2], &[1, 1]),
        ints("pads", &[4], &[1, 0, 0, 1]),
        ints("flat", &[1], &[-1]),
        floats("empty_rows", &[0, 3], &[]),
        floats("filter", &[3, 2, 1, 1], &[1.0; 6]),
        ints("no_indices", &[0, 1], &[]),
    ];
    let mut all = Vec::new();
    let mut given = |name: &str, shape: &[i64]| {
        let values = vec![7.0; shape.iter().product::<i64>() as usize];
        inputs.push(fp32(name, shape, &values));
        ports.push(port(name, Element::Float, &open));
    };
    match origin {
        Origin::Input => given("X", x),
        Origin::Constant => constants.push(floats("X", x, &[])),
        Origin::Slice => {
            let axes: Vec<i64> = (0..x.len() as i64).filter(|axis| x[*axis as usize] == 0).collect();
            let count = [axes.len() as i64];
            constants.push(ints("axes", &count, &axes));
            constants.push(ints("from", &count, &vec![9; axes.len()]));
            let whole: Vec<i64> = x.iter().map(|size| if *size == 0 { 4 } else { *size }).collect();
            given("W", &whole);
            all.push(node("Slice", &["W", "from", "from", "axes"], &["X"]));
        }
    }
    all.extend_from_slice(nodes);
    let output = vec![-1; rank];
    let mut configured = vec![("Z", DataType::Fp32, [1, 2].as_slice())];
    let others = inputs[1..].iter().map(|input| (input.name.as_str(), DataType::Fp32, open.as_slice()));
    configured.extend(others);
    let config = config(0, &configured, &[("Y", DataType::Fp32, &output)]);
    let graph = graph(ports, all, vec![port("Y", Element::Float, &output)], constants);
    let response = try_serve(&file_of_version(graph, 13), config)?.infer(inputs)?;
    Ok(fp32_output(&response))
}

/// Nodes, the shape of X, and the shape and the numbers of Y.
type Case = (Vec<NodeProto>, &'static [i64], &'static [i64], &'static [f32]);

#[test]
fn operators_make_of_nothing_what_onnx_defines() {
    let unary = |operator| vec![node(operator, &["X"], &["Y"])];
    let with_axis = |operator, axis| vec![with_int(node(operator, &["X"], &["Y"]), "axis", axis)];
    let reduced = |operator: &str| vec![with_ints(node(operator, &["X"], &["Y"]), "axes", &[-1])];
    let to_scalar = with_int(node("ReduceMax", &["X"], &["P"]), "keepdims", 0);
    let concat = |inputs: &[&str]| vec![with_int(node("Concat", inputs, &["Y"]), "axis", 0)];
    let cases: Vec<Case> = vec![
        (unary("Relu"), &[0, 3], &[0, 3], &[]),
        (unary("Sigmoid"), &[2, 0, 3], &[2, 0, 3], &[]),
        (unary("Transpose"), &[0, 3], &[3, 0], &[]),
        (with_axis("Softmax", -1), &[2, 0], &[2, 0], &[]),
        (with_axis("Softmax", 0), &[0, 2], &[0, 2], &[]),
        (with_axis("Hardmax", 1), &[2, 0], &[2, 0], &[]),
        (with_axis("Flatten", 1), &[2, 3, 0], &[2, 0], &[]),
        (vec![node("Reshape", &["X", "flat"], &["Y"])], &[2, 0], &[0], &[]),
        (vec![node("Add", &["X", "Z"], &["Y"])], &[0, 2], &[0, 2], &[]),
        (vec![node("MatMul", &["X", "Z"], &["Y"])], &[0, 1], &[0, 2], &[]),
        (vec![node("MatMul", &["X", "empty_rows"], &["Y"])], &[2, 0], &[2, 3], &[0.0; 6]),
        (vec![node("Conv", &["X", "filter"], &["Y"])], &[0, 2, 4, 4], &[0, 3, 4, 4], &[]),
        (unary("GlobalAveragePool"), &[0, 2, 4, 4], &[0, 2, 1, 1], &[]),
        (concat(&["X", "Z"]), &[0, 2], &[1, 2], &[5.0, 6.0]),
        (concat(&["Z", "X", "X"]), &[0, 2], &[1, 2], &[5.0, 6.0]),
        (concat(&["X", "X"]), &[0, 2], &[0, 2], &[]),
        (vec![node("Pad", &["X", "pads"], &["Y"])], &[0, 2], &[1, 3], &[0.0; 3]),
        (vec![node("ScatterND", &["Z", "no_indices", "X"], &["Y"])], &[0, 2], &[1, 2], &[5.0, 6.0]),
        (vec![node("Gather", &["Z", "no_indices"], &["Y"])], &[0], &[0, 1, 2], &[]),
        (vec![node("Shape", &["X"], &["S"]), node("ConstantOfShape", &["S"], &["Y"])], &[2, 0], &[2, 0], &[]),
        (
            vec![node("Shape", &["X"], &["S"]), with_int(node("Cast", &["S"], &["Y"]), "to", 1)],
            &[2, 0, 4],
            &[3],
            &[2.0, 0.0, 4.0],
        ),
        (reduced("ReduceL1"), &[2, 0], &[2, 1], &[0.0; 2]),
        (reduced("ReduceL2"), &[2, 0], &[2, 1], &[0.0; 2]),
        (reduced("ReduceLogSum"), &[2, 0], &[2, 1], &[-INFINITE; 2]),
        (reduced("ReduceLogSumExp"), &[2, 0], &[2, 1], &[-INFINITE; 2]),
        (reduced("ReduceMax"), &[2, 0], &[2, 1], &[-INFINITE; 2]),
        (reduced("ReduceMean"), &[2, 0], &[2, 1], &[0.0; 2]),
        (reduced("ReduceMin"), &[2, 0], &[2, 1], &[INFINITE; 2]),
        (reduced("ReduceProd"), &[3, 0], &[3, 1], &[1.0; 3]),
        (unary("ReduceSum"), &[2, 0], &[1, 1], &[0.0]),
        (reduced("ReduceSumSquare"), &[2, 3, 0], &[2, 3, 1], &[0.0; 6]),
        (reduced("ReduceMax"), &[0, 2], &[0, 1], &[]),
        (vec![to_scalar, node("Reshape", &["P", "flat"], &["Y"])], &[0, 2], &[1], &[-INFINITE]),
        // What is made of nothing is computed with.
        (
            vec![
                with_ints(node("ReduceProd", &["X"], &["P"]), "axes", &[1]),
                node("Add", &["P", "Z"], &["Y"]),
            ],
            &[1, 0],
            &[1, 2],
            &[6.0, 7.0],
        ),
    ];
    for (nodes, x, shape, values) in cases {
        for origin in ORIGINS {
            let what = format!("{} of {x:?} ({origin:?})", nodes[0].op_type);
            let answer =
                run(origin, x, &nodes, shape.len()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(answer, (shape.to_vec(), values.to_vec()), "{what}");
        }
    }
}

#[test]
fn an_operator_that_needs_elements_is_refused() {
    let with_axis = |operator, axis| vec![with_int(node(operator, &["X"], &["P"]), "axis", axis), cast()];
    let cases: Vec<(Vec<NodeProto>, &[i64], usize)> = vec![
        (with_axis("ArgMax", 1), &[2, 0], 2),
        (vec![node("GlobalMaxPool", &["X"], &["Y"])], &[1, 2, 0, 4], 4),
        (vec![node("GatherND", &["X", "place"], &["Y"])], &[0, 2], 1),
        (vec![node("Gemm", &["X", "empty_rows"], &["Y"])], &[2, 0], 2),
    ];
    for (nodes, x, rank) in cases {
        for origin in ORIGINS {
            let error = run(origin, x, &nodes, rank).unwrap_err();
            let message = error.message();
            let what = format!("{} of {x:?} ({origin:?}): {message}", nodes[0].op_type);
            assert_eq!(error.code(), ErrorCode::InvalidArg, "{what}");
            assert!(message.contains("no elements") && message.contains(&nodes[0].name), "{what}");
        }
    }
}

/// Y, of the integers P.
fn cast() -> NodeProto {
    with_int(node("Cast", &["P"], &["Y"]), "to", 1)
}

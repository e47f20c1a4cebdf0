//! Operators of the engine that are put right.

use nereid_backend_api::DataType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};

use super::onnx::{file, file_of_version, floats, graph, ints, node, port, with_int, with_ints, with_text};
use super::server::{config, serve, try_serve};
use super::{fp32, fp32_output};

#[test]
fn log_of_sum_of_exponentials_stays_finite_far_from_zero() {
    let rows: [[f32; 3]; 6] = [
        [-200.0, -201.0, -203.5],
        [200.0, 201.0, 203.5],
        [1e30, 1.0, -1e30],
        [0.0, 0.0, 0.0],
        [f32::NEG_INFINITY; 3],
        [f32::INFINITY, 0.0, 1.0],
    ];
    let x: Vec<f32> = rows.concat();
    for keeps in [false, true] {
        let dims: &[i64] = if keeps { &[6, 1] } else { &[6] };
        let reduce = with_ints(node("ReduceLogSumExp", &["X"], &["Y"]), "axes", &[1]);
        let reduce = with_int(reduce, "keepdims", keeps.into());
        let outputs = vec![port("Y", Element::Float, dims)];
        let file = file(graph(vec![port("X", Element::Float, &[6, 3])], vec![reduce], outputs, vec![]));
        let config = config(0, &[("X", DataType::Fp32, &[6, 3])], &[("Y", DataType::Fp32, dims)]);
        let response = serve(&file, config).infer(vec![fp32("X", &[6, 3], &x)]).unwrap();
        for (found, row) in fp32_output(&response).1.into_iter().zip(rows) {
            let greatest = row.into_iter().fold(f32::NEG_INFINITY, f32::max);
            let expected = match greatest.is_finite() {
                true => greatest + row.iter().map(|x| (x - greatest).exp()).sum::<f32>().ln(),
                false => greatest,
            };
            let error = (found - expected).abs();
            assert!(found == expected || error <= expected.abs() * 1e-5, "{row:?}: {found}, not {expected}");
        }
    }
}

#[test]
fn squeeze_without_axes_removes_all_dimensions_of_one_in_every_version() {
    for version in [11, 12, 13, 17] {
        let nodes = vec![node("Squeeze", &["X"], &["Y"])];
        let outputs = vec![port("Y", Element::Float, &[2, 3])];
        let graph = graph(vec![port("X", Element::Float, &[1, 2, 1, 3])], nodes, outputs, vec![]);
        let config = config(0, &[("X", DataType::Fp32, &[1, 2, 1, 3])], &[("Y", DataType::Fp32, &[2, 3])]);
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut model = serve(&file_of_version(graph, version), config);
        let response = model.infer(vec![fp32("X", &[1, 2, 1, 3], &x)]).unwrap();
        assert_eq!(fp32_output(&response), (vec![2, 3], x.to_vec()), "version {version}");
    }
}

#[test]
fn squeeze_with_axes_keeps_the_other_dimensions_of_one() {
    for version in [11, 13] {
        let (squeeze, axes) = match version {
            11 => (with_ints(node("Squeeze", &["X"], &["Y"]), "axes", &[0]), vec![]),
            _ => (node("Squeeze", &["X", "axes"], &["Y"]), vec![ints("axes", &[1], &[0])]),
        };
        let outputs = vec![port("Y", Element::Float, &[1, 3])];
        let graph = graph(vec![port("X", Element::Float, &[1, 1, 3])], vec![squeeze], outputs, axes);
        let config = config(0, &[("X", DataType::Fp32, &[1, 1, 3])], &[("Y", DataType::Fp32, &[1, 3])]);
        let mut model = serve(&file_of_version(graph, version), config);
        let response = model.infer(vec![fp32("X", &[1, 1, 3], &[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(fp32_output(&response), (vec![1, 3], vec![1.0, 2.0, 3.0]), "version {version}");
    }
}

/// Y of a model of X, of this shape, with these nodes and constants.
fn run(version: i64, nodes: &[NodeProto], constants: &[TensorProto], x: &[i64], y: &[i64]) -> Vec<f32> {
    let (inputs, outputs) = (vec![port("X", Element::Float, x)], vec![port("Y", Element::Float, y)]);
    let file = file_of_version(graph(inputs, nodes.to_vec(), outputs, constants.to_vec()), version);
    let config = config(0, &[("X", DataType::Fp32, x)], &[("Y", DataType::Fp32, y)]);
    let response = serve(&file, config).infer(vec![fp32("X", x, &numbers(x))]).unwrap();
    fp32_output(&response).1
}

/// Numbers for a tensor of this shape.
fn numbers(shape: &[i64]) -> Vec<f32> {
    (0..shape.iter().product::<i64>()).map(|at| (at * 7919 % 101) as f32 / 32.0 - 1.5).collect()
}

/// The output of two nodes in a row, where each is a model by itself, so that no optimisation sees both.
fn apart(version: i64, nodes: &[NodeProto; 2], constants: &[TensorProto], shapes: [&[i64]; 3]) -> Vec<f32> {
    let [x, between, y] = shapes;
    let mut first = nodes[0].clone();
    first.output[0] = "Y".into();
    let middle = run(version, &[first], constants, x, between);
    let mut second = nodes[1].clone();
    let at = second.input.iter().position(|name| *name == nodes[0].output[0]).unwrap();
    second.input[at] = "X".into();
    let (inputs, outputs) = (vec![port("X", Element::Float, between)], vec![port("Y", Element::Float, y)]);
    let file = file_of_version(graph(inputs, vec![second], outputs, constants.to_vec()), version);
    let config = config(0, &[("X", DataType::Fp32, between)], &[("Y", DataType::Fp32, y)]);
    let response = serve(&file, config).infer(vec![fp32("X", between, &middle)]).unwrap();
    fp32_output(&response).1
}

fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{what}: {found}, not {expected}");
    }
}

#[test]
fn a_strided_convolution_leaves_the_operator_before_it_all_elements() {
    let (x, y) = (&[1, 4, 7, 6][..], &[1, 2, 4, 2][..]);
    let weights = floats("W", &[2, 4, 1, 1], &numbers(&[2, 4, 1, 1]));
    let conv = with_ints(node("Conv", &["A", "W"], &["Y"]), "strides", &[2, 3]);
    for (operator, version, axis) in [
        ("Softmax", 11, 1),
        ("Softmax", 11, 2),
        ("Softmax", 13, 2),
        ("Softmax", 13, 3),
        ("LogSoftmax", 11, 1),
        ("LogSoftmax", 13, 2),
        ("Hardmax", 13, 3),
        ("LpNormalization", 13, 2),
    ] {
        let first = with_int(node(operator, &["X"], &["A"]), "axis", axis);
        let nodes = [first, conv.clone()];
        let constants = std::slice::from_ref(&weights);
        let expected = apart(version, &nodes, constants, [x, x, y]);
        let found = run(version, &nodes, constants, x, y);
        assert_near(&found, &expected, &format!("{operator} along {axis} at {version}"));
    }
}

#[test]
fn a_strided_convolution_leaves_the_padding_of_the_one_before_it() {
    let (x, between) = (&[1, 2, 5, 4][..], &[1, 3, 5, 4][..]);
    for (padding, kernel) in [("SAME_LOWER", 3), ("SAME_UPPER", 3), ("SAME_LOWER", 2), ("SAME_UPPER", 2)] {
        for (strides, y) in [([3, 1], [1, 2, 2, 4]), ([2, 2], [1, 2, 3, 2])] {
            let dims = [3, 2, kernel, kernel];
            let constants =
                [floats("V", &dims, &numbers(&dims)), floats("W", &[2, 3, 1, 1], &numbers(&[2, 3, 1, 1]))];
            let first = with_text(node("Conv", &["X", "V"], &["A"]), "auto_pad", padding);
            let nodes = [first, with_ints(node("Conv", &["A", "W"], &["Y"]), "strides", &strides)];
            let expected = apart(13, &nodes, &constants, [x, between, &y]);
            assert_near(
                &run(13, &nodes, &constants, x, &y),
                &expected,
                &format!("{padding} {kernel} {strides:?}"),
            );
        }
    }
}

#[test]
fn a_broadcast_before_a_product_counts_each_of_its_elements() {
    for (operator, shape, x) in [
        ("Expand", [3, 4], &[3, 1][..]),
        ("Expand", [3, 4], &[1, 4]),
        ("Expand", [3, 4], &[1, 1]),
        ("Tile", [1, 4], &[3, 1]),
        ("Tile", [3, 1], &[1, 4]),
    ] {
        let constants = [ints("S", &[2], &shape), floats("W", &[4, 2], &numbers(&[4, 2]))];
        for product in [node("MatMul", &["A", "W"], &["Y"]), node("Gemm", &["A", "W"], &["Y"])] {
            let nodes = [node(operator, &["X", "S"], &["A"]), product];
            let expected = apart(13, &nodes, &constants, [x, &[3, 4], &[3, 2]]);
            let found = run(13, &nodes, &constants, x, &[3, 2]);
            assert_near(&found, &expected, &format!("{operator} {x:?} {}", nodes[1].op_type));
        }
    }
}

#[test]
fn outputs_that_are_left_out_by_an_empty_name_are_not_there() {
    let pool = with_ints(node("MaxPool", &["X"], &["Y"]), "kernel_shape", &[1, 1]);
    let norm = node("LayerNormalization", &["X", "W"], &["Y"]);
    let weights = [floats("W", &[2], &[1.0, 1.0])];
    for node in [node("Dropout", &["X"], &["Y"]), pool, norm, node("Relu", &["X"], &["Y"])] {
        let found = [0, 1, 2].map(|left_out| {
            let mut node = node.clone();
            node.output.extend(vec![String::new(); left_out]);
            run(17, &[node], &weights, &[1, 1, 1, 2], &[1, 1, 1, 2])
        });
        assert!(found.iter().all(|other| *other == found[0]), "{}: {found:?}", node.op_type);
    }
}

#[test]
fn operators_that_onnx_and_onnx_runtime_define_differently_are_refused() {
    let pool = with_int(with_ints(node("MaxPool", &["X"], &["Y"]), "kernel_shape", &[3]), "ceil_mode", 1);
    let resize = with_text(
        node("Resize", &["X", "", "scales"], &["Y"]),
        "coordinate_transformation_mode",
        "align_corners",
    );
    let gaps = |operator, dilations: &[i64]| {
        with_ints(with_ints(node(operator, &["X"], &["Y"]), "kernel_shape", &[2]), "dilations", dilations)
    };
    let dropout = |outputs: &[&str]| node("Dropout", &["X"], outputs);
    let refused = |version, nodes: Vec<NodeProto>, element| {
        let scales = floats("scales", &[3], &[1.0, 1.0, 1.5]);
        let dims = [1, 1, -1];
        let (inputs, outputs) =
            (vec![port("X", Element::Float, &[1, 1, 5])], vec![port("Y", element, &dims)]);
        let data_type = if element == Element::Bool { DataType::Bool } else { DataType::Fp32 };
        let config = config(0, &[("X", DataType::Fp32, &[1, 1, 5])], &[("Y", data_type, &dims)]);
        let file = file_of_version(graph(inputs, nodes, outputs, vec![scales]), version);
        try_serve(&file, config).map(drop).map_err(|error| error.message().to_owned())
    };
    for (version, nodes, element, reason) in [
        (13, vec![with_text(pool.clone(), "auto_pad", "VALID")], Element::Float, "ceil_mode"),
        (13, vec![with_text(gaps("MaxPool", &[2]), "auto_pad", "SAME_UPPER")], Element::Float, "dilations"),
        (13, vec![with_text(gaps("MaxPool", &[3]), "auto_pad", "SAME_LOWER")], Element::Float, "dilations"),
        (
            19,
            vec![with_text(gaps("AveragePool", &[2]), "auto_pad", "SAME_UPPER")],
            Element::Float,
            "dilations",
        ),
        (13, vec![resize], Element::Float, "not a whole number"),
        (11, vec![dropout(&["Z", "Y"])], Element::Bool, "mask"),
        (11, vec![dropout(&["Z", "M"]), node("Identity", &["M"], &["Y"])], Element::Bool, "mask"),
    ] {
        let message = refused(version, nodes, element).unwrap_err();
        assert!(message.contains(reason), "{message}");
    }
    refused(13, vec![pool], Element::Float).unwrap();
    for (kernel, stride, serves) in
        [(1, 1, true), (1, 2, true), (1, 3, false), (2, 3, true), (3, 4, true), (1, 4, true), (2, 6, false)]
    {
        for operator in ["MaxPool", "AveragePool"] {
            let pool = with_ints(node(operator, &["X"], &["Y"]), "kernel_shape", &[kernel]);
            let pool = with_text(with_ints(pool, "strides", &[stride]), "auto_pad", "SAME_UPPER");
            let outcome = refused(13, vec![pool], Element::Float);
            assert_eq!(outcome.is_ok(), serves, "{operator} {kernel} {stride}: {outcome:?}");
            assert!(serves || outcome.is_err_and(|message| message.contains("leaves out the end")));
        }
    }
    for padding in ["VALID", "NOTSET"] {
        refused(13, vec![with_text(gaps("MaxPool", &[2]), "auto_pad", padding)], Element::Float).unwrap();
    }
    refused(13, vec![with_text(gaps("MaxPool", &[1]), "auto_pad", "SAME_UPPER")], Element::Float).unwrap();
    refused(11, vec![dropout(&["Y", "M"])], Element::Float).unwrap();
    refused(13, vec![dropout(&["Z", "Y"])], Element::Bool).unwrap();
}

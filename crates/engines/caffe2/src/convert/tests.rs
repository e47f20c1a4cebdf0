//! The conversion of inputs, outputs and names, and the refused nets. The engine's tests cover the results of
//! operators.

use super::*;
use crate::caffe2::Argument;

fn operator(kind: &str, input: &[&str], output: &[&str], arg: Vec<Argument>) -> OperatorDef {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    OperatorDef { input: names(input), output: names(output), r#type: kind.to_owned(), arg }
}

fn int(name: &str, value: i64) -> Argument {
    Argument { name: name.to_owned(), i: Some(value), ..Argument::default() }
}

fn ints(name: &str, values: &[i64]) -> Argument {
    Argument { name: name.to_owned(), ints: values.to_vec(), ..Argument::default() }
}

/// An operator that fills a blob with zeros.
fn zeros(blob: &str, shape: &[i64]) -> OperatorDef {
    operator("ConstantFill", &[], &[blob], vec![ints("shape", shape)])
}

fn net(op: Vec<OperatorDef>, external_input: &[&str], external_output: &[&str]) -> NetDef {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NetDef {
        op,
        external_input: names(external_input),
        external_output: names(external_output),
        ..NetDef::default()
    }
}

fn input(name: &str, dims: &[i64]) -> Input {
    let dims = dims.iter().map(|&dim| (dim >= 0).then_some(dim)).collect();
    Input { name: name.to_owned(), element: Element::Float, dims: Some(dims) }
}

fn onnx(init: Vec<OperatorDef>, net: NetDef, given: &[Input]) -> Result<GraphProto, NetDefError> {
    let nets = Nets::read(&NetDef { op: init, ..NetDef::default() }.encode_to_vec(), &net.encode_to_vec())?;
    Ok(ModelProto::decode(nets.to_onnx(given)?.as_slice()).unwrap().graph.unwrap())
}

fn names(infos: &[ValueInfoProto]) -> Vec<&str> {
    infos.iter().map(|info| info.name.as_str()).collect()
}

fn dims(info: &ValueInfoProto) -> Vec<i64> {
    let tensor = info.r#type.as_ref().and_then(|it| it.tensor_type.as_ref()).unwrap();
    let dim = |dim: &DimensionProto| match dim.value {
        Some(DimensionValue::Size(size)) => size,
        _ => -1,
    };
    tensor.shape.as_ref().unwrap().dim.iter().map(dim).collect()
}

#[track_caller]
fn refused(init: Vec<OperatorDef>, net: NetDef, given: &[Input], expected: &str) {
    let error = onnx(init, net, given).unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[test]
fn unfilled_blobs_become_inputs_in_net_order() {
    let ops =
        || vec![operator("Add", &["b", "a"], &["s"], vec![]), operator("Mul", &["s", "w"], &["y"], vec![])];
    let inputs = [input("a", &[2]), input("b", &[2]), input("unused", &[1])];
    let graph =
        onnx(vec![zeros("w", &[2])], net(ops(), &["a", "unused", "b", "w"], &["y"]), &inputs).unwrap();
    assert_eq!((names(&graph.input), names(&graph.output)), (vec!["a", "b"], vec!["y"]));
    assert_eq!(graph.initializer.len(), 1);
}

#[test]
fn caller_input_replaces_a_filled_blob() {
    let ops = vec![operator("Relu", &["data"], &["y"], vec![])];
    let filled = || vec![zeros("data", &[1])];
    let graph = onnx(filled(), net(ops.clone(), &["data"], &["y"]), &[input("data", &[-1, 3])]).unwrap();
    assert_eq!((names(&graph.input), dims(&graph.input[0])), (vec!["data"], vec![-1, 3]));
    let graph = onnx(filled(), net(ops, &["data"], &["y"]), &[]).unwrap();
    assert!(graph.input.is_empty());
}

#[test]
fn input_is_inferred_from_its_readers_weights() {
    let conv = |more: Vec<Argument>| {
        let arguments = [vec![int("kernel", 3)], more].concat();
        vec![operator("Conv", &["x", "w"], &["y"], arguments)]
    };
    let nhwc = Argument { name: "order".into(), s: Some(b"NHWC".to_vec()), ..Argument::default() };
    for (weights, ops, expected) in [
        (&[4, 3, 3, 3][..], conv(vec![]), &[-1, 3, -1, -1][..]),
        (&[4, 3, 3, 3], conv(vec![int("group", 2)]), &[-1, 6, -1, -1]),
        (&[4, 3, 3, 5], conv(vec![nhwc]), &[-1, -1, -1, 5]),
        (&[4, 7], vec![operator("FC", &["x", "w", "b"], &["y"], vec![])], &[-1, 7]),
        (&[7, 4], vec![operator("FCTransposed", &["x", "w", "b"], &["y"], vec![])], &[-1, 7]),
    ] {
        let init = vec![zeros("w", weights), zeros("b", &[4])];
        let graph = onnx(init, net(ops, &["x", "w", "b"], &["y"]), &[]).unwrap();
        assert_eq!(dims(&graph.input[0]), expected, "{weights:?}");
    }
    let ops = vec![operator("Relu", &["x"], &["y"], vec![])];
    refused(
        vec![],
        net(ops, &["x"], &["y"]),
        &[],
        "a NetDef declares neither type nor dimensions of its input 'x', and they do not follow from the operator that reads \
         it: list it in the configuration",
    );
}

#[test]
fn overwritten_blob_becomes_a_new_tensor() {
    let ops = vec![
        operator("Exp", &["x"], &["y"], vec![]),
        operator("Relu", &["y"], &["y"], vec![]),
        operator("Tanh", &["y"], &["y"], vec![]),
    ];
    let graph = onnx(vec![], net(ops, &["x"], &["y"]), &[input("x", &[2])]).unwrap();
    let made: Vec<_> = graph.node.iter().flat_map(|node| &node.output).collect();
    let unique: HashSet<_> = made.iter().collect();
    assert_eq!((made.len(), unique.len()), (4, 4));
    assert_eq!(made[3], "y");
    for pair in graph.node.windows(2) {
        assert_eq!(pair[1].input[0], pair[0].output[0]);
    }
}

#[test]
fn generated_names_avoid_blob_names() {
    let ops = vec![operator("Exp", &["x"], &["y"], vec![]), operator("Relu", &["y"], &["y/1"], vec![])];
    let graph = onnx(vec![], net(ops, &["x"], &["y/1", "y"]), &[input("x", &[2])]).unwrap();
    let made: Vec<_> = graph.node.iter().flat_map(|node| &node.output).collect();
    assert_eq!(made.iter().collect::<HashSet<_>>().len(), made.len(), "{made:?}");
    assert_eq!(names(&graph.output), ["y/1", "y"]);
}

#[test]
fn all_unknown_operators_are_reported() {
    let ops = vec![
        operator("RoIAlign", &["x"], &["a"], vec![]),
        operator("Relu", &["a"], &["b"], vec![]),
        operator("GenerateProposals", &["b"], &["y"], vec![]),
        operator("RoIAlign", &["y"], &["z"], vec![]),
    ];
    let init = vec![operator("XavierFill", &[], &["w"], vec![ints("shape", &[2])])];
    refused(
        init,
        net(ops, &["x"], &["z"]),
        &[input("x", &[2])],
        "these operators have no counterpart in ONNX: GenerateProposals, RoIAlign, XavierFill",
    );
}

#[test]
fn unsupported_forms_are_refused_with_the_operator() {
    let refuses = |kind: &str, arguments: Vec<Argument>, expected: &str| {
        let ops = vec![operator(kind, &["x", "x", "x", "x", "x"][..inputs(kind)], &["y"], arguments)];
        let expected = format!("operator {kind}, which computes 'y': {expected}");
        refused(vec![], net(ops, &["x"], &["y"]), &[input("x", &[2, 4])], &expected);
    };
    fn inputs(kind: &str) -> usize {
        match kind {
            "SpatialBN" => 5,
            "Add" | "Conv" | "Gather" => 2,
            _ => 1,
        }
    }
    refuses("Relu", vec![int("cap", 6)], "argument 'cap' has no counterpart in ONNX");
    refuses("Dropout", vec![], "it is for training: is_test is not set");
    refuses("SpatialBN", vec![], "it is for training: is_test is not set");
    refuses("Conv", vec![], "it has no kernel");
    refuses(
        "Conv",
        vec![ints("kernels", &[0, 1])],
        "kernel, strides, dilations and pads do not fit together",
    );
    refuses(
        "Conv",
        vec![int("kernel", 3), ints("pads", &[1])],
        "kernel, strides, dilations and pads do not fit together",
    );
    refuses(
        "Conv",
        vec![int("kernel", 3), int("legacy_pad", 3)],
        "legacy_pad CAFFE_LEGACY_POOLING is for pools",
    );
    refuses("Conv", vec![int("kernel", 3), int("legacy_pad", 9)], "unknown legacy_pad 9");
    refuses("MaxPool", vec![int("kernel", 3), int("dilation", 2)], "dilations have no counterpart in ONNX");
    refuses("Add", vec![int("axis", 1)], "it has an axis, but no 'broadcast'");
    refuses("Softmax", vec![int("axis", 2)], "axis 2 of a tensor with 2 dimensions");
    refuses("Transpose", vec![ints("axes", &[0, 0])], "its axes are not an order of 2 dimensions");
    refuses("LRN", vec![int("size", 4)], "its size is 4, but must be odd");
    refuses("Cast", vec![int("to", 99)], "it casts to a type without a counterpart in ONNX");
    refuses("Reshape", vec![], "it has no shape");
    refuses("TopK", vec![], "its k is -1");
    refuses("Slice", vec![ints("starts", &[0])], "starts and ends do not fit together");
    refuses("GivenTensorFill", vec![], "it has 1 inputs, but ONNX supports at most 0");
}

#[test]
fn uncomputed_outputs_are_refused() {
    let ops = || vec![operator("Relu", &["x"], &["y"], vec![])];
    let x = [input("x", &[2])];
    refused(vec![], net(ops(), &["x"], &["z"]), &x, "the net's output 'z' is not computed by any operator");
    refused(vec![], net(ops(), &["x"], &["x"]), &x, "the net's output 'x' has the name of an input");
    refused(vec![], net(ops(), &["x"], &[]), &x, "the net has no outputs");
    let broken = Nets::read(b"", b"\xff").unwrap_err().to_string();
    assert!(broken.starts_with("the net is not a complete NetDef: "), "{broken}");
}

#[test]
fn fill_with_wrong_value_count_is_refused() {
    let filled = |shape: &[i64], values: usize| {
        let values = Argument { name: "values".into(), floats: vec![0.5; values], ..Argument::default() };
        let fill = operator("GivenTensorFill", &[], &["w"], vec![ints("shape", shape), values]);
        let ops = vec![operator("Add", &["x", "w"], &["y"], vec![])];
        onnx(vec![fill], net(ops, &["x", "w"], &["y"]), &[input("x", &[2])]).map(|_| ())
    };
    filled(&[2, 3], 6).unwrap();
    filled(&[], 1).unwrap();
    for (shape, values) in [(&[2, 3][..], 5), (&[-1], 1), (&[1 << 40, 1 << 40], 1), (&[0], 1)] {
        assert!(filled(shape, values).is_err(), "{shape:?}");
    }
}

#[test]
fn growth_of_dimensions_is_limited() {
    let mut ops: Vec<_> = (0..40)
        .map(|at| operator("Gather", &[format!("b{at}").as_str(); 2], &[&format!("b{}", at + 1)], vec![]))
        .collect();
    ops.push(operator("Relu", &["b40"], &["y"], vec![]));
    let error = onnx(vec![], net(ops, &["b0"], &["y"]), &[input("b0", &[2, 2])]).unwrap_err().to_string();
    assert!(error.ends_with("a tensor with more than 64 dimensions"), "{error}");
}

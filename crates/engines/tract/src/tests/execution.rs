//! Results of valid models, and what a failure affects.

use bytes::Bytes;
use nereid_backend_api::{Buffer, DataType, ErrorCode, Tensor};
use tract_onnx::pb::AttributeProto;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{add, file, floats, graph, identity, ints, node, port, with_int, with_ints};
use super::server::{config, refusal, serve};
use super::{fp32, fp32_output, strings, text_output};

#[test]
fn every_element_type_comes_back_as_it_went_in() {
    let types = [
        (DataType::Uint8, Element::Uint8),
        (DataType::Uint16, Element::Uint16),
        (DataType::Uint32, Element::Uint32),
        (DataType::Uint64, Element::Uint64),
        (DataType::Int8, Element::Int8),
        (DataType::Int16, Element::Int16),
        (DataType::Int32, Element::Int32),
        (DataType::Int64, Element::Int64),
        (DataType::Fp16, Element::Float16),
        (DataType::Fp32, Element::Float),
        (DataType::Fp64, Element::Double),
    ];
    for (data_type, element) in types {
        let dims = [2, 3];
        let config = config(0, &[("X", data_type, &dims)], &[("Y", data_type, &dims)]);
        let mut model = serve(&identity(element, &dims), config);
        // Bytes as wild as can be: a NaN must come back bit by bit too.
        let contents: Vec<u8> =
            (0..6 * data_type.byte_size().unwrap()).map(|at| (at * 37 + 251) as u8).collect();
        let response = model.infer(vec![Tensor::new("X", data_type, dims, contents.clone())]).unwrap();
        let [output] = response.outputs.as_slice() else { panic!("{response:?}") };
        assert_eq!((output.name.as_str(), output.data_type), ("Y", data_type));
        assert_eq!(output.shape[..], dims);
        assert_eq!(*output.contiguous().unwrap(), contents, "{data_type}");
    }
}

#[test]
fn nodes_that_no_output_needs_are_left_out() {
    let constants = [
        ints("zero", &[], &[0]),
        ints("one", &[], &[1]),
        ints("huge", &[], &[1 << 40]),
        ints("nothing", &[0], &[]),
        floats("values", &[2], &[0.0, 1.0]),
    ];
    // Each ends the process, takes all memory or fails if the engine looks at it.
    for unneeded in [
        node("OneHot", &["X", "nothing", "values"], &["Z"]),
        node("TopK", &["X", "nothing"], &["Z"]),
        node("Range", &["zero", "huge", "one"], &["Z"]),
        node("MatMul", &["X", "values"], &["Z"]),
    ] {
        let inputs = vec![port("X", Element::Float, &[3])];
        let outputs = vec![port("Y", Element::Float, &[3]), port("Z", Element::Float, &[-1])];
        let of_both = vec![node("Add", &["Z", "Y"], &["W"]), node("Neg", &["X"], &["Y"]), unneeded];
        let file = file(graph(inputs, of_both, outputs, constants.to_vec()));
        let x = ("X", DataType::Fp32, [3].as_slice());
        let mut model = serve(&file, config(0, &[x], &[("Y", DataType::Fp32, &[3])]));
        let response = model.infer(vec![fp32("X", &[3], &[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(fp32_output(&response), (vec![3], vec![-1.0, -2.0, -3.0]));
    }
}

#[test]
fn inputs_that_would_take_the_engine_any_memory_or_time_are_refused() {
    const MANY: i64 = 1 << 30;
    let pool = |kernel: &[i64]| with_ints(node("MaxPool", &["X"], &["Y"]), "kernel_shape", kernel);
    let parts = |operator, attribute| with_int(node(operator, &["X"], &["Y"]), attribute, MANY);
    let tile = || node("Tile", &["X", "numbers"], &["Y"]);
    let resize = || node("Resize", &["X", "", "", "numbers"], &["Y"]);
    let too_much = "bytes to compute, and 4294967296 is the limit";
    for (node, numbers, shape, reason) in [
        (tile(), vec![MANY, MANY, 1], vec![1, 1, 0], "a tensor would take more than"),
        // The input has no elements, or the output has none, and what is between would be huge.
        (tile(), vec![MANY, 1, 8], vec![0, 1, 1], too_much),
        (tile(), vec![MANY, 0, 1], vec![1, 8, 1], too_much),
        (tile(), vec![-1, 1, 1], vec![0, 1, 1], "cannot be repeated"),
        (resize(), vec![1 << 20, 1, 1], vec![1, 4096, 1], too_much),
        (resize(), vec![1, 1, MANY / 2], vec![1, 1, 1], too_much),
        (pool(&[MANY]), vec![], vec![1, 1, 1], "is larger than a dimension of 1"),
        (
            with_ints(pool(&[1 << 15, 1 << 15]), "pads", &[1 << 15; 4]),
            vec![],
            vec![1, 1, 2, 2],
            "nothing but its padding",
        ),
        (with_ints(pool(&[1 << 15]), "pads", &[1 << 14; 2]), vec![], vec![1, 1, 1 << 15], too_much),
        (
            parts("DepthToSpace", "blocksize"),
            vec![],
            vec![1, 4, 0, 2],
            "the parts that blocksize 1073741824 asks for",
        ),
        (
            parts("SpaceToDepth", "blocksize"),
            vec![],
            vec![1, 4, 0, 0],
            "the parts that blocksize 1073741824 asks for",
        ),
    ] {
        let dims = vec![-1; shape.len()];
        let (x, y) = (port("X", Element::Float, &dims), port("Y", Element::Float, &dims));
        let config = config(0, &[("X", DataType::Fp32, &dims)], &[("Y", DataType::Fp32, &dims)]);
        let constants = vec![ints("numbers", &[numbers.len() as i64], &numbers)];
        let what = format!("{} {numbers:?} {shape:?}", node.op_type);
        let mut model = serve(&file(graph(vec![x], vec![node], vec![y], constants)), config);
        let values = vec![0.0; shape.iter().product::<i64>() as usize];
        let error = model.infer(vec![fp32("X", &shape, &values)]).unwrap_err();
        assert!(error.message().contains(reason), "{what}: {error}");
    }
}

#[test]
fn a_tensor_has_at_most_64_dimensions() {
    let shape = |name: &str, count: usize| ints(name, &[count as i64], &vec![1; count]);
    let axes = |name: &str, count: usize| ints(name, &[count as i64], &(0..count as i64).collect::<Vec<_>>());
    let port = |name, dims: &[i64]| port(name, Element::Float, dims);
    for dimensions in [2_usize, 63, 64, 65, 100, 100_000] {
        let half = dimensions.div_ceil(2);
        let many = vec![1; dimensions];
        for (x, nodes, constant) in [
            (&[1][..], vec![node("Reshape", &["X", "many"], &["W"])], shape("many", dimensions)),
            (&[1], vec![node("Expand", &["X", "many"], &["W"])], shape("many", dimensions)),
            (
                &[1],
                vec![node("ConstantOfShape", &["many"], &["zeros"]), node("Add", &["X", "zeros"], &["W"])],
                shape("many", dimensions),
            ),
            (&[1], vec![node("Unsqueeze", &["X", "axes"], &["W"])], axes("axes", dimensions - 1)),
            (
                &[1; 2],
                vec![node("Unsqueeze", &["X", "axes"], &["V"]), node("Unsqueeze", &["V", "axes"], &["W"])],
                axes("axes", half - 1),
            ),
            (&many, vec![node("Reshape", &["X", "one"], &["W"])], floats("unused", &[1], &[0.0])),
            (
                &[1],
                vec![node("Reshape", &["zero", "one"], &["flat"]), node("Add", &["X", "flat"], &["W"])],
                floats("zero", &many, &[0.0]),
            ),
        ] {
            let what = format!("{nodes:?}: {dimensions}");
            let nodes = [nodes, vec![node("Reshape", &["W", "one"], &["Y"])]].concat();
            let constants = vec![constant, shape("one", 1)];
            let file = file(graph(vec![port("X", x)], nodes, vec![port("Y", &[1])], constants));
            let config = config(0, &[("X", DataType::Fp32, x)], &[("Y", DataType::Fp32, &[1])]);
            if dimensions <= 64 {
                let response = serve(&file, config).infer(vec![fp32("X", x, &[7.0])]).unwrap();
                assert_eq!(fp32_output(&response), (vec![1], vec![7.0]), "{what}");
            } else {
                let message = refusal(&file, config);
                assert!(message.contains("dimensions, and 64 are the most"), "{what}: {message}");
            }
        }
    }
}

#[test]
fn an_output_of_the_model_has_at_most_64_dimensions_too() {
    let dims = [1; 65];
    let axes = ints("axes", &[63], &Vec::from_iter(0..63));
    let port = |name, dims: &[i64]| port(name, Element::Float, dims);
    let nodes = vec![node("Unsqueeze", &["X", "axes"], &["Y"])];
    let file = file(graph(vec![port("X", &[1, 1])], nodes, vec![port("Y", &dims)], vec![axes]));
    let config = config(0, &[("X", DataType::Fp32, &[1, 1])], &[("Y", DataType::Fp32, &dims)]);
    let message = refusal(&file, config);
    assert!(message.contains("65 dimensions, and 64 are the most"), "{message}");
}

#[test]
fn a_value_to_pad_with_counts_in_constant_mode_only() {
    for (mode, expected) in [
        ("constant", [9.0, 9.0, 1.0, 2.0, 3.0, 9.0]),
        ("edge", [1.0, 1.0, 1.0, 2.0, 3.0, 3.0]),
        ("reflect", [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]),
    ] {
        let mut pad = node("Pad", &["X", "pads", "value"], &["Y"]);
        let r#type = AttributeType::String as i32;
        let mode = mode.as_bytes().to_vec();
        pad.attribute.push(AttributeProto {
            name: "mode".into(),
            r#type,
            s: mode.clone(),
            ..Default::default()
        });
        let constants = vec![ints("pads", &[2], &[2, 1]), floats("nine", &[], &[9.0])];
        // A node that makes the value is left out where it does not count.
        let nodes = vec![node("Identity", &["nine"], &["value"]), pad];
        let (x, y) = (port("X", Element::Float, &[3]), port("Y", Element::Float, &[6]));
        let config = config(0, &[("X", DataType::Fp32, &[3])], &[("Y", DataType::Fp32, &[6])]);
        let mut model = serve(&file(graph(vec![x], nodes, vec![y], constants)), config);
        let response = model.infer(vec![fp32("X", &[3], &[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(fp32_output(&response).1, expected, "{mode:?}");
    }
}

#[test]
fn a_bool_is_0_or_1_whatever_the_client_sends() {
    let mut model = serve(
        &identity(Element::Bool, &[-1]),
        config(0, &[("X", DataType::Bool, &[-1])], &[("Y", DataType::Bool, &[-1])]),
    );
    let response = model.infer(vec![Tensor::new("X", DataType::Bool, [4], vec![0, 1, 2, 255])]).unwrap();
    assert_eq!(*response.outputs[0].contiguous().unwrap(), [0, 1, 1, 1]);
}

#[test]
fn strings_come_back_and_only_a_request_with_other_bytes_fails() {
    let mut model = serve(
        &identity(Element::String, &[-1, 2]),
        config(8, &[("X", DataType::Bytes, &[2])], &[("Y", DataType::Bytes, &[2])]),
    );
    let mut answers = model.execute(vec![
        (vec![strings("X", &[1, 2], &["grüße".as_bytes(), b""])], &[]),
        (vec![strings("X", &[1, 2], &[b"fine", b"\xff"])], &[]),
        (vec![strings("X", &[2, 2], &[b"a", b"b", b"c", b"d"])], &[]),
    ]);
    let last = answers.pop().unwrap().unwrap();
    assert_eq!(last.outputs[0].shape[..], [2, 2]);
    assert_eq!(text_output(&last), ["a", "b", "c", "d"]);
    let error = answers.pop().unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(error.message().contains("input 'X': element 1 is not UTF-8 text"), "{error}");
    assert_eq!(text_output(&answers.pop().unwrap().unwrap()), ["grüße", ""]);
}

#[test]
fn a_batch_is_joined_run_once_and_cut_apart() {
    let mut model = serve(
        &add(&[-1, 2]),
        config(
            8,
            &[("X", DataType::Fp32, &[2]), ("Y", DataType::Fp32, &[2])],
            &[("Z", DataType::Fp32, &[2])],
        ),
    );
    let request = |rows: i64, base: f32| {
        let values: Vec<f32> = (0..rows * 2).map(|at| base + at as f32).collect();
        (vec![fp32("Y", &[rows, 2], &values), fp32("X", &[rows, 2], &values)], [].as_slice())
    };
    let answers = model.execute(vec![request(1, 10.0), request(3, 100.0), request(1, -1.0)]);
    let outputs: Vec<_> = answers.iter().map(|answer| fp32_output(answer.as_ref().unwrap())).collect();
    assert_eq!(outputs[0], (vec![1, 2], vec![20.0, 22.0]));
    assert_eq!(outputs[1], (vec![3, 2], vec![200.0, 202.0, 204.0, 206.0, 208.0, 210.0]));
    assert_eq!(outputs[2], (vec![1, 2], vec![-2.0, 0.0]));
    assert_eq!(*model.monitor.sizes.lock().unwrap(), [5]);
}

#[test]
fn requests_whose_items_differ_in_shape_are_answered_each_for_itself() {
    let mut model = serve(
        &identity(Element::Float, &[-1, -1]),
        config(8, &[("X", DataType::Fp32, &[-1])], &[("Y", DataType::Fp32, &[-1])]),
    );
    let answers = model.execute(vec![
        (vec![fp32("X", &[1, 1], &[1.0])], &[]),
        (vec![fp32("X", &[1, 2], &[2.0, 3.0])], &[]),
        (vec![fp32("X", &[1, 1], &[4.0])], &[]),
    ]);
    let outputs: Vec<_> = answers.iter().map(|answer| fp32_output(answer.as_ref().unwrap())).collect();
    assert_eq!(outputs, [(vec![1, 1], vec![1.0]), (vec![1, 2], vec![2.0, 3.0]), (vec![1, 1], vec![4.0])]);
}

#[test]
fn without_batching_each_request_runs_alone() {
    let mut model = serve(
        &identity(Element::Float, &[-1]),
        config(0, &[("X", DataType::Fp32, &[-1])], &[("Y", DataType::Fp32, &[-1])]),
    );
    let answers = model
        .execute(vec![(vec![fp32("X", &[2], &[1.0, 2.0])], &[]), (vec![fp32("X", &[2], &[3.0, 4.0])], &[])]);
    let outputs: Vec<_> = answers.iter().map(|answer| fp32_output(answer.as_ref().unwrap()).1).collect();
    assert_eq!(outputs, [[1.0, 2.0], [3.0, 4.0]]);
}

#[test]
fn contents_in_several_pieces_are_joined() {
    let mut model = serve(
        &identity(Element::Float, &[2]),
        config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]),
    );
    let mut input = fp32("X", &[2], &[1.5, -2.5]);
    let whole = Bytes::from(input.contiguous().unwrap().into_owned());
    input.buffers = [0..3, 3..3, 3..8].map(|piece| Buffer::host(whole.slice(piece))).into_iter().collect();
    assert_eq!(fp32_output(&model.infer(vec![input]).unwrap()).1, [1.5, -2.5]);
}

#[test]
fn a_convolution_runs_on_any_batch_and_any_size() {
    let inputs = vec![port("X", Element::Float, &[-1, 1, -1, -1])];
    let nodes = vec![
        with_ints(node("Conv", &["X", "K"], &["C"]), "kernel_shape", &[2, 2]),
        node("Relu", &["C"], &["Y"]),
    ];
    let outputs = vec![port("Y", Element::Float, &[-1, 1, -1, -1])];
    let kernel = vec![floats("K", &[1, 1, 2, 2], &[1.0, 0.0, 0.0, -1.0])];
    let mut model = serve(
        &file(graph(inputs, nodes, outputs, kernel)),
        config(4, &[("X", DataType::Fp32, &[1, -1, -1])], &[("Y", DataType::Fp32, &[1, -1, -1])]),
    );
    let response = model.infer(vec![fp32("X", &[1, 1, 2, 2], &[9.0, 0.0, 0.0, 4.0])]).unwrap();
    assert_eq!(fp32_output(&response), (vec![1, 1, 1, 1], vec![5.0]));
    let values = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let response = model.infer(vec![fp32("X", &[2, 1, 2, 3], &values)]).unwrap();
    assert_eq!(fp32_output(&response), (vec![2, 1, 1, 2], vec![4.0, 4.0, 0.0, 0.0]));
}

#[test]
fn a_matrix_product_runs_on_any_batch() {
    let inputs = vec![port("X", Element::Float, &[-1, 2])];
    let outputs = vec![port("Y", Element::Float, &[-1, 3])];
    let weights = vec![floats("W", &[2, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0])];
    let mut model = serve(
        &file(graph(inputs, vec![node("MatMul", &["X", "W"], &["Y"])], outputs, weights)),
        config(64, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[3])]),
    );
    for rows in [1, 2, 5, 64, 1] {
        let values: Vec<f32> = (0..rows).flat_map(|row| [row as f32, 1.0]).collect();
        let (shape, values) = fp32_output(&model.infer(vec![fp32("X", &[rows, 2], &values)]).unwrap());
        assert_eq!(shape, [rows, 3]);
        let last = (rows - 1) as f32;
        assert_eq!(values[values.len() - 3..], [last + 10.0, 2.0 * last + 20.0, 3.0 * last + 30.0]);
    }
}

#[test]
fn dimensions_that_the_engine_computes_come_out_as_int64() {
    let inputs = vec![port("X", Element::Float, &[-1, -1])];
    let file = file(graph(
        inputs,
        vec![node("Shape", &["X"], &["Y"])],
        vec![port("Y", Element::Int64, &[2])],
        vec![],
    ));
    let mut model =
        serve(&file, config(0, &[("X", DataType::Fp32, &[-1, -1])], &[("Y", DataType::Int64, &[2])]));
    let response = model.infer(vec![fp32("X", &[2, 3], &[0.0; 6])]).unwrap();
    assert_eq!(response.outputs[0].data_type, DataType::Int64);
    assert_eq!(*response.outputs[0].contiguous().unwrap(), [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_scalar_goes_by_its_configured_dimensions() {
    let mut model = serve(
        &add(&[]),
        config(
            0,
            &[("X", DataType::Fp32, &[1]), ("Y", DataType::Fp32, &[1])],
            &[("Z", DataType::Fp32, &[1])],
        ),
    );
    let response = model.infer(vec![fp32("X", &[1], &[2.0]), fp32("Y", &[], &[3.0])]).unwrap();
    assert_eq!(fp32_output(&response), (vec![1], vec![5.0]));
}

#[test]
fn an_empty_tensor_runs() {
    let mut model = serve(
        &add(&[-1, 2]),
        config(
            0,
            &[("X", DataType::Fp32, &[-1, 2]), ("Y", DataType::Fp32, &[-1, 2])],
            &[("Z", DataType::Fp32, &[-1, 2])],
        ),
    );
    let response = model.infer(vec![fp32("X", &[0, 2], &[]), fp32("Y", &[0, 2], &[])]).unwrap();
    assert_eq!(fp32_output(&response), (vec![0, 2], vec![]));
    let mut model = serve(
        &identity(Element::String, &[-1]),
        config(0, &[("X", DataType::Bytes, &[-1])], &[("Y", DataType::Bytes, &[-1])]),
    );
    let response = model.infer(vec![strings("X", &[0], &[])]).unwrap();
    assert_eq!((&response.outputs[0].shape[..], response.outputs[0].byte_size()), ([0].as_slice(), 0));
}

#[test]
fn a_shape_that_no_memory_holds_is_refused() {
    let mut model = serve(
        &identity(Element::Float, &[-1, -1]),
        config(0, &[("X", DataType::Fp32, &[-1, -1])], &[("Y", DataType::Fp32, &[-1, -1])]),
    );
    for shape in [[1 << 62, 1 << 62], [i64::MAX, 1], [-1, 3], [1 << 40, 1 << 10], [1 << 62, 0]] {
        let error = model.infer(vec![fp32("X", &shape, &[])]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg, "{error}");
    }
    assert!(model.monitor.sizes.lock().unwrap().is_empty(), "nothing was executed");
}

#[test]
fn only_wanted_outputs_are_given_and_only_configured_ones_exist() {
    let inputs = vec![port("X", Element::Float, &[-1, 1])];
    let names = ["A", "B", "C"];
    let nodes = vec![node("Neg", &["X"], &["A"]), node("Abs", &["X"], &["B"]), node("Exp", &["X"], &["C"])];
    let outputs = names.map(|name| port(name, Element::Float, &[-1, 1])).to_vec();
    let configured = ["B", "A"].map(|name| (name, DataType::Fp32, [1].as_slice()));
    let mut model = serve(
        &file(graph(inputs, nodes, outputs, vec![])),
        config(8, &[("X", DataType::Fp32, &[1])], &configured),
    );
    let input = || vec![fp32("X", &[1, 1], &[-2.0])];
    let answers = model.execute(vec![(input(), &[]), (input(), &["A"]), (input(), &["B"])]);
    let given: Vec<Vec<_>> = answers
        .iter()
        .map(|answer| {
            let outputs = &answer.as_ref().unwrap().outputs;
            outputs.iter().map(|it| (it.name.as_str(), it.contiguous().unwrap().into_owned())).collect()
        })
        .collect();
    let positive = 2.0_f32.to_le_bytes().to_vec();
    let [a, b] = [("A", positive.clone()), ("B", positive)];
    // In the order of the names, not of the configuration.
    assert_eq!(given, [vec![a.clone(), b.clone()], vec![a], vec![b]]);
}

#[test]
fn a_request_that_does_not_fit_is_refused_by_what_is_wrong() {
    let mut model = serve(
        &identity(Element::Float, &[-1, 3]),
        config(8, &[("X", DataType::Fp32, &[3])], &[("Y", DataType::Fp32, &[3])]),
    );
    let mut refused = |input: Tensor| {
        let error = model.infer(vec![input]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        error.message().to_owned()
    };
    assert_eq!(
        refused(fp32("X", &[1, 4], &[0.0; 4])),
        "model 'm': input 'X' has shape [1,4], but the model takes [-1,3]"
    );
    assert_eq!(refused(fp32("W", &[1, 3], &[0.0; 3])), "model 'm': the request lacks input 'X'");
    assert_eq!(
        refused(Tensor::new("X", DataType::Int32, [1, 3], vec![0; 12])),
        "model 'm': input 'X' has datatype INT32, but the model takes FP32"
    );
    assert!(refused(fp32("X", &[1, 3], &[0.0; 2])).contains("has 8 bytes of data"));
    model.batch_size = |_| 2;
    let error = model.infer(vec![fp32("X", &[1, 3], &[0.0; 3])]).unwrap_err();
    assert!(error.message().contains("shape [1,3] in a request of batch size 2"), "{error}");
}

#[test]
fn an_output_that_is_no_batch_fails_with_its_name() {
    let inputs = vec![port("X", Element::Float, &[-1, 2])];
    let nodes = vec![with_int(node("ReduceSum", &["X"], &["Y"]), "keepdims", 1)];
    let mut model = serve(
        &file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1, 1])], vec![])),
        config(8, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[1])]),
    );
    let error = model.infer(vec![fp32("X", &[2, 2], &[0.0; 4])]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(error.message().contains("output 'Y' has shape [1,1]"), "{error}");
}

#[test]
fn a_failure_costs_its_own_batch_only() {
    let inputs = vec![port("D", Element::Float, &[-1, 3]), port("I", Element::Int64, &[-1, 1])];
    let nodes = vec![with_int(node("GatherElements", &["D", "I"], &["Y"]), "axis", 1)];
    let mut model = serve(
        &file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1, 1])], vec![])),
        config(
            8,
            &[("D", DataType::Fp32, &[3]), ("I", DataType::Int64, &[1])],
            &[("Y", DataType::Fp32, &[1])],
        ),
    );
    let request = |index: i64| {
        let index = Tensor::new("I", DataType::Int64, [1, 1], index.to_le_bytes().to_vec());
        (vec![fp32("D", &[1, 3], &[1.0, 2.0, 3.0]), index], [].as_slice())
    };
    for _ in 0..2 {
        for answer in model.execute(vec![request(1), request(1000)]) {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Internal);
            assert!(error.message().starts_with("model 'm': the embedded engine failed"), "{error}");
        }
        let answers = model.execute(vec![request(1), request(2)]);
        let outputs: Vec<_> = answers.iter().map(|it| fp32_output(it.as_ref().unwrap()).1).collect();
        assert_eq!(outputs, [[2.0], [3.0]]);
    }
}

#[test]
fn shapes_that_the_graph_cannot_take_fail_and_the_next_request_works() {
    let inputs = vec![port("A", Element::Float, &[-1, -1]), port("B", Element::Float, &[-1, -1])];
    let nodes = vec![node("MatMul", &["A", "B"], &["Y"])];
    let dims = [-1, -1];
    let mut model = serve(
        &file(graph(inputs, nodes, vec![port("Y", Element::Float, &dims)], vec![])),
        config(
            0,
            &[("A", DataType::Fp32, &dims), ("B", DataType::Fp32, &dims)],
            &[("Y", DataType::Fp32, &dims)],
        ),
    );
    let good = || vec![fp32("A", &[1, 2], &[1.0, 2.0]), fp32("B", &[2, 1], &[3.0, 4.0])];
    assert_eq!(fp32_output(&model.infer(good()).unwrap()).1, [11.0]);
    let bad = vec![fp32("A", &[1, 2], &[1.0, 2.0]), fp32("B", &[3, 1], &[3.0, 4.0, 5.0])];
    let error = model.infer(bad).unwrap_err();
    assert!(error.message().contains("cannot run it on inputs A [1,2], B [3,1]"), "{error}");
    assert_eq!(fp32_output(&model.infer(good()).unwrap()).1, [11.0]);
}

#[test]
fn an_addition_of_shapes_that_do_not_fit_fails() {
    let dims = [-1];
    let mut model = serve(
        &add(&dims),
        config(
            0,
            &[("X", DataType::Fp32, &dims), ("Y", DataType::Fp32, &dims)],
            &[("Z", DataType::Fp32, &dims)],
        ),
    );
    let error = model.infer(vec![fp32("X", &[3], &[1.0; 3]), fp32("Y", &[4], &[1.0; 4])]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
}

#[test]
fn a_recurrent_operator_forgets_one_request_before_the_next() {
    // One unit: h' = tanh(x + h).
    let (dims, weight) = ([-1, 1, 1], |name| floats(name, &[1, 1, 1], &[1.0]));
    let rnn = with_int(node("RNN", &["X", "W", "R"], &["", "Y"]), "hidden_size", 1);
    let mut model = serve(
        &file(graph(
            vec![port("X", Element::Float, &dims)],
            vec![rnn],
            vec![port("Y", Element::Float, &[1, 1, 1])],
            vec![weight("W"), weight("R")],
        )),
        config(0, &[("X", DataType::Fp32, &dims)], &[("Y", DataType::Fp32, &[1, 1, 1])]),
    );
    for start in [0.0_f32, 2.0, 0.0, -1.0, 2.0] {
        let (_, values) = fp32_output(&model.infer(vec![fp32("X", &[2, 1, 1], &[start, 0.5])]).unwrap());
        let expected = (start.tanh() + 0.5).tanh();
        assert!((values[0] - expected).abs() < 1e-5, "{values:?} instead of {expected}");
    }
}

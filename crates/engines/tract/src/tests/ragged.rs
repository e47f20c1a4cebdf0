//! Batches of requests that differ in shape: ragged inputs, batch inputs, outputs split by inputs.

use nereid_backend_api::{DataType, ErrorCode, ModelConfig, Response, Tensor};
use nereid_model_config::parse_text;
use tract_onnx::pb::ValueInfoProto;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file, floats, graph, ints, node, port, with_int};
use super::server::{refusal, serve};
use super::{fp32, fp32_output, strings, text_output};

const X: &str = r#"input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }"#;
const Y: &str = r#"output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }"#;

fn text(rest: &[&str]) -> ModelConfig {
    parse_text(&format!("max_batch_size: 8 {}", rest.join("\n"))).unwrap()
}

fn batch_input(kind: &str, target: &str, data_type: &str) -> String {
    format!(
        r#"batch_input {{ kind: {kind} target_name: "{target}" data_type: {data_type} source_input: "X" }}"#
    )
}

/// Y = [sum of each request's X], from all of X in a row and the bounds between requests.
fn segment_sums(bounds: ValueInfoProto) -> Vec<u8> {
    let inputs = vec![port("X", Element::Float, &[-1]), bounds];
    let constants = vec![
        ints("zero", &[], &[0]),
        ints("from", &[1], &[0]),
        ints("second", &[1], &[1]),
        ints("last", &[1], &[-1]),
        ints("end", &[1], &[i64::MAX]),
        ints("inner", &[1], &[1]),
        floats("nothing", &[1], &[0.0]),
    ];
    let nodes = vec![
        node("CumSum", &["X", "zero"], &["sums"]),
        with_int(node("Concat", &["nothing", "sums"], &["prefix"]), "axis", 0),
        node("Slice", &["BOUNDS", "from", "last"], &["starts"]),
        node("Slice", &["BOUNDS", "second", "end"], &["ends"]),
        node("Gather", &["prefix", "starts"], &["before"]),
        node("Gather", &["prefix", "ends"], &["after"]),
        node("Sub", &["after", "before"], &["segments"]),
        node("Unsqueeze", &["segments", "inner"], &["Y"]),
    ];
    file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1, 1])], constants))
}

fn row(values: &[f32]) -> Vec<Tensor> {
    vec![fp32("X", &[1, values.len() as i64], values)]
}

fn outputs(answers: Vec<nereid_backend_api::Result<Response>>) -> Vec<(Vec<i64>, Vec<f32>)> {
    answers.iter().map(|answer| fp32_output(answer.as_ref().unwrap())).collect()
}

#[test]
fn requests_of_different_lengths_run_at_once_and_each_gets_its_own_sum() {
    let bounds = batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BOUNDS", "TYPE_INT32");
    let mut model = serve(&segment_sums(port("BOUNDS", Element::Int32, &[-1])), text(&[X, &bounds, Y]));
    let requests = [[1.0, 2.0, 3.0].as_slice(), &[], &[10.0, 20.0, 30.0, 40.0], &[5.0]];
    let answers = model.execute(requests.iter().map(|values| (row(values), [].as_slice())).collect());
    let sums = [6.0, 0.0, 100.0, 5.0].map(|sum| (vec![1, 1], vec![sum]));
    assert_eq!(outputs(answers), sums);
    // All four, in one execution.
    assert_eq!(*model.monitor.sizes.lock().unwrap(), [4]);
    assert_eq!(fp32_output(&model.infer(row(&[4.0, 5.0])).unwrap()).1, [9.0]);
}

#[test]
fn a_bad_request_does_not_shift_the_bounds_of_the_others() {
    let bounds = batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BOUNDS", "TYPE_INT32");
    let mut model = serve(&segment_sums(port("BOUNDS", Element::Int32, &[-1])), text(&[X, &bounds, Y]));
    let cut_short = vec![fp32("X", &[1, 9], &[1.0; 4])];
    let mut answers =
        model.execute(vec![(row(&[1.0, 2.0]), &[]), (cut_short, &[]), (row(&[3.0, 4.0, 5.0]), &[])]);
    let error = answers.remove(1).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert_eq!(outputs(answers), [3.0, 12.0].map(|sum| (vec![1, 1], vec![sum])));
}

/// Y = X + the shape of T, each element of X for itself.
fn add_shape(element: Element) -> Vec<u8> {
    let inputs = vec![port("X", Element::Float, &[-1]), port("T", element, &[-1])];
    let nodes = vec![
        node("Shape", &["T"], &["shape"]),
        with_int(node("Cast", &["shape"], &["size"]), "to", Element::Float as i64),
        node("Add", &["X", "size"], &["Y"]),
    ];
    file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1])], vec![]))
}

const SCATTER: &str = r#"output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }"#;

#[test]
fn an_output_is_cut_apart_by_the_shapes_of_an_input() {
    let largest = batch_input("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "T", "TYPE_FP32");
    let mut model = serve(&add_shape(Element::Float), text(&[X, &largest, SCATTER]));
    let two_items = vec![fp32("X", &[2, 2], &[1.0, 2.0, 3.0, 4.0])];
    let answers = model.execute(vec![
        (row(&[0.5]), &[]),
        (two_items, &[]),
        (row(&[]), &[]),
        (row(&[7.0, 8.0]), &["Y"]),
    ]);
    let expected = [
        (vec![1, 1], vec![4.5]),
        (vec![2, 2], vec![5.0, 6.0, 7.0, 8.0]),
        (vec![1, 0], vec![]),
        (vec![1, 2], vec![11.0, 12.0]),
    ];
    assert_eq!(outputs(answers), expected);
    assert_eq!(*model.monitor.sizes.lock().unwrap(), [5]);
}

#[test]
fn surplus_rows_of_an_output_are_dropped() {
    let inputs = vec![port("X", Element::Float, &[-1])];
    let longer = vec![with_int(node("Concat", &["X", "X"], &["Y"]), "axis", 0)];
    let longer = file(graph(inputs.clone(), longer, vec![port("Y", Element::Float, &[-1])], vec![]));
    let mut model = serve(&longer, text(&[X, SCATTER]));
    let answers = model.execute(vec![(row(&[1.0]), &[]), (row(&[2.0, 3.0]), &[])]);
    assert_eq!(outputs(answers), [(vec![1, 1], vec![1.0]), (vec![1, 2], vec![2.0, 3.0])]);

    let shorter = vec![with_int(node("ReduceSum", &["X"], &["Y"]), "keepdims", 1)];
    let shorter = file(graph(inputs, shorter, vec![port("Y", Element::Float, &[1])], vec![]));
    let mut model = serve(&shorter, text(&[X, SCATTER]));
    for answer in model.execute(vec![(row(&[1.0]), &[]), (row(&[2.0, 3.0]), &[])]) {
        let error = answer.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message().contains("output 'Y' has shape [1]"), "{error}");
    }
}

#[test]
fn strings_are_ragged_too() {
    let inputs = vec![port("X", Element::String, &[-1])];
    let file = file(graph(
        inputs,
        vec![node("Identity", &["X"], &["Y"])],
        vec![port("Y", Element::String, &[-1])],
        vec![],
    ));
    let both = X.replace("TYPE_FP32", "TYPE_STRING") + &SCATTER.replace("TYPE_FP32", "TYPE_STRING");
    let mut model = serve(&file, text(&[&both]));
    let answers = model.execute(vec![
        (vec![strings("X", &[1, 2], &[b"a", b"bc"])], &[]),
        (vec![strings("X", &[1, 0], &[])], &[]),
        (vec![strings("X", &[1, 1], &[b""])], &[]),
    ]);
    let texts: Vec<_> = answers.iter().map(|answer| text_output(answer.as_ref().unwrap())).collect();
    assert_eq!(texts, [vec!["a".to_owned(), "bc".into()], vec![], vec![String::new()]]);
}

#[test]
fn item_shapes_and_counts_reach_the_graph() {
    let inputs = vec![
        port("X", Element::Float, &[-1]),
        port("ITEMS", Element::Int32, &[-1, 2]),
        port("FLAT", Element::Float, &[-1]),
        port("COUNTS", Element::Int32, &[-1]),
        port("ENDS", Element::Float, &[-1]),
    ];
    let nodes = vec![
        node("Identity", &["ITEMS"], &["A"]),
        node("Neg", &["FLAT"], &["B"]),
        node("Neg", &["COUNTS"], &["C"]),
        node("Neg", &["ENDS"], &["D"]),
        node("Neg", &["X"], &["Y"]),
    ];
    let ports = vec![
        port("A", Element::Int32, &[-1, 2]),
        port("B", Element::Float, &[-1]),
        port("C", Element::Int32, &[-1]),
        port("D", Element::Float, &[-1]),
        port("Y", Element::Float, &[-1]),
    ];
    let config = text(&[
        &X.replace("[ -1 ]", "[ -1, -1 ]"),
        &batch_input("BATCH_ITEM_SHAPE", "ITEMS", "TYPE_INT32"),
        &batch_input("BATCH_ITEM_SHAPE_FLATTEN", "FLAT", "TYPE_FP32"),
        &batch_input("BATCH_ELEMENT_COUNT", "COUNTS", "TYPE_INT32"),
        &batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT", "ENDS", "TYPE_FP32"),
        r#"output { name: "A" data_type: TYPE_INT32 dims: [ 2 ] }
           output { name: "B" data_type: TYPE_FP32 dims: [ 2 ] }
           output { name: "C" data_type: TYPE_INT32 dims: [ 1 ] reshape { } }
           output { name: "D" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }
           output { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
           batch_output { target_name: "Y" source_input: "X" }
           batch_output { target_name: "B" source_input: "X" }"#,
    ]);
    let mut model = serve(&file(graph(inputs, nodes, ports, vec![])), config);
    let request = |shape: [i64; 3]| {
        (vec![fp32("X", &shape, &vec![1.0; (shape[1] * shape[2]) as usize])], [].as_slice())
    };
    let answers = model.execute(vec![request([1, 3, 1]), request([1, 2, 2])]);
    let contents = |answer: usize, name: &str| {
        let outputs = &answers[answer].as_ref().unwrap().outputs;
        let output = outputs.iter().find(|output| output.name == name).unwrap();
        (output.shape.to_vec(), output.contiguous().unwrap().into_owned())
    };
    let int = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let float = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(contents(0, "A"), (vec![1, 2], int(&[3, 1])));
    assert_eq!(contents(1, "A"), (vec![1, 2], int(&[2, 2])));
    assert_eq!(contents(0, "B"), (vec![1, 2], float(&[-3.0, -1.0])));
    assert_eq!(contents(1, "B"), (vec![1, 2], float(&[-2.0, -2.0])));
    assert_eq!(contents(0, "C"), (vec![1], int(&[-3])));
    assert_eq!(contents(1, "C"), (vec![1], int(&[-4])));
    assert_eq!(contents(0, "D"), (vec![1], float(&[-3.0])));
    assert_eq!(contents(1, "D"), (vec![1], float(&[-7.0])));
    assert_eq!(contents(0, "Y"), (vec![1, 3, 1], float(&[-1.0; 3])));
    assert_eq!(contents(1, "Y"), (vec![1, 2, 2], float(&[-1.0; 4])));
}

#[test]
fn without_batching_a_ragged_input_is_flat_and_alone() {
    let largest = batch_input("BATCH_ELEMENT_COUNT", "T", "TYPE_INT32");
    let mut config =
        text(&[&X.replace("[ -1 ]", "[ -1, -1 ]"), &largest, &SCATTER.replace("[ -1 ]", "[ -1, -1 ]")]);
    config.max_batch_size = 0;
    let mut model = serve(&add_shape(Element::Int32), config);
    let request = |shape: [i64; 2], values: &[f32]| (vec![fp32("X", &shape, values)], [].as_slice());
    let answers =
        model.execute(vec![request([2, 2], &[1.0, 2.0, 3.0, 4.0]), request([1, 3], &[5.0, 6.0, 7.0])]);
    assert_eq!(outputs(answers), [(vec![2, 2], vec![2.0, 3.0, 4.0, 5.0]), (vec![1, 3], vec![6.0, 7.0, 8.0])]);
}

#[test]
fn an_input_that_is_not_ragged_is_joined_beside_one_that_is() {
    // Y = -W, one number for each request, and Z = |X|.
    let inputs = vec![port("X", Element::Float, &[-1]), port("W", Element::Float, &[-1, 1])];
    let nodes = vec![node("Neg", &["W"], &["Y"]), node("Abs", &["X"], &["Z"])];
    let ports = vec![port("Y", Element::Float, &[-1, 1]), port("Z", Element::Float, &[-1])];
    let config = text(&[
        X,
        Y,
        r#"input { name: "W" data_type: TYPE_FP32 dims: [ 1 ] }
           output { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }
           batch_output { target_name: "Z" source_input: "X" }"#,
    ]);
    let mut model = serve(&file(graph(inputs, nodes, ports, vec![])), config);
    let request = |x: &[f32], w: f32| vec![fp32("X", &[1, x.len() as i64], x), fp32("W", &[1, 1], &[w])];
    let answers = model.execute(vec![
        (request(&[-1.0, -2.0], 5.0), &["Y"]),
        (request(&[-3.0], 6.0), &["Z"]),
        (request(&[-4.0, 4.0, -4.0], 7.0), &["Z"]),
    ]);
    let expected = [(vec![1, 1], vec![-5.0]), (vec![1, 1], vec![3.0]), (vec![1, 3], vec![4.0; 3])];
    assert_eq!(outputs(answers), expected);
    assert_eq!(*model.monitor.sizes.lock().unwrap(), [3]);
}

#[test]
fn a_batch_of_another_size_than_the_graph_fixes_is_refused() {
    let bounds = batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BOUNDS", "TYPE_INT32");
    let mut model = serve(&segment_sums(port("BOUNDS", Element::Int32, &[2])), text(&[X, &bounds, Y]));
    assert_eq!(fp32_output(&model.infer(row(&[1.0, 2.0])).unwrap()).1, [3.0]);
    for answer in model.execute(vec![(row(&[1.0]), &[]), (row(&[2.0]), &[])]) {
        let error = answer.unwrap_err();
        assert_eq!(error.message(), "model 'm': input 'BOUNDS' has shape [3], but the model takes [2]");
    }
}

#[test]
fn ragged_inputs_are_held_to_the_batch_size_and_the_type() {
    let mut model = serve(
        &add_shape(Element::Int32),
        text(&[X, &batch_input("BATCH_ELEMENT_COUNT", "T", "TYPE_INT32"), SCATTER]),
    );
    model.batch_size = |_| 2;
    let error = model.infer(row(&[1.0])).unwrap_err();
    assert!(error.message().contains("shape [1,1] in a request of batch size 2"), "{error}");
    let error = model.infer(vec![Tensor::new("X", DataType::Int32, [2, 1], vec![0; 8])]).unwrap_err();
    assert!(error.message().contains("has datatype INT32, but the model takes FP32"), "{error}");
}

#[test]
fn a_ragged_input_takes_a_model_with_one_variable_dimension() {
    for dims in [[12].as_slice(), &[-1, -1], &[]] {
        let inputs = vec![port("X", Element::Float, dims)];
        let nodes = vec![node("Identity", &["X"], &["Y"])];
        let file = file(graph(inputs, nodes, vec![port("Y", Element::Float, dims)], vec![]));
        let message = refusal(&file, text(&[X, SCATTER]));
        assert!(
            message.contains("input 'X' has allow_ragged_batch") && message.contains("[-1], but"),
            "{message}"
        );
    }
}

#[test]
fn batch_inputs_that_do_not_fit_the_model_are_refused() {
    let refused = |file: &[u8], batch_input: &str| refusal(file, text(&[X, batch_input, SCATTER]));
    let sums = add_shape(Element::Int32);

    let message = refused(&sums, &batch_input("BATCH_ELEMENT_COUNT", "U", "TYPE_INT32"));
    assert!(message.contains("the model needs the input 'T' (INT32 [-1])"), "{message}");
    let both = batch_input("BATCH_ELEMENT_COUNT", "U", "TYPE_INT32")
        + &batch_input("BATCH_ELEMENT_COUNT", "T", "TYPE_INT32");
    let message = refused(&sums, &both);
    assert!(message.ends_with("batch_input: unknown target_name 'U' (the model's inputs: 'X', 'T')"));
    let message = refused(&sums, &batch_input("BATCH_ELEMENT_COUNT", "T", "TYPE_FP32"));
    assert!(message.ends_with("batch_input 'T' is FP32 in the configuration, but INT32 in the model"));
    let message = refused(&sums, &batch_input("BATCH_ITEM_SHAPE", "T", "TYPE_INT32"));
    assert!(message.ends_with("batch_input 'T' has shape [-1,1], but the model takes [-1]"), "{message}");
    let unknown = batch_input("BATCH_ELEMENT_COUNT", "T", "TYPE_INT32").replace(r#""X""#, r#""W""#);
    let message = refused(&sums, &unknown);
    assert!(message.contains("batch_input[0]: source_input 'W' is not an input"), "{message}");
}

#[test]
fn a_batch_output_with_an_unknown_source_is_refused() {
    let inputs = vec![port("X", Element::Float, &[-1])];
    let nodes = vec![node("Identity", &["X"], &["Y"])];
    let file = file(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1])], vec![]));
    let message = refusal(&file, text(&[X, &SCATTER.replace(r#""X""#, r#""W""#)]));
    assert!(message.contains("batch_output[0]: source_input 'W' is not an input"), "{message}");
}

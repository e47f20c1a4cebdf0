//! Compares each kind with values counted by hand, and checks the errors.

use std::sync::Arc;
use std::time::Instant;

use nereid_model_config::parse_text;

use super::*;
use crate::{Answer, ErrorCode, InferRequest, Phase, Responder, ResponseSink};

struct Unheard;

impl ResponseSink for Unheard {
    fn deliver(&self, _: Option<Answer>, _: bool) {}
    fn mark(&self, _: Phase, _: Instant) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A request with an input X of that shape. Its contents do not matter.
fn request(shape: &[i64]) -> Request {
    let inputs = vec![Tensor::new("X", DataType::Uint8, shape, Vec::new())];
    let request = InferRequest { inputs, ..Default::default() };
    Request::new(request, 1, Responder::new(Arc::new(Unheard), None))
}

fn requests(shapes: &[&[i64]]) -> Vec<Request> {
    shapes.iter().map(|shape| request(shape)).collect()
}

/// A batching model whose X has this many dimensions after the batch dimension.
fn config(rank: usize, rest: &str) -> ModelConfig {
    let dims = vec!["-1"; rank].join(", ");
    let input = format!(r#"max_batch_size: 8 input {{ name: "X" data_type: TYPE_UINT8 dims: [ {dims} ] }}"#);
    parse_text(&format!("{input} {rest}")).unwrap()
}

fn batch_input(rank: usize, kind: &str, data_type: &str) -> BatchInput {
    let entry = format!(
        r#"batch_input {{ kind: {kind} target_name: "T" data_type: {data_type} source_input: "X" }}"#
    );
    let [input] = <[_; 1]>::try_from(BatchInput::all(&config(rank, &entry)).unwrap()).unwrap();
    input
}

/// Shape and numbers of an INT32 batch input made for requests of these shapes.
fn made(kind: &str, shapes: &[&[i64]]) -> (Vec<i64>, Vec<i32>) {
    let input = batch_input(shapes[0].len() - 1, kind, "TYPE_INT32");
    let requests = requests(shapes);
    let requests: Vec<_> = requests.iter().collect();
    let tensor = input.tensor(&requests).unwrap();
    assert_eq!((tensor.name.as_str(), tensor.data_type), ("T", DataType::Int32));
    assert_eq!(tensor.shape, input.shape(&requests).unwrap());
    tensor.check_contents().unwrap();
    let known = input.dims();
    assert_eq!(known.len(), tensor.shape.len());
    assert!(known.iter().zip(tensor.shape.iter()).all(|(&known, &dim)| known < 0 || known == dim));
    let contents = tensor.contiguous().unwrap();
    let numbers = contents.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
    (tensor.shape.to_vec(), numbers.collect())
}

#[test]
fn element_count_covers_all_items_of_a_request() {
    assert_eq!(made("BATCH_ELEMENT_COUNT", &[&[1, 3], &[1, 4], &[2, 5]]), (vec![3], vec![3, 4, 10]));
    assert_eq!(made("BATCH_ELEMENT_COUNT", &[&[1, 0], &[1, 2]]), (vec![2], vec![0, 2]));
    assert_eq!(made("BATCH_ELEMENT_COUNT", &[&[2, 3, 4]]), (vec![1], vec![24]));
}

#[test]
fn accumulated_counts_mark_the_ends_of_requests() {
    let kind = "BATCH_ACCUMULATED_ELEMENT_COUNT";
    assert_eq!(made(kind, &[&[1, 3], &[1, 4], &[1, 5]]), (vec![3], vec![3, 7, 12]));
    assert_eq!(made(kind, &[&[2, 3], &[1, 0], &[1, 1]]), (vec![3], vec![6, 6, 7]));
}

#[test]
fn accumulated_counts_with_zero_also_mark_the_starts() {
    let kind = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO";
    assert_eq!(made(kind, &[&[1, 3], &[1, 4], &[1, 5]]), (vec![4], vec![0, 3, 7, 12]));
    assert_eq!(made(kind, &[&[1, 0]]), (vec![2], vec![0, 0]));
}

#[test]
fn max_element_count_is_only_in_the_shape() {
    let kind = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE";
    assert_eq!(made(kind, &[&[1, 3], &[2, 2], &[1, 1]]), (vec![4], vec![0; 4]));
    assert_eq!(made(kind, &[&[1, 0]]), (vec![0], vec![]));
}

#[test]
fn item_shapes_repeat_for_each_item() {
    // The schema's own example: two items of [3,1] and one of [2,2].
    let shapes: [&[i64]; 2] = [&[2, 3, 1], &[1, 2, 2]];
    assert_eq!(made("BATCH_ITEM_SHAPE", &shapes), (vec![3, 2], vec![3, 1, 3, 1, 2, 2]));
    assert_eq!(made("BATCH_ITEM_SHAPE_FLATTEN", &shapes), (vec![6], vec![3, 1, 3, 1, 2, 2]));
    let empty: [&[i64]; 2] = [&[1, 0], &[2, 7]];
    assert_eq!(made("BATCH_ITEM_SHAPE", &empty), (vec![3, 1], vec![0, 7, 7]));
    assert_eq!(made("BATCH_ITEM_SHAPE_FLATTEN", &empty), (vec![3], vec![0, 7, 7]));
}

#[test]
fn numbers_may_be_fp32() {
    let kinds = [
        ("BATCH_ELEMENT_COUNT", vec![6.0_f32, 1.0]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", vec![6.0, 7.0]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", vec![0.0, 6.0, 7.0]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", vec![0.0; 6]),
        ("BATCH_ITEM_SHAPE", vec![3.0, 3.0, 1.0]),
        ("BATCH_ITEM_SHAPE_FLATTEN", vec![3.0, 3.0, 1.0]),
    ];
    let requests = requests(&[&[2, 3], &[1, 1]]);
    for (kind, numbers) in kinds {
        let tensor = batch_input(1, kind, "TYPE_FP32").tensor(&requests.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(tensor.data_type, DataType::Fp32, "{kind}");
        let contents = tensor.contiguous().unwrap();
        let given: Vec<_> = contents.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!(given, numbers, "{kind}");
    }
}

#[test]
fn reshaped_dimensions_are_counted() {
    let config = parse_text(
        r#"input { name: "X" data_type: TYPE_UINT8 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
           batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_INT32 source_input: "X" }"#,
    );
    let [input] = <[_; 1]>::try_from(BatchInput::all(&config.unwrap()).unwrap()).unwrap();
    // Without a batch dimension, too, the first dimension counts items.
    assert_eq!(input.dims(), [-1, 1].into());
    assert_eq!(input.shape(&[&request(&[2, 2])]).unwrap(), [2, 1].into());
    let error = input.shape(&[&request(&[4])]).unwrap_err();
    assert_eq!(error.message(), "input 'X' has shape [4], expected 2 dimensions");
}

#[test]
fn several_targets_get_the_same_contents() {
    let entry = r#"batch_input { target_name: [ "A", "B" ] data_type: TYPE_INT32 source_input: "X" }
                   batch_input { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "C" data_type: TYPE_FP32
                                 source_input: "X" }"#;
    let inputs = BatchInput::all(&config(1, entry)).unwrap();
    let targets: Vec<_> = inputs.iter().map(|it| (it.target(), it.data_type())).collect();
    assert_eq!(targets, [("A", DataType::Int32), ("B", DataType::Int32), ("C", DataType::Fp32)]);
    let request = request(&[1, 2]);
    let contents = |input: &BatchInput| input.tensor(&[&request]).unwrap().contiguous().unwrap().into_owned();
    assert_eq!(contents(&inputs[0]), [2, 0, 0, 0]);
    assert_eq!(contents(&inputs[0]), contents(&inputs[1]));
}

#[test]
fn invalid_batch_inputs_are_refused_with_the_reason() {
    let refusals = [
        (r#"target_name: "T" data_type: TYPE_INT64 source_input: "X""#, "data_type is TYPE_INT64"),
        (r#"target_name: "T" source_input: "X""#, "data_type is TYPE_INVALID"),
        (r#"target_name: "T" data_type: TYPE_INT32"#, "expected exactly one source_input, found 0"),
        (
            r#"target_name: "T" data_type: TYPE_INT32 source_input: [ "X", "X" ]"#,
            "expected exactly one source_input, found 2",
        ),
        (
            r#"target_name: "T" data_type: TYPE_INT32 source_input: "W""#,
            "source_input 'W' is not an input of the model (inputs: 'X')",
        ),
        (r#"data_type: TYPE_INT32 source_input: "X""#, "target_name is missing"),
        (r#"kind: 9 target_name: "T" data_type: TYPE_INT32 source_input: "X""#, "9 is not a kind"),
    ];
    for (entry, reason) in refusals {
        let error = BatchInput::all(&config(1, &format!("batch_input {{ {entry} }}"))).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(error.message().starts_with("batch_input[0]: "), "{error}");
        assert!(error.message().contains(reason), "{error}");
    }
}

#[test]
fn target_provided_twice_is_refused() {
    for targets in [r#"[ "X" ]"#, r#"[ "T", "T" ]"#] {
        let entry =
            format!(r#"batch_input {{ target_name: {targets} data_type: TYPE_INT32 source_input: "X" }}"#);
        let error = BatchInput::all(&config(1, &entry)).unwrap_err();
        assert!(error.message().contains("is already provided by another entry"), "{error}");
    }
    let entry = r#"output { name: "Y" dims: [ -1 ] }
                   batch_output { target_name: "Y" source_input: "X" }
                   batch_output { target_name: "Y" source_input: "X" }"#;
    let error = BatchOutput::all(&config(1, entry)).unwrap_err();
    assert!(error.message().contains("target_name 'Y' of a batch_output"), "{error}");
}

#[test]
fn scalar_source_of_items_is_refused() {
    let config = parse_text(
        r#"input { name: "X" data_type: TYPE_UINT8 dims: [ 1 ] reshape { } }
           batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_INT32 source_input: "X" }"#,
    );
    let error = BatchInput::all(&config.unwrap()).unwrap_err();
    assert!(error.message().contains("input 'X' is a scalar"), "{error}");
}

#[test]
fn counts_beyond_int32_are_refused_except_as_fp32() {
    let requests = requests(&[&[1, 1 << 30], &[1, 1 << 30]]);
    let requests: Vec<_> = requests.iter().collect();
    let error =
        batch_input(1, "BATCH_ACCUMULATED_ELEMENT_COUNT", "TYPE_INT32").tensor(&requests).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert_eq!(
        error.message(),
        "batch input 'T': 2147483648 exceeds the range of INT32 (at most 2147483647)"
    );
    let counts = batch_input(1, "BATCH_ELEMENT_COUNT", "TYPE_INT32").tensor(&requests).unwrap();
    assert_eq!(counts.shape, [2].into());
    let totals = batch_input(1, "BATCH_ACCUMULATED_ELEMENT_COUNT", "TYPE_FP32").tensor(&requests).unwrap();
    assert_eq!(totals.contiguous().unwrap()[4..], 2_147_483_648_f32.to_le_bytes());
}

#[test]
fn shape_too_large_for_memory_is_refused() {
    for kind in ["BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN"] {
        let input = batch_input(1, kind, "TYPE_INT32");
        for shape in [[1 << 40, 0], [i64::MAX, 0], [-1, 0]] {
            let error = input.tensor(&[&request(&shape)]).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArg, "{kind} {shape:?}");
        }
    }
    let counts = batch_input(1, "BATCH_ELEMENT_COUNT", "TYPE_INT32");
    let error = counts.tensor(&[&request(&[1 << 40, 1 << 40])]).unwrap_err();
    assert!(error.message().contains("invalid shape"), "{error}");
}

#[test]
fn request_without_the_source_is_refused() {
    let input = batch_input(1, "BATCH_ELEMENT_COUNT", "TYPE_INT32");
    let nothing = InferRequest::default();
    let nothing = Request::new(nothing, 1, Responder::new(Arc::new(Unheard), None));
    let error = input.tensor(&[&request(&[1, 2]), &nothing]).unwrap_err();
    assert!(error.message().contains("lacks input 'X'"), "{error}");
}

fn scatter(config: &str) -> Result<BatchOutput> {
    let entry = r#"batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }"#;
    let outputs = BatchOutput::all(&parse_text(&format!("{config} {entry}")).unwrap())?;
    Ok(<[_; 1]>::try_from(outputs).unwrap().into_iter().next().unwrap())
}

#[test]
fn batch_output_takes_variable_dimensions_from_the_source() {
    let cut = scatter(
        r#"max_batch_size: 4 input { name: "X" dims: [ -1, -1, -1 ] } output { name: "Y" dims: [ 7, -1 ] }"#,
    );
    let cut = cut.unwrap();
    assert_eq!(cut.target(), "Y");
    assert_eq!(cut.shape(&request(&[2, 3, 4, 5])).unwrap(), [2, 7, 4].into());
    assert_eq!(cut.shape(&request(&[1, 3, 0, 5])).unwrap(), [1, 7, 0].into());
    let error = cut.shape(&request(&[2, 3])).unwrap_err();
    assert!(error.message().contains("expected 4 dimensions"), "{error}");

    let alone = scatter(r#"input { name: "X" dims: [ -1 ] } output { name: "Y" dims: [ -1, 2 ] }"#).unwrap();
    assert_eq!(alone.shape(&request(&[3])).unwrap(), [3, 2].into());

    let reshaped = scatter(
        r#"max_batch_size: 4 input { name: "X" dims: [ -1, 2 ] reshape { shape: [ 2, -1 ] } }
           output { name: "Y" dims: [ 9 ] reshape { shape: [ 3, -1 ] } }"#,
    );
    assert_eq!(reshaped.unwrap().shape(&request(&[1, 2, 6])).unwrap(), [1, 3, 6].into());
}

#[test]
fn invalid_batch_outputs_are_refused_with_the_reason() {
    let error =
        scatter(r#"max_batch_size: 4 input { name: "X" dims: [ -1 ] } output { name: "Y" dims: [ 2, -1 ] }"#);
    let message = error.unwrap_err().message().to_owned();
    assert!(
        message.contains("output 'Y' of shape [-1,2,-1]") && message.contains("which has only 2"),
        "{message}"
    );
    let refusals = [
        (r#"target_name: "Z" source_input: "X""#, "target_name 'Z' is not an output"),
        (r#"target_name: "Y""#, "expected exactly one source_input"),
        (r#"target_name: "Y" source_input: "W""#, "source_input 'W'"),
        (r#"source_input: "X""#, "target_name is missing"),
        (r#"kind: 3 target_name: "Y" source_input: "X""#, "3 is not a kind"),
    ];
    for (entry, reason) in refusals {
        let output = format!(r#"output {{ name: "Y" dims: [ -1 ] }} batch_output {{ {entry} }}"#);
        let error = BatchOutput::all(&config(1, &output)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(
            error.message().starts_with("batch_output[0]: ") && error.message().contains(reason),
            "{error}"
        );
    }
}

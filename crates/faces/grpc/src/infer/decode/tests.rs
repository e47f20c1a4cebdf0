//! Messages that are accepted and refused.

use std::time::Duration;

use bytes::Bytes;
use nereid_core::backend_api::{CorrelationId, ErrorCode, ParameterValue, SequenceFlags};

use super::*;
use crate::metadata::version;
use crate::proto::{InferTensorContents, ModelInferRequest};
use crate::testing::parameter;

fn decoded(message: ModelInferRequest) -> Result<DecodedRequest> {
    decode(message.into(), &Regions::default())
}

fn refused(message: ModelInferRequest) -> Error {
    decoded(message).err().expect("the request is wrong")
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    let (name, datatype) = (name.into(), datatype.into());
    InferInputTensor { name, datatype, shape: shape.into(), ..InferInputTensor::default() }
}

fn of_inputs(inputs: Vec<InferInputTensor>, raw: &[&'static [u8]]) -> ModelInferRequest {
    let raw_input_contents = raw.iter().map(|raw| Bytes::from_static(raw)).collect();
    ModelInferRequest { inputs, raw_input_contents, ..ModelInferRequest::default() }
}

fn with_parameter(name: &str, value: Choice) -> ModelInferRequest {
    ModelInferRequest {
        parameters: BTreeMap::from([(name.to_owned(), parameter(value))]),
        ..ModelInferRequest::default()
    }
}

fn with_contents(datatype: &str, contents: InferTensorContents) -> ModelInferRequest {
    let mut input = input("X", datatype, &[1]);
    input.contents = Some(contents);
    of_inputs(vec![input], &[])
}

fn contents(message: ModelInferRequest) -> Result<Vec<u8>> {
    decoded(message).map(|decoded| decoded.request.inputs[0].contiguous().unwrap().into_owned())
}

#[test]
fn raw_contents_follow_input_order_without_copies() {
    let message = of_inputs(vec![input("A", "FP16", &[1, 2]), input("B", "BYTES", &[])], &[b"abcd", b""]);
    let address = message.raw_input_contents[0].as_ptr();
    let request = decoded(message).unwrap().request;
    let [a, b] = request.inputs.as_slice() else { panic!("{:?}", request.inputs) };
    assert_eq!((a.name.as_str(), a.data_type, &a.shape), ("A", DataType::Fp16, &[1, 2].into()));
    assert_eq!(a.contiguous().unwrap().as_ptr(), address);
    assert_eq!((b.data_type, b.byte_size()), (DataType::Bytes, 0));
}

#[test]
fn surplus_raw_contents_are_ignored_and_missing_ones_refused() {
    let inputs = || vec![input("A", "INT8", &[1]), input("B", "INT8", &[1])];
    assert!(decoded(of_inputs(inputs(), &[b"a", b"b", b"c"])).is_ok());
    let error = refused(of_inputs(inputs(), &[b"a"]));
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert_eq!(error.message(), "input 'B' has no contents: the request has 1 raw_input_contents");
}

#[test]
fn inputs_with_typed_and_raw_contents_are_refused() {
    let mut message =
        with_contents("INT32", InferTensorContents { int_contents: vec![1], ..Default::default() });
    message.raw_input_contents.push(Bytes::from_static(b"abcd"));
    assert_eq!(refused(message).code(), ErrorCode::InvalidArg);

    let region = [
        ("shared_memory_region", Choice::StringParam("r".into())),
        ("shared_memory_byte_size", Choice::Int64Param(4)),
    ];
    let mut message = with_contents("INT32", InferTensorContents::default());
    message.inputs[0].parameters = region.map(|(name, value)| (name.to_owned(), parameter(value))).into();
    assert!(refused(message.clone()).message().contains("has both contents and shared memory"));
    message.inputs[0].contents = None;
    assert_eq!(refused(message).code(), ErrorCode::NotFound);
}

#[test]
fn each_type_has_its_field() {
    let none = InferTensorContents::default;
    let int = |element| InferTensorContents { int_contents: vec![element], ..none() };
    let uint = |element| InferTensorContents { uint_contents: vec![element], ..none() };
    for (datatype, elements, expected) in [
        ("BOOL", InferTensorContents { bool_contents: vec![true, false], ..none() }, vec![1, 0]),
        ("INT8", int(-2), vec![254]),
        ("INT8", int(300), vec![44]),
        ("INT16", int(-2), (-2_i16).to_le_bytes().into()),
        ("INT32", int(i32::MIN), i32::MIN.to_le_bytes().into()),
        ("UINT8", uint(255), vec![255]),
        ("UINT16", uint(65535), vec![255; 2]),
        ("UINT32", uint(u32::MAX), vec![255; 4]),
        (
            "INT64",
            InferTensorContents { int64_contents: vec![i64::MIN], ..none() },
            i64::MIN.to_le_bytes().into(),
        ),
        ("UINT64", InferTensorContents { uint64_contents: vec![u64::MAX], ..none() }, vec![255; 8]),
        ("FP32", InferTensorContents { fp32_contents: vec![0.5], ..none() }, 0.5_f32.to_le_bytes().into()),
        ("FP64", InferTensorContents { fp64_contents: vec![0.1], ..none() }, 0.1_f64.to_le_bytes().into()),
        (
            "BYTES",
            InferTensorContents { bytes_contents: vec![Bytes::from_static(b"a"), Bytes::new()], ..none() },
            b"\x01\0\0\0a\0\0\0\0".to_vec(),
        ),
        ("FP16", none(), Vec::new()),
    ] {
        assert_eq!(contents(with_contents(datatype, elements)).unwrap(), expected, "{datatype}");
    }
}

#[test]
fn elements_in_another_field_are_refused() {
    let none = InferTensorContents::default;
    let fp32 = InferTensorContents { fp32_contents: vec![1.0], ..none() };
    let both = InferTensorContents { int_contents: vec![1], uint_contents: vec![1], ..none() };
    for (datatype, elements) in
        [("INT32", fp32.clone()), ("FP16", fp32.clone()), ("BF16", fp32), ("INT32", both), ("FP33", none())]
    {
        let error = refused(with_contents(datatype, elements));
        assert_eq!(error.code(), ErrorCode::InvalidArg, "{datatype}: {error}");
    }
}

#[test]
fn reserved_parameters_are_parsed_and_others_forwarded_to_the_model() {
    let parameters = [
        ("sequence_id", Choice::StringParam("s".into())),
        ("sequence_start", Choice::BoolParam(true)),
        ("sequence_end", Choice::BoolParam(false)),
        ("priority", Choice::Uint64Param(u64::MAX)),
        ("timeout", Choice::Int64Param(5)),
        (EMPTY_FINAL, Choice::BoolParam(true)),
        ("a", Choice::DoubleParam(0.5)),
        ("b", Choice::Int64Param(-3)),
        ("c", Choice::StringParam(String::new())),
        ("d", Choice::BoolParam(true)),
    ];
    let message = ModelInferRequest {
        parameters: parameters.map(|(name, value)| (name.to_owned(), parameter(value))).into(),
        ..ModelInferRequest::default()
    };
    let DecodedRequest { request, empty_final, .. } = decoded(message).unwrap();
    assert!(empty_final);
    assert_eq!(request.priority, u64::MAX);
    assert_eq!(request.correlation_id, CorrelationId::Text("s".into()));
    assert_eq!(request.sequence, SequenceFlags { start: true, end: false });
    assert_eq!(request.timeout, Some(Duration::from_micros(5)));
    let own: Vec<_> = request.parameters.iter().collect();
    assert_eq!(
        own,
        [
            ("a", &ParameterValue::Double(0.5)),
            ("b", &ParameterValue::Int(-3)),
            ("c", &ParameterValue::String("".into())),
            ("d", &ParameterValue::Bool(true)),
        ]
    );
}

#[test]
fn sentinel_values_mean_none() {
    let correlation = |value| decoded(with_parameter("sequence_id", value)).unwrap().request.correlation_id;
    assert_eq!(correlation(Choice::Int64Param(0)), CorrelationId::None);
    assert_eq!(correlation(Choice::StringParam(String::new())), CorrelationId::None);
    assert_eq!(correlation(Choice::Int64Param(-1)), CorrelationId::Number(u64::MAX));
    for micros in [0, -1, i64::MIN] {
        let request = decoded(with_parameter("timeout", Choice::Int64Param(micros))).unwrap().request;
        assert_eq!(request.timeout, None, "{micros}");
    }
}

#[test]
fn parameters_of_another_type_or_without_a_value_are_refused() {
    for (name, value) in [
        ("sequence_id", Choice::Uint64Param(1)),
        ("sequence_id", Choice::BoolParam(true)),
        ("sequence_start", Choice::Int64Param(1)),
        ("sequence_end", Choice::StringParam("true".into())),
        ("priority", Choice::Int64Param(-1)),
        ("priority", Choice::DoubleParam(1.0)),
        ("timeout", Choice::Uint64Param(1)),
        (EMPTY_FINAL, Choice::Int64Param(1)),
        ("triton_other", Choice::BoolParam(true)),
        ("mine", Choice::Uint64Param(1)),
    ] {
        let error = refused(with_parameter(name, value.clone()));
        assert_eq!(error.code(), ErrorCode::InvalidArg, "{name} {value:?}");
        assert!(error.message().contains(name), "{error}");
    }
    let valueless = ModelInferRequest {
        parameters: BTreeMap::from([("mine".to_owned(), InferParameter::default())]),
        ..ModelInferRequest::default()
    };
    assert_eq!(refused(valueless).message(), "parameter 'mine' has no value");
}

#[test]
fn versions_are_numbers() {
    assert_eq!(version("3", "m"), Ok(Some(3)));
    assert_eq!(version("", "m"), Ok(None));
    for text in ["x", "1x", "-1", " 1", "18446744073709551616"] {
        assert_eq!(version(text, "m").unwrap_err().code(), ErrorCode::InvalidArg, "{text}");
    }
}

fn output(parameters: &[(&str, Choice)]) -> ModelInferRequest {
    let given = parameters.iter().map(|(name, value)| ((*name).to_owned(), parameter(value.clone())));
    let output = InferRequestedOutputTensor { name: "Y".into(), parameters: given.collect() };
    ModelInferRequest { outputs: vec![output], ..ModelInferRequest::default() }
}

#[test]
fn outputs_may_be_requested_as_classes() {
    let wanted = decoded(output(&[("classification", Choice::Int64Param(3))])).unwrap().request.outputs;
    assert_eq!(wanted, [RequestedOutput { name: "Y".into(), classification: 3 }]);
    let all = decoded(output(&[("classification", Choice::Int64Param(i64::MAX))])).unwrap();
    assert_eq!(all.request.outputs[0].classification, u32::MAX);
    assert!(all.request.allocator.is_none());
    for wrong in [Choice::Int64Param(0), Choice::Int64Param(-1), Choice::StringParam("1".into())] {
        assert_eq!(refused(output(&[("classification", wrong)])).code(), ErrorCode::InvalidArg);
    }
}

#[test]
fn shared_memory_parameters_must_be_complete() {
    const REGION: (&str, Choice) = ("shared_memory_region", Choice::StringParam(String::new()));
    const SIZE: (&str, Choice) = ("shared_memory_byte_size", Choice::Int64Param(4));
    for (parameters, code) in [
        (&[REGION][..], ErrorCode::InvalidArg),
        (&[SIZE], ErrorCode::InvalidArg),
        (&[("shared_memory_offset", Choice::Int64Param(0))], ErrorCode::InvalidArg),
        (&[("shared_memory_region", Choice::Int64Param(1)), SIZE], ErrorCode::InvalidArg),
        (&[REGION, ("shared_memory_byte_size", Choice::Int64Param(-1))], ErrorCode::InvalidArg),
        (&[REGION, ("shared_memory_byte_size", Choice::Uint64Param(4))], ErrorCode::InvalidArg),
        (&[REGION, SIZE, ("shared_memory_offset", Choice::StringParam("0".into()))], ErrorCode::InvalidArg),
        (&[REGION, SIZE, ("classification", Choice::Int64Param(1))], ErrorCode::InvalidArg),
        (&[REGION, SIZE], ErrorCode::NotFound),
    ] {
        assert_eq!(refused(output(parameters)).code(), code, "{parameters:?}");
    }
}

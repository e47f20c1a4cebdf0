//! Requests that are admitted or refused, and their form after admission.

use nereid_backend_api::{DataType, ErrorCode, RequestedOutput};

use super::*;
use crate::signature::OutputSignature;

fn input(name: &str, dims: &[i64]) -> InputSignature {
    InputSignature {
        name: name.into(),
        data_type: DataType::Int32,
        dims: dims.into(),
        reshape: None,
        optional: false,
    }
}

fn signature(max_batch_size: usize, inputs: Vec<InputSignature>) -> Signature {
    let output =
        OutputSignature { name: "OUT".into(), data_type: DataType::Int32, dims: [-1].into(), reshape: None };
    Signature { max_batch_size, inputs, outputs: vec![output] }
}

fn tensor(name: &str, shape: &[i64]) -> Tensor {
    let size = Shape::from(shape).element_count().unwrap_or(0) * 4;
    Tensor::new(name, DataType::Int32, shape, vec![0; size])
}

fn request(inputs: Vec<Tensor>) -> InferRequest {
    InferRequest { inputs, ..InferRequest::default() }
}

fn refused(request: InferRequest, signature: &Signature) -> String {
    let mut request = request;
    let error = admit(&mut request, signature, "m").unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    error.message().to_owned()
}

#[test]
fn a_request_that_fits_is_admitted_with_its_batch_size() {
    let batching = signature(8, vec![input("A", &[2]), input("B", &[-1])]);
    let mut fits = request(vec![tensor("B", &[3, 5]), tensor("A", &[3, 2])]);
    assert_eq!(admit(&mut fits, &batching, "m").unwrap(), 3);
    let mut fits = request(vec![tensor("A", &[3, 2])]);
    assert_eq!(admit(&mut fits, &signature(0, vec![input("A", &[3, -1])]), "m").unwrap(), 1);
}

#[test]
fn names_are_checked_with_what_there_is() {
    let signature = signature(0, vec![input("A", &[1]), input("B", &[1])]);
    assert_eq!(
        refused(request(vec![tensor("A", &[1]), tensor("C", &[1])]), &signature),
        "unexpected inference input 'C' for model 'm' (inputs: 'A', 'B')"
    );
    assert_eq!(
        refused(request(vec![tensor("A", &[1])]), &signature),
        "expected 2 inputs but got 1 inputs for model 'm': missing 'B'"
    );
    assert_eq!(
        refused(request(vec![tensor("A", &[1]), tensor("A", &[1])]), &signature),
        "model 'm': duplicate input 'A'"
    );
    let mut wants = request(vec![tensor("A", &[1]), tensor("B", &[1])]);
    wants.outputs = vec![RequestedOutput::new("NOPE")];
    assert_eq!(
        refused(wants, &signature),
        "unexpected inference output 'NOPE' for model 'm' (outputs: 'OUT')"
    );
}

#[test]
fn an_optional_input_may_be_left_out() {
    let optional = InputSignature { optional: true, ..input("B", &[1]) };
    let signature = signature(0, vec![input("A", &[1]), optional]);
    assert!(admit(&mut request(vec![tensor("A", &[1])]), &signature, "m").is_ok());
    assert!(refused(request(vec![tensor("B", &[1])]), &signature).ends_with("missing 'A'"));
}

#[test]
fn wrong_number_of_inputs_names_the_numbers_that_the_model_takes() {
    let input = |name: &str, optional| InputSignature { optional, ..input(name, &[1]) };
    for (optional, given, expected) in [
        ([false, false], &["A"][..], "expected 2 inputs but got 1 inputs for model 'm': missing 'B'"),
        ([false, false], &[], "expected 2 inputs but got 0 inputs for model 'm': missing 'A', 'B'"),
        (
            [false, false],
            &["A", "B", "C"],
            "expected 2 inputs but got 3 inputs for model 'm': unexpected inference input 'C'",
        ),
        (
            [false, false],
            &["C"],
            "expected 2 inputs but got 1 inputs for model 'm': unexpected inference input 'C'",
        ),
        ([false, false], &["A", "C"], "unexpected inference input 'C' for model 'm'"),
        (
            [false, true],
            &[],
            "expected number of inputs between 1 and 2 but got 0 inputs for model 'm': missing 'A'",
        ),
        ([false, true], &["B"], "model 'm': missing 'A'"),
        (
            [false, true],
            &["A", "B", "C"],
            "expected number of inputs between 1 and 2 but got 3 inputs for model 'm'",
        ),
        (
            [true, true],
            &["A", "B", "C"],
            "expected number of inputs between 0 and 2 but got 3 inputs for model 'm'",
        ),
    ] {
        let signature = signature(0, vec![input("A", optional[0]), input("B", optional[1])]);
        let message = refused(request(given.iter().map(|name| tensor(name, &[1])).collect()), &signature);
        assert!(message.starts_with(expected), "{optional:?} {given:?}: {message}");
    }
}

#[test]
fn inputs_share_a_batch_size_within_the_models_limit() {
    let signature = signature(8, vec![input("A", &[1]), input("B", &[1])]);
    let both = |a: &[i64], b: &[i64]| request(vec![tensor("A", a), tensor("B", b)]);
    assert_eq!(
        refused(both(&[2, 1], &[3, 1]), &signature),
        "model 'm': input 'B' has batch size 3, but input 'A' has 2"
    );
    assert_eq!(
        refused(both(&[9, 1], &[9, 1]), &signature),
        "input 'B' has batch size 9, but model 'm' accepts 1 to 8; raise max_batch_size in its configuration to accept \
         more"
    );
    assert!(refused(both(&[0, 1], &[0, 1]), &signature).ends_with("accepts 1 to 8"));
    assert!(refused(both(&[], &[]), &signature).contains("is a scalar"));
}

#[test]
fn type_shape_and_size_are_checked() {
    let signature = signature(0, vec![input("A", &[2, -1])]);
    let wrong_type = Tensor::new("A", DataType::Fp32, [2, 1], vec![0; 8]);
    assert_eq!(
        refused(request(vec![wrong_type]), &signature),
        "input 'A' has datatype FP32, but model 'm' expects INT32"
    );
    for shape in [[3, 1].as_slice(), &[2], &[2, 1, 1], &[2, -1]] {
        let message = refused(request(vec![tensor("A", shape)]), &signature);
        assert!(
            message.starts_with("unexpected shape for input 'A' for model 'm': got [")
                && message.ends_with("expected [2,-1]"),
            "{message}"
        );
    }
    let short = Tensor::new("A", DataType::Int32, [2, 3], vec![0; 20]);
    assert_eq!(
        refused(request(vec![short]), &signature),
        "input byte size mismatch for input 'A' for model 'm': tensor 'A' has 20 bytes of data, but INT32 of shape [2,3] \
         takes 24"
    );
}

#[test]
fn a_reshape_changes_the_shape_the_backend_sees() {
    let reshaping = InputSignature { reshape: Some([3, -1, 2].into()), ..input("A", &[-1, 6]) };
    let mut fits = request(vec![tensor("A", &[4, 5, 6])]);
    admit(&mut fits, &signature(8, vec![reshaping]), "m").unwrap();
    assert_eq!(fits.inputs[0].shape, [4, 3, 5, 2].into());
}

#[test]
fn the_requests_id_stands_before_the_message() {
    let mut wrong = request(Vec::new());
    wrong.id = "r1".into();
    let message = refused(wrong, &signature(0, vec![input("A", &[1])]));
    assert!(message.starts_with("request 'r1': expected 1 inputs"), "{message}");
}

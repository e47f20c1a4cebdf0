//! The conformance suite of backends, on a model that returns its text.

use std::sync::Arc;

use nereid_backend_api::{BackendSettings, DataType, InferRequest, ModelContext, Tensor};
use nereid_testkit::conformance::{Subject, backend};
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::identity;
use super::server::{config, context, folder};
use super::strings;
use crate::TractBackend;

fn tensor(name: &str, number: u8) -> Tensor {
    strings(name, &[1, 2], &[format!("number {number}").as_bytes(), b""])
}

fn request(input: Tensor) -> InferRequest {
    InferRequest { inputs: vec![input], ..InferRequest::default() }
}

#[test]
fn it_conforms() {
    let of = |data_type| config(8, &[("X", data_type, &[2])], &[("Y", data_type, &[2])]);
    let (right, wrong) = (folder(&identity(Element::String, &[-1, 2])), folder(b"no model"));
    let text = of(DataType::Bytes);
    backend(Subject {
        backend: Arc::new(TractBackend::new(BackendSettings::default(), "it is under test")),
        model: ModelContext { complete: true, ..context(&right, text.clone()) },
        request: |number| request(tensor("X", number)),
        outputs: |number| vec![tensor("Y", number)],
        max_batch: 8,
        reports_executions: true,
        refused: vec![(context(&wrong, text), "model.onnx"), (context(&right, of(DataType::Fp32)), "'X'")],
        faulty: Some((|| request(strings("X", &[1, 2], &[b"fine", b"\xff"])), "is not UTF-8 text")),
    });
}

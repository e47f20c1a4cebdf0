//! Runs the conformance suite of backends on ONNX Runtime: `onnxruntime_conformance LIBRARY FOLDER`. The model in `FOLDER/1` returns
//! FP32 `X` [N,3], times two, as `Y`.
//!
//! This is a program and not a test, since the end-to-end tests provide the library.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{BackendSettings, DataType, InferRequest, Tensor};
use nereid_onnxruntime::{OnnxRuntime, OnnxRuntimeBackend};
use nereid_testkit::conformance::{Subject, backend};
use nereid_testkit::normalised;

fn tensor(name: &str, number: u8, factor: f32) -> Tensor {
    let value = f32::from(number) * factor;
    Tensor::new(name, DataType::Fp32, [1, 3], value.to_le_bytes().repeat(3))
}

fn main() {
    let mut arguments = env::args().skip(1).map(PathBuf::from);
    let (library, folder) = (arguments.next().expect("a library"), arguments.next().expect("a folder"));
    let settings = BackendSettings::default();
    let runtime = OnnxRuntime::open(&library, &settings).expect("a library of ONNX Runtime");
    let context = |text: &str| {
        let config = normalised("m", &format!("backend: 'onnxruntime' max_batch_size: 8 {text}"));
        nereid_testkit::context(&folder, config)
    };
    backend(Subject {
        backend: Arc::new(OnnxRuntimeBackend::new(runtime, settings)),
        model: context(""),
        request: |number| InferRequest { inputs: vec![tensor("X", number, 1.0)], ..InferRequest::default() },
        outputs: |number| vec![tensor("Y", number, 2.0)],
        max_batch: 8,
        reports_executions: true,
        refused: vec![(context("input { name: 'X' data_type: TYPE_STRING dims: 3 }"), "'X'")],
        faulty: None,
    });
    println!("ONNX Runtime conforms");
}

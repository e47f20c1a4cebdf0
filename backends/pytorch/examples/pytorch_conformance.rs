//! Runs the conformance suite of backends on libtorch: `pytorch_conformance LIBRARY FOLDER`. The model in `FOLDER/1` gives
//! its FP32 input [N,3], times two.
//!
//! It is a program and not a test, since the library is one that the end-to-end tests bring along.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{DataType, InferRequest, Tensor};
use nereid_pytorch::{Torch, TorchBackend};
use nereid_testkit::conformance::{Subject, backend};
use nereid_testkit::normalised;

fn tensor(name: &str, number: u8, factor: f32) -> Tensor {
    let value = f32::from(number) * factor;
    Tensor::new(name, DataType::Fp32, [1, 3], value.to_le_bytes().repeat(3))
}

fn main() {
    let mut arguments = env::args().skip(1).map(PathBuf::from);
    let (library, folder) = (arguments.next().expect("a library"), arguments.next().expect("a folder"));
    let torch = Torch::open(&library).expect("libtorch");
    let context = |input: &str| {
        let output = "output { name: 'Y' data_type: TYPE_FP32 dims: 3 }";
        let config = normalised("m", &format!("backend: 'pytorch' max_batch_size: 8 {input} {output}"));
        nereid_testkit::context(&folder, config)
    };
    backend(Subject {
        backend: Arc::new(TorchBackend::new(torch)),
        model: context("input { name: 'X' data_type: TYPE_FP32 dims: 3 }"),
        request: |number| InferRequest { inputs: vec![tensor("X", number, 1.0)], ..InferRequest::default() },
        outputs: |number| vec![tensor("Y", number, 2.0)],
        max_batch: 8,
        reports_executions: true,
        refused: vec![(context("input { name: 'X' data_type: TYPE_STRING dims: 3 }"), "'X'")],
        faulty: None,
    });
    println!("libtorch conforms");
}

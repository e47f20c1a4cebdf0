//! Runs the conformance suite of backends on models written in Python: `python_conformance INTERPRETER FOLDER`. The
//! model in `FOLDER/1` doubles its FP32 input [N,3], and fails if that is negative; `broken.py` fails to initialise.
//!
//! This is a program and not a test because the interpreter needs numpy, which the end-to-end tests install.

use std::env;
use std::path::Path;
use std::sync::Arc;

use nereid_backend_api::{BackendSettings, DataType, InferRequest, Tensor};
use nereid_python::PythonBackend;
use nereid_testkit::conformance::{Subject, backend};
use nereid_testkit::normalised;

fn tensor(name: &str, value: f32) -> Tensor {
    Tensor::new(name, DataType::Fp32, [1, 3], value.to_le_bytes().repeat(3))
}

fn request(value: f32) -> InferRequest {
    InferRequest { inputs: vec![tensor("X", value)], ..InferRequest::default() }
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [interpreter, folder] = &arguments[..] else { panic!("two arguments, not {arguments:?}") };
    let settings = BackendSettings::from_iter([("python", interpreter.as_str())]);
    let python = PythonBackend::new(&settings, Path::new("/nowhere")).expect("the backend python");
    let context = |file: &str| {
        let config = format!(
            "backend: 'python' max_batch_size: 8 default_model_filename: '{file}' \
             input {{ name: 'X' data_type: TYPE_FP32 dims: 3 }} output {{ name: 'Y' data_type: TYPE_FP32 dims: 3 }}"
        );
        nereid_testkit::context(folder, normalised("m", &config))
    };
    backend(Subject {
        backend: Arc::new(python),
        model: context("model.py"),
        request: |number| request(number.into()),
        outputs: |number| vec![tensor("Y", f32::from(number) * 2.0)],
        max_batch: 8,
        reports_executions: true,
        refused: vec![(context("broken.py"), "broken on purpose"), (context("missing.py"), "missing.py")],
        faulty: Some((|| request(-1.0), "negative on purpose")),
    });
    println!("python conforms");
}

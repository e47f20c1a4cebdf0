//! Runs the conformance suite of backends on libtorch, `pytorch_conformance library LIBRARY FOLDER [PLATFORM]`, or on
//! PyTorch's own Python, `pytorch_conformance python INTERPRETER FOLDER [PLATFORM]`. The model in `FOLDER/1` doubles
//! its FP32 input [N,3].
//!
//! This is a program and not a test because the end-to-end tests fetch the library.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{
    Backend, BackendSettings, DataType, InferRequest, Model, ModelContext, Result, Tensor,
};
use nereid_python::PythonBackend;
use nereid_pytorch::{Torch, TorchBackend, class_file};
use nereid_testkit::conformance::{Subject, backend};
use nereid_testkit::normalised;

fn tensor(name: &str, number: u8, factor: f32) -> Tensor {
    let value = f32::from(number) * factor;
    Tensor::new(name, DataType::Fp32, [1, 3], value.to_le_bytes().repeat(3))
}

/// The class for PyTorch's own Python, as a backend.
struct InPython {
    python: PythonBackend,
    class: PathBuf,
}

impl InPython {
    fn open(interpreter: &Path) -> Self {
        let interpreter = interpreter.to_str().expect("a path in UTF-8");
        let settings = BackendSettings::from_iter([("python", interpreter)]);
        let python = PythonBackend::new(&settings, Path::new("/nowhere")).expect("the backend python");
        Self { python, class: class_file().expect("the class") }
    }
}

impl Backend for InPython {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        self.python.load_class(context, self.class.clone())
    }
}

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [engine, program, folder, platform @ ..] = &arguments[..] else {
        panic!("at least three arguments, not {arguments:?}")
    };
    let platform = platform.first().map_or("pytorch_libtorch", String::as_str);
    let pytorch: Arc<dyn Backend> = match &**engine {
        "library" => Arc::new(TorchBackend::new(Torch::open(Path::new(program)).expect("libtorch"))),
        "python" => Arc::new(InPython::open(Path::new(program))),
        other => panic!("the engine is library or python, not {other}"),
    };
    let context = |input: &str| {
        let output = "output { name: 'Y' data_type: TYPE_FP32 dims: 3 }";
        let config = normalised("m", &format!("platform: '{platform}' max_batch_size: 8 {input} {output}"));
        nereid_testkit::context(folder, config)
    };
    let declared = "input { name: 'X' data_type: TYPE_FP32 dims: 3 }";
    backend(Subject {
        backend: pytorch,
        model: context(declared),
        request: |number| InferRequest { inputs: vec![tensor("X", number, 1.0)], ..InferRequest::default() },
        outputs: |number| vec![tensor("Y", number, 2.0)],
        max_batch: 8,
        reports_executions: true,
        refused: vec![
            (context("input { name: 'X' data_type: TYPE_STRING dims: 3 }"), "'X'"),
            (context(&format!("{declared} input {{ name: 'Z' data_type: TYPE_FP32 dims: 3 }}")), "'Z'"),
        ],
        faulty: None,
    });
    println!("{engine} conforms");
}

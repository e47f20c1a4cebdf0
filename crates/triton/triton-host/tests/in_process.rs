//! A backend in C, compiled and loaded into the test process: its correct calls, and its mistakes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nereid_backend_api::{DataType, Error, InferRequest, ParameterValue, Response, Result, Tensor};
use nereid_core::{Backends, Caller, ModelId, ModelSpec, ScopedName, Server, ServerOptions};
use nereid_model_config::{normalise, parse_text};
use nereid_testkit::conformance;
use nereid_triton_host::{LibraryBackends, LibraryOptions};

const CONFIG: &str = "name: 'm' backend: 'c' input { name: 'IN' data_type: TYPE_INT32 dims: -1 }
                      output { name: 'OUT' data_type: TYPE_INT32 dims: -1 }";

/// A server of the model `m`, whose backend is built with `define`; and the failures of loading it.
struct Served {
    server: Arc<Server>,
    failures: Vec<(String, Error)>,
    _folder: tempfile::TempDir,
}

fn compile(folder: &Path, define: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/backend.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wall", "-Werror", define, source, "-o"])
        .arg(folder.join("libtriton_c.so"))
        .status()
        .unwrap();
    assert!(status.success());
}

fn serve(define: &str) -> Served {
    let folder = tempfile::tempdir().unwrap();
    compile(&folder.path().join("backends/c"), define);
    let mut config = parse_text(CONFIG).unwrap();
    normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), folder.path().join("m"), config, [1]);
    let options = LibraryOptions { directory: folder.path().join("backends"), ..LibraryOptions::default() };
    let libraries = Arc::new(LibraryBackends::new(options).unwrap());
    let mut backends = Backends::default();
    backends.set_finder(Arc::clone(&libraries) as _);
    let source = BTreeMap::from([("m".to_owned(), Ok(spec))]);
    let server = Server::new(ServerOptions::default(), backends, Arc::new(source));
    libraries.attach(&server, |_| "told".to_owned());
    let failures = server.start(None).unwrap();
    Served { server, failures, _folder: folder }
}

impl Served {
    /// Sends a request whose id selects the backend's behaviour.
    fn ask(&self, id: &str) -> Result<Response> {
        let request = InferRequest {
            id: id.into(),
            inputs: vec![Tensor::new("IN", DataType::Int32, [3], vec![7; 12])],
            ..InferRequest::default()
        };
        let model = self.server.model(ScopedName::everywhere("m"), None)?;
        let mut stream = self.server.infer(&model, request, Caller::default())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(stream.single())
    }

    /// Sends a request, checks that the input comes back, and returns the error that the backend saw.
    fn fault(&self, id: &str) -> String {
        let response = self.ask(id).unwrap();
        assert_eq!(&*response.outputs[0].contiguous().unwrap(), [7; 12]);
        assert_eq!(&response.outputs[0].shape[..], [3]);
        match response.parameters.get("fault") {
            Some(ParameterValue::String(fault)) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.unload_all();
    }
}

#[test]
fn backend_serves_and_receives_errors_for_its_mistakes() {
    let served = serve("-DPLAIN");
    assert_eq!(served.failures, []);
    assert_eq!(served.fault("right"), "");
    let of = |id: &str| served.fault(id);
    assert_eq!(of("null"), "the result pointer is null");
    assert_eq!(of("kind"), "the handle of a response factory is invalid: was it released before?");
    assert!(of("output").starts_with("unexpected inference output 'NONE' (the model's outputs: "));
    assert_eq!(of("twice"), "2 is not a valid combination of response flags");
    assert_eq!(of("gone"), "the handle of a response is invalid: was it released before?");
    assert_eq!(of("late"), "the handle of a request is invalid: was it released before?");
    assert_eq!(served.fault("right"), "");
}

fn tensor(name: &str, number: u8) -> Tensor {
    Tensor::new(name, DataType::Int32, [3], vec![number; 12])
}

fn numbered(id: &str, number: u8) -> InferRequest {
    InferRequest { id: id.into(), inputs: vec![tensor("IN", number)], ..InferRequest::default() }
}

#[test]
fn library_conforms_as_a_backend() {
    let folder = tempfile::tempdir().unwrap();
    compile(&folder.path().join("backends/c"), "-DPLAIN");
    let options = LibraryOptions { directory: folder.path().join("backends"), ..LibraryOptions::default() };
    let context =
        |text: &str| nereid_testkit::context(folder.path().join("m"), nereid_testkit::normalised("m", text));
    conformance::backend(conformance::Subject {
        backend: Arc::new(LibraryBackends::new(options).unwrap()),
        model: context(CONFIG),
        request: |number| numbered("", number),
        outputs: |number| vec![tensor("OUT", number)],
        max_batch: 1,
        reports_executions: false,
        refused: vec![(context(&CONFIG.replace("'c'", "'absent'")), "absent")],
        faulty: Some((|| numbered("fail", 0), "told to fail")),
    });
}

#[test]
fn failed_or_dropped_request_gets_an_error() {
    let served = serve("-DPLAIN");
    assert_eq!(served.ask("fail").unwrap_err(), Error::invalid_arg("told to fail"));
    let error = served.ask("release").unwrap_err();
    assert_eq!(error.message(), "the backend released the request without answering it");
    assert_eq!(served.fault("right"), "");
}

#[test]
fn refused_model_reports_the_reason() {
    let served = serve("-DREFUSES_MODELS");
    let (model, error) = &served.failures[0];
    assert_eq!(model, "m");
    assert!(error.message().contains("told to refuse models"), "{error}");
}

#[test]
fn model_without_instance_groups_gets_the_preferred_ones() {
    let served = serve("-DPREFERS_THREE");
    assert_eq!(served.failures, []);
    let model = served.server.model(ScopedName::everywhere("m"), None).unwrap();
    let groups = &model.config().instance_group;
    assert_eq!((groups.len(), groups[0].count), (1, 3));
    assert_eq!(served.fault("right"), "");
}

#[test]
fn library_without_the_required_function_is_refused() {
    let served = serve("-DLACKS_EXECUTE");
    let (_, error) = &served.failures[0];
    assert!(error.message().contains("does not export TRITONBACKEND_ModelInstanceExecute"), "{error}");
}

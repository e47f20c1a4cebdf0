//! The way of a request through the server, with backends that do what backends do, and what they should not.

mod answers;
mod batching;
mod continuous;
mod instances;
mod lifecycle;
mod priorities;
mod readiness_watch;
#[path = "../../tests/executors/relay.rs"]
mod relay;
mod schedulers;
mod sequences;
mod stopping;
mod traces;
mod versions;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nereid_backend_api::{
    Backend, Batch, DataType, ErrorCode, InstanceContext, ModelConfig, Response, Tensor,
};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::Kind;
use nereid_testkit::scripts::echo;
use nereid_testkit::{Gate, ScriptedBackend, ScriptedModel};

use super::*;
use crate::scope::ScopedName;
use crate::{Fingerprint, ModelSpec};

/// The execution of a batch by a scripted instance.
type Script = fn(Batch);

/// A backend whose instances follow a script; the load of a version other than 1 fails.
fn scripted(script: impl Fn(Batch) + Send + Sync + 'static) -> ScriptedBackend {
    with_model(ScriptedModel::new(script))
}

/// A backend of this model; the load of a version other than 1 fails.
fn with_model(model: ScriptedModel) -> ScriptedBackend {
    ScriptedBackend::new(move |context| match context.version {
        1 => Ok(model.clone()),
        version => Err(Error::internal(format!("version {version} is broken"))),
    })
}

/// The backends of a server that has this one only.
fn backends(backend: impl Backend + 'static) -> BTreeMap<String, Arc<dyn Backend>> {
    BTreeMap::from([("scripted".to_owned(), Arc::new(backend) as Arc<dyn Backend>)])
}

fn config() -> ModelConfig {
    let text = r#"
        max_batch_size: 4
        input { name: "IN" data_type: TYPE_UINT8 dims: [ 2 ] }
        output { name: "OUT" data_type: TYPE_UINT8 dims: [ 2, 1 ] reshape { shape: [ 2 ] } }
    "#;
    nereid_testkit::config("m", text)
}

fn spec(config: ModelConfig, versions: &[u64]) -> (String, Result<ModelSpec>) {
    let labels = BTreeMap::from([("OUT".to_owned(), vec!["no".to_owned(), "yes".to_owned()])]);
    let spec = ModelSpec { labels, ..ModelSpec::new(ModelId::plain("m"), "m", config, versions) };
    ("m".into(), Ok(spec))
}

fn options() -> ServerOptions {
    ServerOptions {
        name: "test".into(),
        version: "0".into(),
        strict_readiness: true,
        load_threads: 2,
        ..ServerOptions::default()
    }
}

/// A server that has loaded these models.
fn server(backend: impl Backend + 'static, models: Vec<(String, Result<ModelSpec>)>) -> Arc<Server> {
    server_with(options(), backend, models)
}

fn server_with(
    options: ServerOptions,
    backend: impl Backend + 'static,
    models: Vec<(String, Result<ModelSpec>)>,
) -> Arc<Server> {
    let server =
        Server::new(options, backends(backend), Arc::new(models.into_iter().collect::<BTreeMap<_, _>>()));
    server.start(None).unwrap();
    server
}

/// The index, a line a version.
fn index(server: &Server) -> Vec<String> {
    let line = |(ModelId { name, .. }, status): (ModelId, Option<ModelStatus>)| {
        let Some(status) = status else { return name };
        let version = status.version.map(|version| format!("/{version}")).unwrap_or_default();
        let reason = status.state.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{name}{version} {}{reason}", status.state.name())
    };
    server.blocking_index().unwrap().into_iter().map(line).collect()
}

fn serving(script: Script) -> Arc<Server> {
    let server = server(scripted(script), vec![spec(config(), &[1])]);
    assert!(server.is_ready());
    server
}

fn request() -> InferRequest {
    let input = Tensor::new("IN", DataType::Uint8, [1, 2], vec![3, 9]);
    InferRequest { id: "r".into(), inputs: vec![input], ..InferRequest::default() }
}

/// Asks the model 'm'.
fn infer(server: &Server, request: InferRequest) -> Result<ResponseStream> {
    infer_version(server, None, request)
}

fn infer_version(server: &Server, version: Option<u64>, request: InferRequest) -> Result<ResponseStream> {
    server.infer(&server.model(ScopedName::everywhere("m"), version)?, request, Caller::default())
}

async fn ask(server: &Server, request: InferRequest) -> Result<Response> {
    infer(server, request)?.single().await
}

#[tokio::test]
async fn a_request_is_answered_in_the_clients_shape_and_counted() {
    let server = serving(echo);
    let mut answers = infer(&server, request()).unwrap();
    assert_eq!((answers.model_name(), answers.model_version(), answers.request_id()), ("m", 1, "r"));
    let response = answers.single().await.unwrap();
    assert_eq!(
        (&*response.outputs[0].contiguous().unwrap(), &response.outputs[0].shape[..]),
        ([3, 9].as_slice(), [1, 2, 1].as_slice())
    );
    // Counted before it was answered.
    let statistics = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
    assert_eq!((statistics.inference_count, statistics.execution_count, statistics.success.count), (1, 1, 1));
    assert_eq!((statistics.fail.count, statistics.batches[&1].compute_infer.count), (0, 1));
    let parts =
        [statistics.queue, statistics.compute_input, statistics.compute_infer, statistics.compute_output];
    assert_eq!(parts.map(|part| part.count), [1; 4]);
    assert_eq!(parts.iter().map(|part| part.ns).sum::<u64>(), statistics.success.ns);
}

#[tokio::test]
async fn an_output_may_be_answered_as_classes() {
    let mut request = request();
    let output = nereid_backend_api::RequestedOutput { name: "OUT".into(), classification: 1 };
    request.outputs = vec![output];
    let response = ask(&serving(echo), request).await.unwrap();
    assert_eq!(&*response.outputs[0].contiguous().unwrap(), b"\x07\0\0\09:1:yes");
}

#[tokio::test]
async fn backend_mistake_fails_its_request_and_the_model_serves_on() {
    let scripts: [(Script, ErrorCode); 4] = [
        (|batch| drop(batch), ErrorCode::Internal),
        (|_| panic!("the backend's own fault"), ErrorCode::Internal),
        (|batch| batch.complete([]), ErrorCode::Internal),
        (|batch| batch.fail(Error::unavailable("not today")), ErrorCode::Unavailable),
    ];
    for (script, code) in scripts {
        let server = serving(script);
        for asked in 1..=2 {
            assert_eq!(ask(&server, request()).await.unwrap_err().code(), code);
            let statistics = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
            assert_eq!((statistics.fail.count, statistics.success.count), (asked, 0));
        }
    }
}

#[tokio::test]
async fn a_decoupled_backend_answers_as_often_as_it_likes() {
    let server = serving(|batch| {
        for request in batch.into_requests() {
            let responder = request.into_responder();
            // From a thread of its own, after the request is released.
            thread::spawn(move || {
                responder.send(Ok(Response::default()));
                responder.send(Ok(Response::default()));
                responder.finish();
            });
        }
    });
    let mut answers = infer(&server, request()).unwrap();
    let mut count = 0;
    while let Some(answer) = answers.next().await {
        answer.unwrap();
        count += 1;
    }
    assert_eq!(count, 2);
    let statistics = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
    // Responses are counted by their index only if the model is decoupled.
    assert_eq!((statistics.success.count, statistics.responses.len()), (1, 0));
    assert_eq!(ask(&server, request()).await.unwrap_err().code(), ErrorCode::Internal);
}

/// A server whose model answers each request 1,000 times, 2 KiB each, unless the request is cancelled.
fn streaming(max_unread: usize) -> Arc<Server> {
    let script: Script = |batch| {
        for request in batch.into_requests() {
            let responder = request.into_responder();
            for _ in 0..1000 {
                if responder.is_cancelled() {
                    // A careless backend continues.
                    responder.send(Ok(Response::default()));
                    responder.send(Err(Error::cancelled("nobody wants it")));
                    break;
                }
                let output = Tensor::new("OUT", DataType::Uint8, [1, 2048], vec![7; 2048]);
                responder.send(Ok(Response::new(vec![output])));
            }
            responder.finish();
        }
    };
    let decoupled = "model_transaction_policy { decoupled: true }";
    let config = ModelConfig {
        model_transaction_policy: nereid_model_config::parse_text(decoupled)
            .unwrap()
            .model_transaction_policy,
        ..config()
    };
    server_with(ServerOptions { max_unread, ..options() }, scripted(script), vec![spec(config, &[1])])
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_loses_its_request_and_holds_up_no_other() {
    let server = streaming(1 << 20);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut unread = infer(&server, request()).unwrap();
    // The one instance is free for others, though no answer has been read yet.
    let other = infer(&server, request()).unwrap();
    while model.statistics().snapshot().fail.count < 2 {
        thread::yield_now();
    }
    drop(other);
    let error = unread.next().await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert!(error.message().contains("more than 1048576 bytes"), "{}", error.message());
    assert!(unread.next().await.is_none());
    server.unload_all();
    let statistics = model.statistics().snapshot();
    assert_eq!((statistics.fail.count, statistics.success.count), (2, 0));
    // What came after the error is not counted, though its backend went on; the error is.
    let failed: Vec<_> = statistics.responses.iter().map(|it| it.fail.count).collect();
    assert_eq!((failed.iter().sum::<u64>(), failed.last()), (2, Some(&2)));
}

#[tokio::test]
async fn without_a_limit_every_answer_waits() {
    let server = streaming(0);
    let mut answers = infer(&server, request()).unwrap();
    let mut count = 0;
    while let Some(answer) = answers.next().await {
        answer.unwrap();
        count += 1;
    }
    assert_eq!(count, 1000);
}

#[tokio::test]
async fn a_model_that_is_quicker_than_the_way_to_its_thread_is_executed_by_the_caller() {
    let threads = Arc::<Mutex<Vec<thread::ThreadId>>>::default();
    let noted = Arc::clone(&threads);
    let noting = move |batch| {
        noted.lock().unwrap().push(thread::current().id());
        echo(batch);
    };
    let server = server(with_model(ScriptedModel::new(noting).at_once()), vec![spec(config(), &[1])]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let here = thread::current().id();
    let mut asked = 0;
    let mut executed_here = async |mean| {
        model.pool().pretend_cost(mean);
        ask(&server, request()).await.unwrap();
        asked += 1;
        let threads = threads.lock().unwrap();
        assert_eq!(threads.len(), asked);
        threads.last() == Some(&here)
    };
    assert!(!executed_here(Duration::from_millis(1)).await);
    // The instance is idle as soon as its thread is back from the last request.
    while !executed_here(Duration::from_micros(1)).await {
        thread::yield_now();
    }
    assert!(!executed_here(Duration::from_millis(1)).await);
    server.unload_all();
}

/// A backend whose executions wait at the gate.
fn gated(gate: &Gate) -> ScriptedBackend {
    let gate = gate.clone();
    scripted(move |batch| {
        gate.pass(&batch);
        echo(batch);
    })
}

fn serving_gated() -> (Arc<Server>, Gate) {
    let gate = Gate::default();
    (server(gated(&gate), vec![spec(config(), &[1])]), gate)
}

#[tokio::test]
async fn a_request_whose_client_is_gone_leaves_the_queue_unexecuted() {
    let (server, gate) = serving_gated();
    let mut first = infer(&server, request()).unwrap();
    gate.entered(1);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let gone = infer(&server, request()).unwrap();
    assert_eq!(model.pending(), 1);
    // The request leaves at once, not when an instance reaches it.
    drop(gone);
    assert_eq!((model.pending(), model.statistics().snapshot().cancel.count), (0, 1));
    let mut last = infer(&server, request()).unwrap();
    gate.open();
    first.single().await.unwrap();
    last.single().await.unwrap();
    let statistics = model.statistics().snapshot();
    assert_eq!((statistics.execution_count, statistics.success.count, statistics.cancel.count), (2, 2, 1));
}

#[tokio::test]
async fn unloading_answers_what_is_queued_and_refuses_what_comes_later() {
    let (server, gate) = serving_gated();
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut executing = infer(&server, request()).unwrap();
    let mut queued = infer(&server, request()).unwrap();
    gate.entered(1);
    server.begin_shutdown();
    assert!(!server.is_ready());
    thread::scope(|scope| {
        scope.spawn(|| server.unload_all());
        gate.open();
    });
    executing.single().await.unwrap();
    queued.single().await.unwrap();
    // A request that found the model before it was unloaded is refused, not lost.
    let late = model.infer(request(), Caller::default()).unwrap().single().await;
    assert_eq!(late.unwrap_err().code(), ErrorCode::Unavailable);
    assert_eq!(ask(&server, request()).await.unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn a_version_that_fails_to_load_is_known_and_keeps_the_others_from_being_served() {
    let server = server(
        scripted(echo),
        vec![spec(config(), &[1, 2]), ("bad".into(), Err(Error::invalid_arg("its configuration is wrong")))],
    );
    assert!(!server.is_ready());
    assert_eq!(ask(&server, request()).await.unwrap_err().code(), ErrorCode::NotFound);
    let refused = |version| infer_version(&server, Some(version), request()).err().unwrap().code();
    assert_eq!((refused(2), refused(3)), (ErrorCode::Unavailable, ErrorCode::NotFound));
    assert_eq!(
        index(&server),
        [
            "bad UNAVAILABLE: its configuration is wrong",
            "m/1 UNAVAILABLE: unloaded",
            "m/2 UNAVAILABLE: version 2 is broken",
        ]
    );
}

#[test]
fn a_model_that_cannot_be_served_as_configured_says_why() {
    let gpu = ModelInstanceGroup { kind: Kind::Gpu.into(), ..ModelInstanceGroup::default() };
    let cases = [
        (ModelConfig { backend: "nope".into(), ..config() }, "(available: scripted)"),
        (ModelConfig { backend: String::new(), ..config() }, "names no backend"),
        (ModelConfig { instance_group: vec![gpu], ..config() }, "KIND_GPU"),
    ];
    for (config, expected) in cases {
        let server = server(scripted(echo), vec![spec(config, &[1])]);
        let status = server.models().index().next().unwrap();
        let reason = status.state.reason().expect(expected);
        assert!(reason.contains(expected), "{reason}");
        assert!(!server.is_ready());
    }
    let (name, faulty) = spec(config(), &[1, 2]);
    let faulty = faulty.map(|spec| ModelSpec { fault: Some(Error::not_found("no labels")), ..spec });
    let faulty = server(scripted(echo), vec![(name, faulty)]);
    assert_eq!(index(&faulty), ["m/1 UNAVAILABLE: no labels", "m/2 UNAVAILABLE: no labels"]);
    let server = server(scripted(echo), vec![spec(config(), &[])]);
    assert_eq!(index(&server), ["m UNAVAILABLE: model 'm' has no version to serve"]);
    assert!(!server.is_ready());
}

//! A backend whose models call the server: for answers, streams and loads, at every time of their lives.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{mem, thread};

use nereid_backend_api::{
    Activity, Backend, Batch, DataType, ErrorCode, InferRequest, Instance, InstanceContext, MetricKind,
    ModelContext, Request, RequestTrace, Response, Trace, TraceLevel, TraceSink, block_on,
};

use super::*;
use crate::scope::ScopedName;
use crate::{ModelControl, ModelId, ModelSpec, ServerOptions};

/// The behaviour of each model follows from its name; the calls of `asker` from the id of the request.
#[derive(Clone)]
struct Asking {
    /// Hears of each request that `held` holds.
    held: Sender<()>,
    /// The peers of models, kept after these have ended.
    peers: Arc<Mutex<Vec<Arc<dyn Peers>>>>,
}

struct AskingModel {
    name: String,
    peers: Arc<dyn Peers>,
    held: Sender<()>,
}

impl Backend for Asking {
    fn load(&self, context: ModelContext) -> Result<Box<dyn nereid_backend_api::Model>> {
        let ModelContext { name, peers, .. } = context;
        self.peers.lock().unwrap().push(Arc::clone(&peers));
        match name.as_str() {
            "eager" => drop(ask(&*peers, "echo", InnerRequest::new(request()))?),
            "early" => block_on(peers.model_ready("later", None))?,
            _ => {}
        }
        Ok(Box::new(AskingModel { name, peers, held: self.held.clone() }))
    }
}

impl nereid_backend_api::Model for AskingModel {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        let (name, peers, held) = (self.name.clone(), Arc::clone(&self.peers), self.held.clone());
        Ok(Box::new(Self { name, peers, held }))
    }
}

impl Instance for AskingModel {
    fn execute(&mut self, batch: Batch) {
        for request in batch.into_requests() {
            match self.name.as_str() {
                "asker" => {
                    let outcome = self.answer_to(&request);
                    request.answer(outcome);
                }
                "stream" => {
                    (0..3).for_each(|_| request.responder().send(Ok(echo(&request))));
                    request.responder().finish();
                }
                "held" => {
                    let held = self.held.clone();
                    thread::spawn(move || {
                        held.send(()).unwrap();
                        block_on(request.cancellation().cancelled());
                        request.answer(Err(Error::cancelled("held until it was cancelled")));
                    });
                }
                _ => {
                    let response = echo(&request);
                    request.answer(Ok(response));
                }
            }
        }
    }
}

impl AskingModel {
    fn answer_to(&self, request: &Request) -> Result<Response> {
        let inner = || InnerRequest::of(request, self::request());
        match request.id.as_str() {
            "stream" => {
                let mut answers = block_on(self.peers.resolve("stream", None))?.infer(inner())?;
                let mut outputs = Vec::new();
                while let Some(answer) = block_on(answers.next()) {
                    outputs.extend(answer?.outputs);
                }
                Ok(Response::new(outputs))
            }
            "give up" => {
                let mut answers = block_on(self.peers.resolve("held", None))?.infer(inner())?;
                answers.canceller()();
                block_on(answers.single())
            }
            "load" => {
                block_on(self.peers.load("later", Overrides::default()))?;
                let response = ask(&*self.peers, "later", inner())?;
                block_on(self.peers.unload("later", false))?;
                Ok(response)
            }
            model => ask(&*self.peers, model, inner()),
        }
    }
}

fn request() -> InferRequest {
    let inputs = vec![Tensor::new("X", DataType::Uint8, [2], vec![3, 4])];
    InferRequest { inputs, ..InferRequest::default() }
}

fn ask(peers: &dyn Peers, model: &str, inner: InnerRequest) -> Result<Response> {
    block_on(block_on(peers.resolve(model, None))?.infer(inner)?.single())
}

fn echo(request: &Request) -> Response {
    Response::new(vec![Tensor { name: "Y".into(), ..request.inputs[0].clone() }])
}

/// A server of these models, all of the same backend.
struct World {
    server: Arc<Server>,
    backend: Asking,
    held: Receiver<()>,
}

fn spec(name: &str) -> ModelSpec {
    let decoupled = if name == "stream" { "model_transaction_policy { decoupled: true }" } else { "" };
    let text = format!(
        "name: '{name}' backend: 'asking' {decoupled}
         input {{ name: 'X' data_type: TYPE_UINT8 dims: [ 2 ] }} output {{ name: 'Y' data_type: TYPE_UINT8 dims: [ 2 ] }}"
    );
    let config = nereid_model_config::parse_text(&text).unwrap();
    ModelSpec::new(ModelId::plain(name), name, config, [1])
}

/// A server that has loaded all models but those that the tests load.
fn world() -> World {
    let (send, held) = channel();
    let backend = Asking { held: send, peers: Arc::default() };
    let names = ["asker", "echo", "stream", "held", "eager", "early", "later"];
    let source: BTreeMap<_, _> = names.map(|name| (name.to_owned(), Ok(spec(name)))).into();
    let options =
        ServerOptions { model_control: ModelControl::Explicit, load_threads: 2, ..ServerOptions::default() };
    let backends = BTreeMap::from([("asking".to_owned(), Arc::new(backend.clone()) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, Arc::new(source));
    assert_eq!(server.start(Some(names[..4].iter().map(ToString::to_string).collect())).unwrap(), []);
    World { server, backend, held }
}

impl World {
    /// The answer of `asker`.
    fn ask(&self, id: &str) -> Result<Response> {
        block_on(self.begin(id).single())
    }

    fn begin(&self, id: &str) -> ResponseStream {
        self.send(InferRequest { id: id.to_owned(), ..request() })
    }

    fn send(&self, request: InferRequest) -> ResponseStream {
        let asker = self.server.model(ScopedName::everywhere("asker"), None).unwrap();
        self.server.infer(&asker, request, Caller::default()).unwrap()
    }

    fn refusal(&self, id: &str) -> (ErrorCode, String) {
        let error = self.ask(id).expect_err("it should be refused");
        (error.code(), error.message().to_owned())
    }
}

#[test]
fn an_inner_request_is_answered_once_or_in_a_stream() {
    let world = world();
    let one = world.ask("echo").unwrap();
    assert_eq!(&*one.outputs[0].contiguous().unwrap(), [3, 4]);
    assert_eq!(world.ask("stream").unwrap().outputs.len(), 3);
    let several = ask(&*world.server.peers(), "stream", InnerRequest::new(request()));
    assert_eq!(several.unwrap_err().message(), "model 'stream' returned more than one answer, expected one");
}

#[test]
fn an_inner_request_is_cancelled_with_its_parent_or_by_itself() {
    let world = world();
    let mut outer = world.begin("held");
    world.held.recv().unwrap();
    outer.canceller().cancel();
    let error = block_on(outer.single()).unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::Cancelled, "held until it was cancelled"));
    assert_eq!(world.refusal("give up").0, ErrorCode::Cancelled);
    // Nobody waits for its answers.
    let held = world.server.peers().model("held", None).unwrap();
    drop(held.infer(InnerRequest::new(request())).unwrap());
}

#[test]
fn canceller_keeps_nothing_of_a_finished_request() {
    let world = world();
    let echo = world.server.model(ScopedName::everywhere("echo"), None).unwrap();
    let holders = Arc::strong_count(&echo);
    let mut cancellers = Vec::new();
    for _ in 0..3 {
        let mut stream = world.server.infer(&echo, request(), Caller::default()).unwrap();
        cancellers.push(stream.canceller());
        block_on(stream.single()).unwrap();
    }
    // The instance may hold the last one for a moment.
    let end = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&echo) > holders && Instant::now() < end {
        thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&echo), holders);
    // Too late.
    cancellers.iter().for_each(|canceller| canceller.cancel());
}

#[test]
fn an_application_is_refused_while_the_server_stops_as_clients_are() {
    let world = world();
    let application = world.server.peers_of_application();
    ask(&*application, "echo", InnerRequest::new(request())).unwrap();
    world.server.begin_shutdown();
    let refused = ask(&*application, "echo", InnerRequest::new(request())).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    ask(&*world.server.peers(), "echo", InnerRequest::new(request())).unwrap();
}

#[test]
fn backends_may_ask_while_the_server_stops() {
    let world = world();
    let peers = world.server.peers();
    let mut held = world.begin("held");
    world.held.recv().unwrap();
    world.server.begin_shutdown();
    ask(&*peers, "echo", InnerRequest::new(request())).unwrap();
    let echo = world.server.model(ScopedName::everywhere("echo"), None).unwrap();
    let refused = world.server.infer(&echo, request(), Caller::default()).map(drop);
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Unavailable);
    held.canceller().cancel();
    block_on(held.single()).unwrap_err();
}

#[test]
fn unknown_model_or_version_is_refused() {
    let world = world();
    assert_eq!(world.refusal("nobody").0, ErrorCode::NotFound);
    let peers = world.server.peers();
    assert!(peers.model("nobody", None).is_err() && peers.model("echo", Some(2)).is_err());
    assert!(block_on(peers.model_ready("nobody", None)).is_err());
    let model = peers.model("stream", None).unwrap();
    assert_eq!((model.name(), model.version(), model.is_decoupled()), ("stream", 1, true));
    assert_eq!(
        &model.raw_input([nereid_backend_api::Buffer::host(vec![1, 2])].into_iter().collect()).unwrap().shape
            [..],
        [2]
    );
    assert_eq!(block_on(peers.ready()), Ok(true));
}

#[test]
fn a_model_loads_another_while_it_executes() {
    let world = world();
    assert_eq!(world.ask("load").unwrap().outputs.len(), 1);
    assert_eq!(world.refusal("later").0, ErrorCode::NotFound);
}

#[test]
fn a_model_asks_others_while_it_loads() {
    let world = world();
    let load = |model| block_on(world.server.peers().load(model, Overrides::default()));
    assert_eq!(load("eager"), Ok(()));
    assert!(load("early").unwrap_err().message().contains("later"));
    assert!(load("nobody").is_err());
}

#[test]
fn metrics_of_backends_are_kept_with_the_server() {
    let world = world();
    let registry = world.server.peers().metrics().unwrap();
    let family = registry.family(MetricKind::Counter, "asked", "How often something was asked.").unwrap();
    let counter = family.metric(BTreeMap::new(), None).unwrap();
    counter.increment(2.0).unwrap();
    assert_eq!(world.server.options().metrics.snapshot()[0].name, "asked");
}

#[test]
fn a_backend_does_not_keep_the_server_alive_and_asks_in_vain_afterwards() {
    let World { server, backend, .. } = world();
    let weak = Arc::downgrade(&server);
    let closing = server.peers();
    let echo = closing.model("echo", None).unwrap();
    server.unload_all();
    let refused = block_on(closing.load("later", Overrides::default())).unwrap_err();
    assert_eq!((refused.code(), refused.message()), (ErrorCode::Unavailable, "the server is stopping"));
    drop(server);
    assert!(weak.upgrade().is_none());
    let orphaned = echo.infer(InnerRequest::new(request())).err();
    assert_eq!(orphaned.unwrap().message(), "the server has shut down");
    for peers in mem::take(&mut *backend.peers.lock().unwrap()) {
        let errors = [
            block_on(peers.resolve("echo", None)).err(),
            block_on(peers.load("later", Overrides::default())).err(),
            block_on(peers.unload("later", true)).err(),
            block_on(peers.ready()).err(),
            block_on(peers.model_ready("echo", None)).err(),
            peers.model("echo", None).err(),
            peers.metrics().err(),
        ];
        for error in errors {
            assert_eq!(error.unwrap().message(), "the server has shut down");
        }
    }
}

/// Notes which traces began, with their parents.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<(String, u64, u64)>>>);

impl TraceSink for Begun {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, _: Instant) {
        if activity == Activity::RequestStart {
            let model = trace.subject().unwrap().model_name.clone();
            self.0.lock().unwrap().push((model, trace.id(), trace.parent()));
        }
    }

    fn tensor(&self, _: &Arc<Trace>, _: nereid_backend_api::TensorActivity, _: &Tensor) {}

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

#[test]
fn an_inner_request_is_traced_as_a_child() {
    let (world, begun) = (world(), Arc::<Begun>::default());
    let level = TraceLevel { timestamps: true, tensors: false };
    let trace = Some(RequestTrace::new(Trace::new(level, 0, Arc::<Begun>::clone(&begun))));
    let request = InferRequest { id: "echo".into(), trace, ..request() };
    block_on(world.send(request).single()).unwrap();
    let begun = begun.0.lock().unwrap();
    let [(outer, id, 0), (inner, _, parent)] = &begun[..] else { panic!("{begun:?}") };
    assert_eq!((outer.as_str(), inner.as_str(), id), ("asker", "echo", parent));
}

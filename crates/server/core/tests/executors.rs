//! Executors and interceptors as other crates register them: with the public interface alone.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "executors/relay.rs"]
mod relay;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use nereid_backend_api::block_on;
use nereid_core::backend_api::{
    CorrelationId, DataType, Error, ErrorCode, InferRequest, MemoryUsage, Request, Response, Result, Tensor,
};
use nereid_core::model_config::ModelConfig;
use nereid_core::{
    BuildError, Caller, Executable, Executor, ExecutorFactory, Executors, Interceptor, InterceptorFactory,
    Interceptors, LoadedVersion, Model, ModelControl, ModelId, ModelSpec, Overrides, ReadyCheck, ScopedName,
    Sequences, Server, ServerOptions, Step, Ticket, VersionLoad, Work,
};
use nereid_testkit::ScriptedBackend;
use nereid_testkit::scripts::echo;

/// The value of a parameter in a model's configuration.
fn parameter(config: &ModelConfig, name: &str) -> Option<i64> {
    config.parameters.get(name)?.string_value.parse().ok()
}

/// Executes models of the backend `sum`: adds each request's number to a total, and answers with the total.
#[derive(Default)]
struct SumFactory {
    /// Loads that fail before one succeeds.
    failures: AtomicI64,
    builds: AtomicU64,
    closed: Arc<AtomicU64>,
}

struct Sum {
    totals: Mutex<BTreeMap<CorrelationKey, i64>>,
    closed: Arc<AtomicU64>,
}

/// The number of a sequence; 0 for none.
type CorrelationKey = u64;

fn key(id: &CorrelationId) -> CorrelationKey {
    if let CorrelationId::Number(number) = id { *number } else { 0 }
}

impl ExecutorFactory for SumFactory {
    fn accepts(&self, spec: &ModelSpec) -> bool {
        spec.config.backend == "sum"
    }

    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError> {
        self.builds.fetch_add(1, Ordering::Relaxed);
        if load.version > 1 {
            return Err(Error::invalid_arg("there is one version only").into());
        }
        if self.failures.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Err(BuildError::temporary(Error::unavailable("try again")));
        }
        let config = load.spec.config.clone();
        let statistics = load.statistics(&config);
        let sum = Sum { totals: Mutex::default(), closed: Arc::clone(&self.closed) };
        Ok(Executable::new(config, BTreeMap::new(), statistics, Arc::new(sum)))
    }
}

impl Executor for Sum {
    fn submit(&self, request: Request) -> Result<Option<Ticket>> {
        let number = i64::from(request.input("IN")?.contiguous()?[0]);
        let (sequence, ends) = (key(&request.correlation_id), request.sequence.end);
        let total = {
            let mut totals = self.totals.lock().unwrap();
            let total = totals.entry(sequence).or_default();
            *total += number;
            let total = *total;
            if ends {
                totals.remove(&sequence);
            }
            total
        };
        let output = Tensor::new("OUT", DataType::Uint8, [1], vec![total as u8]);
        request.answer(Ok(Response::new(vec![output])));
        Ok(None)
    }

    fn cancel(&self, _: Ticket) {}

    fn pending(&self) -> usize {
        0
    }

    fn close(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    fn check_ready(&self) -> Vec<ReadyCheck> {
        vec![Box::pin(async { Ok(()) })]
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    fn sequences(&self) -> Option<&dyn Sequences> {
        Some(self)
    }
}

impl Sequences for Sum {
    fn continues(&self, sequence: &CorrelationId) -> bool {
        self.totals.lock().unwrap().contains_key(&key(sequence))
    }

    fn has_open(&self) -> bool {
        self.totals.lock().unwrap().keys().any(|sequence| *sequence != 0)
    }
}

/// Limits the requests to each model by its parameter `quota`. Models without one have no interceptor.
#[derive(Default)]
struct QuotaFactory {
    quotas: Mutex<BTreeMap<String, Arc<Quota>>>,
}

struct Quota {
    left: AtomicI64,
}

impl InterceptorFactory for QuotaFactory {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>> {
        let Some(quota) = parameter(version.config, "quota") else { return Ok(None) };
        if quota < 0 {
            return Err(Error::invalid_arg(format!("the quota of '{}' is negative", version.spec.id)));
        }
        let quota = Arc::new(Quota { left: AtomicI64::new(quota) });
        self.quotas.lock().unwrap().insert(version.spec.id.name.clone(), Arc::clone(&quota));
        Ok(Some(quota))
    }
}

impl Interceptor for Quota {
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Step::Proceed;
        }
        let error = Error::unavailable(format!("the quota of '{}' is used up", model.name()));
        request.responder().finish_with(Err(error));
        Step::Answered
    }
}

fn model(name: &str, text: &str) -> (String, Result<ModelSpec>) {
    let tensors = "input { name: 'IN' data_type: TYPE_UINT8 dims: [ 1 ] }
                   output { name: 'OUT' data_type: TYPE_UINT8 dims: [ 1 ] }";
    let config = nereid_testkit::normalised(name, &format!("{tensors} {text}"));
    (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), name, config, [1])))
}

fn quota(count: i64) -> String {
    format!("parameters {{ key: 'quota' value {{ string_value: '{count}' }} }}")
}

const TO_SUM: &str = "ensemble_scheduling { step { model_name: 'sum' model_version: -1
    input_map { key: 'IN' value: 'IN' } output_map { key: 'OUT' value: 'OUT' } } }";

struct World {
    server: Arc<Server>,
    sums: Arc<SumFactory>,
}

fn world(sums: SumFactory, load_retries: usize, models: Vec<(String, Result<ModelSpec>)>) -> World {
    let sums = Arc::new(sums);
    let mut executors: Executors = relay::relays();
    executors.register(Arc::clone(&sums) as _);
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::new(QuotaFactory::default()));
    let options = ServerOptions {
        load_threads: 2,
        load_retries,
        model_control: ModelControl::Explicit,
        executors,
        interceptors,
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("scripted".to_owned(), Arc::new(ScriptedBackend::executing(echo)) as _)]);
    let models: BTreeMap<_, _> = models.into_iter().collect();
    World { server: Server::new(options, backends, Arc::new(models)), sums }
}

impl World {
    fn start(&self) -> BTreeMap<String, Error> {
        self.server.start(None).unwrap().into_iter().collect()
    }

    fn ask(&self, model: &str, number: u8, sequence: Option<(u64, bool, bool)>) -> Result<u8> {
        let input = Tensor::new("IN", DataType::Uint8, [1], vec![number]);
        let mut request = InferRequest { inputs: vec![input], ..InferRequest::default() };
        if let Some((id, start, end)) = sequence {
            request.correlation_id = CorrelationId::Number(id);
            (request.sequence.start, request.sequence.end) = (start, end);
        }
        let model = self.server.model(ScopedName::everywhere(model), None)?;
        let mut answers = self.server.infer(&model, request, Caller::default())?;
        let response = block_on(answers.single())?;
        Ok(response.outputs[0].contiguous()?[0])
    }

    fn unload(&self, model: &str) {
        let (done, ended) = channel();
        self.server
            .unload_model(ScopedName::everywhere(model), move |outcome| done.send(outcome).unwrap())
            .unwrap();
        ended.recv().unwrap().unwrap();
    }

    fn load(&self, model: &str) -> Result<()> {
        let (done, ended) = channel();
        let done = move |outcome| done.send(outcome).unwrap();
        self.server.load_model(ScopedName::everywhere(model), Overrides::default(), done).unwrap();
        ended.recv().unwrap()
    }

    fn ready(&self) -> Vec<String> {
        self.server.models().ready().map(|model| model.name().to_owned()).collect()
    }
}

#[test]
fn each_kind_of_executor_executes_its_own_models() {
    let models =
        vec![model("sum", "backend: 'sum'"), model("echo", "backend: 'scripted'"), model("relay", TO_SUM)];
    let world = world(SumFactory::default(), 0, models);
    assert_eq!(world.start(), BTreeMap::new());
    assert_eq!(world.ask("sum", 5, None).unwrap(), 5);
    assert_eq!(world.ask("echo", 5, None).unwrap(), 5);
    // The same model counts what others relay to it.
    assert_eq!(world.ask("relay", 2, None).unwrap(), 7);
    let successes = |name: &str| {
        world.server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot().success.count
    };
    assert_eq!(["sum", "echo", "relay"].map(successes), [2, 1, 1]);
    for name in ["sum", "echo", "relay"] {
        let model = world.server.model(ScopedName::everywhere(name), None).unwrap();
        block_on(model.ready()).unwrap();
        assert_eq!((model.is_composite(), model.pending()), (name == "relay", 0));
    }
    world.server.unload_all();
    assert_eq!(world.sums.closed.load(Ordering::Relaxed), 1);
}

#[test]
fn composite_model_follows_the_models_it_depends_on() {
    let world = world(SumFactory::default(), 0, vec![model("sum", "backend: 'sum'"), model("relay", TO_SUM)]);
    world.load("relay").unwrap();
    assert_eq!(world.ready(), ["relay", "sum"]);
    world.unload("sum");
    assert_eq!(world.ready(), [""; 0]);
    world.load("sum").unwrap();
    assert_eq!(world.ready(), ["relay", "sum"]);
    assert_eq!(world.ask("relay", 3, None).unwrap(), 3);
}

#[test]
fn temporary_build_error_is_retried_and_a_permanent_one_is_not() {
    for (failures, retries, builds, loads) in [(0, 3, 1, true), (2, 3, 3, true), (3, 2, 3, false)] {
        let sums = SumFactory { failures: AtomicI64::new(failures), ..SumFactory::default() };
        let world = world(sums, retries, vec![model("sum", "backend: 'sum'")]);
        assert_eq!(world.start().is_empty(), loads, "{failures} failures, {retries} retries");
        assert_eq!(world.sums.builds.load(Ordering::Relaxed), builds);
    }
    let (name, spec) = model("sum", "backend: 'sum'");
    let spec = spec.map(|spec| ModelSpec { versions: vec![2], ..spec });
    let world = world(SumFactory::default(), 3, vec![(name, spec)]);
    assert!(world.start()["sum"].message().contains("there is one version only"));
    assert_eq!(world.sums.builds.load(Ordering::Relaxed), 1);
}

#[test]
fn sequences_of_an_executor_continue_while_the_server_stops() {
    let models = vec![model("sum", "backend: 'sum'"), model("relay", TO_SUM)];
    let world = world(SumFactory::default(), 0, models);
    assert_eq!(world.start(), BTreeMap::new());
    assert_eq!(world.ask("sum", 1, Some((7, true, false))).unwrap(), 1);
    assert_eq!(world.ask("relay", 1, Some((7, false, false))).unwrap(), 2);
    world.server.begin_shutdown();
    assert_eq!(world.server.work(), Work::Sequences);
    for model in ["sum", "relay"] {
        assert_eq!(world.ask(model, 1, None).unwrap_err().code(), ErrorCode::Unavailable);
        assert_eq!(world.ask(model, 1, Some((8, false, false))).unwrap_err().code(), ErrorCode::Unavailable);
    }
    assert_eq!(world.ask("relay", 1, Some((7, false, false))).unwrap(), 3);
    assert_eq!(world.ask("sum", 1, Some((7, false, true))).unwrap(), 4);
    assert_eq!(world.server.work(), Work::Nothing);
}

#[test]
fn interceptor_factory_decides_for_each_model() {
    let models = vec![
        model("sum", &format!("backend: 'sum' {}", quota(3))),
        model("echo", &format!("backend: 'scripted' {}", quota(1))),
        model("free", "backend: 'scripted'"),
        model("wrong", &format!("backend: 'sum' {}", quota(-1))),
        model("relay", TO_SUM),
    ];
    let world = world(SumFactory::default(), 0, models);
    let failures = world.start();
    assert_eq!(failures.keys().collect::<Vec<_>>(), ["wrong"]);
    assert!(failures["wrong"].message().contains("the quota of 'wrong' is negative"));
    // Its executor was built, and is closed.
    assert_eq!(world.sums.closed.load(Ordering::Relaxed), 1);
    assert_eq!(world.ask("echo", 1, None).unwrap(), 1);
    assert_eq!(world.ask("echo", 1, None).unwrap_err().message(), "the quota of 'echo' is used up");
    (0..10).for_each(|number| assert_eq!(world.ask("free", number, None).unwrap(), number));
    // Requests that other models make count, too.
    assert_eq!(world.ask("sum", 1, None).unwrap(), 1);
    assert_eq!(world.ask("relay", 1, None).unwrap(), 2);
    assert_eq!(world.ask("relay", 1, None).unwrap(), 3);
    for name in ["sum", "relay"] {
        assert_eq!(world.ask(name, 1, None).unwrap_err().message(), "the quota of 'sum' is used up");
    }
    let counted = world.server.model(ScopedName::everywhere("sum"), None).unwrap().statistics().snapshot();
    assert_eq!((counted.success.count, counted.fail.count), (3, 2));
}

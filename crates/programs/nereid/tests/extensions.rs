//! Interceptors and executors of a program: with the public interface of the library alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nereid::extend::{
    BuildError, Caller, Executable, Executor, ExecutorFactory, Interceptor, InterceptorFactory,
    LoadedVersion, MemoryUsage, Model, ModelSpec, QueuedRequest, ReadyCheck, Sequences, Step, Ticket,
    VersionLoad,
};
use nereid::{Error, ErrorCode, Request, Response, Server, elements, tensor, view};

const TENSORS: &str =
    "input { name: 'X' data_type: TYPE_INT64 dims: -1 } output { name: 'Y' data_type: TYPE_INT64 dims: 1 }";

fn add_model(repository: &Path, name: &str, config: &str) {
    fs::create_dir_all(repository.join(name).join("1")).unwrap();
    fs::write(repository.join(name).join("config.pbtxt"), format!("{config} {TENSORS}")).unwrap();
}

/// Executes the models of the backend `sum`: the output is the sum of the input.
#[derive(Default)]
struct SumFactory {
    closed: Arc<AtomicU64>,
}

struct Sum {
    closed: Arc<AtomicU64>,
}

impl ExecutorFactory for SumFactory {
    fn accepts(&self, spec: &ModelSpec) -> bool {
        spec.config.backend == "sum"
    }

    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError> {
        let config = load.spec.config.clone();
        if config.parameters.contains_key("refuse") {
            return Err(Error::invalid_arg("the model refuses to load").into());
        }
        let statistics = load.statistics(&config);
        let sum = Sum { closed: Arc::clone(&self.closed) };
        Ok(Executable::new(config, BTreeMap::new(), statistics, Arc::new(sum)))
    }
}

impl Executor for Sum {
    fn submit(&self, request: QueuedRequest) -> Result<Option<Ticket>, Error> {
        let sum = view::<i64>(request.input("X")?).map(|values| values.iter().sum::<i64>());
        request.answer(sum.map(|sum| Response::new(vec![tensor("Y", [1], &[sum])])));
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
        None
    }
}

/// Counts the requests to models with the parameter `counted`, and refuses those without an id.
#[derive(Default)]
struct Counters(Arc<AtomicU64>);

struct Counter(Arc<AtomicU64>);

impl InterceptorFactory for Counters {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>, Error> {
        let is_counted = version.config.parameters.contains_key("counted");
        Ok(is_counted.then(|| Arc::new(Counter(Arc::clone(&self.0))) as _))
    }
}

impl Interceptor for Counter {
    fn intercept(&self, model: &Arc<Model>, request: &mut QueuedRequest, _: &Caller) -> Step {
        self.0.fetch_add(1, Ordering::Relaxed);
        if !request.id.is_empty() {
            return Step::Proceed;
        }
        let reason = format!("requests to '{}' need an id", model.name());
        request.responder().finish_with(Err(Error::invalid_arg(reason)));
        Step::Answered
    }
}

#[tokio::test]
async fn executors_and_interceptors_of_a_program_serve_models() {
    let repository = tempfile::tempdir().unwrap();
    let counted = "parameters { key: 'counted' value { string_value: '1' } }";
    add_model(repository.path(), "plain", "backend: 'sum'");
    add_model(repository.path(), "counted", &format!("backend: 'sum' {counted}"));
    let (sums, counters) = (SumFactory::default(), Counters::default());
    let (closed, count) = (Arc::clone(&sums.closed), Arc::clone(&counters.0));
    let builder = Server::builder().model_repository(repository.path());
    let builder = builder.executor_factory(Arc::new(sums)).interceptor_factory(Arc::new(counters));
    let server = builder.start().await.unwrap();
    for (model, id, expected) in [
        ("plain", "", Ok(6)),
        ("plain", "x", Ok(6)),
        ("counted", "x", Ok(6)),
        ("counted", "", Err("requests to 'counted' need an id")),
    ] {
        let request = Request::new(model).id(id).input(tensor("X", [3], &[1_i64, 2, 3]));
        match (server.infer(request).await, expected) {
            (Ok(response), Ok(sum)) => {
                assert_eq!(elements::<i64>(response.output("Y").unwrap()).unwrap(), [sum]);
            }
            (Err(error), Err(reason)) => {
                assert_eq!((error.code(), error.message()), (ErrorCode::InvalidArg, reason));
            }
            (outcome, expected) => panic!("{model} {id}: {outcome:?}, not {expected:?}"),
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
    server.stop().await.unwrap();
    assert_eq!(closed.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn executor_may_refuse_a_model() {
    let repository = tempfile::tempdir().unwrap();
    add_model(
        repository.path(),
        "refusing",
        "backend: 'sum' parameters { key: 'refuse' value { string_value: '1' } }",
    );
    let builder = || Server::builder().model_repository(repository.path());
    let error = builder().executor_factory(Arc::new(SumFactory::default())).start().await.unwrap_err();
    assert!(error.message().contains("the model refuses to load"), "{error}");
    // Without the executor, the backend is unknown.
    let error = builder().start().await.unwrap_err();
    assert!(error.message().contains("backend 'sum' is not installed"), "{error}");
}

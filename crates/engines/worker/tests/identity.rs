//! The identity backend in a process of its own: it conforms as it does within the server, and whatever its process does,
//! every request is answered, and the instance works again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Backend, DataType, InferRequest, Instance, InstanceContext, Model, ModelCapabilities, ModelContext,
    NoPeers, ReadinessReports, Result, Tensor,
};
use nereid_model_config::to_json;
use nereid_testkit::{Executions, Recorder, conformance};
use nereid_worker::{Launch, Limits, Process, State, Worker, WorkerEvents, WorkerInstance, Workers};
use nereid_worker_protocol::call;

const MODEL: &str = r#"
    max_batch_size: 4
    input [ { name: "INPUT0" data_type: TYPE_INT8 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] } ]
"#;

/// Runs the identity backend in processes.
struct InProcesses;

impl Backend for InProcesses {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        // As a check of the model.
        Starts::new(&context).start(Box::new(|_| ()))?;
        Ok(Box::new(ModelInProcesses { context, workers: Mutex::default() }))
    }
}

struct ModelInProcesses {
    context: ModelContext,
    workers: Mutex<Vec<Weak<Worker>>>,
}

impl Model for ModelInProcesses {
    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let worker = Worker::start(&context.name, Box::new(Starts::new(&self.context)))?;
        self.workers.lock().unwrap().push(Arc::downgrade(&worker));
        Ok(Box::new(WorkerInstance::new(worker, outputs())))
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities { readiness: ReadinessReports::WhenAsked, ..ModelCapabilities::default() }
    }

    fn ready(&self) -> Result<()> {
        let workers = self.workers.lock().unwrap();
        workers.iter().filter_map(Weak::upgrade).try_for_each(|worker| worker.ready(true))
    }
}

/// An argument that distinguishes the processes of this suite from those of other tests.
fn argument() -> String {
    format!("conforms, for {}", std::process::id())
}

struct Starts {
    config: String,
    argument: String,
    limits: Limits,
    restarts: Arc<AtomicUsize>,
}

impl Starts {
    fn new(context: &ModelContext) -> Self {
        let config = to_json(&context.config);
        Self { config, argument: argument(), limits: Limits::default(), restarts: Arc::default() }
    }
}

impl WorkerEvents for Starts {
    fn start(&self, ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>> {
        let process = start(&self.argument, self.limits, ended)?;
        process.call(call::INITIALIZE, call::INITIALIZED, |message| {
            message.pairs([("model_config", self.config.as_str())].into_iter());
        })?;
        Ok(process)
    }

    fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

fn start(behaviour: &str, limits: Limits, ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>> {
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples/identity_worker");
    let launch = Launch { program, arguments: vec![behaviour.into()], ..Launch::default() };
    Process::start(&launch, "m_0", Arc::new(NoPeers), limits, ended)
}

fn context(text: &str) -> ModelContext {
    nereid_testkit::context("m", nereid_testkit::normalised("m", text))
}

#[test]
fn it_conforms_in_a_process_as_it_does_within_the_server() {
    conformance::backend(conformance::Subject {
        backend: Arc::new(InProcesses),
        model: context(MODEL),
        request: |number| request("", &[number; 2]),
        outputs: |number| vec![Tensor::new("OUTPUT0", DataType::Int8, [1, 2], vec![number; 2])],
        max_batch: 4,
        reports_executions: true,
        refused: vec![(context(&MODEL.replace("OUTPUT0", "OUTPUT1")), "no output 'OUTPUT0'")],
        faulty: Some((|| request("fails", &[1, 2]), "as it was asked to")),
    });
    // The last one was killed just now.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !running_with(&argument()).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", running_with(&argument()));
        std::thread::yield_now();
    }
}

fn request(id: &str, contents: &[u8]) -> InferRequest {
    InferRequest {
        id: id.to_owned(),
        inputs: vec![Tensor::new("INPUT0", DataType::Int8, [1, contents.len() as i64], contents.to_vec())],
        ..InferRequest::default()
    }
}

/// The processes that run with this argument.
fn running_with(argument: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(argument)).collect()
}

fn outputs() -> Vec<String> {
    vec!["OUTPUT0".to_owned()]
}

/// An instance, and how often its process was started again.
fn instance(limits: Limits) -> (WorkerInstance, Arc<Worker>, Arc<AtomicUsize>) {
    instance_that("", limits)
}

fn instance_that(behaviour: &str, limits: Limits) -> (WorkerInstance, Arc<Worker>, Arc<AtomicUsize>) {
    let restarts = Arc::<AtomicUsize>::default();
    let argument = behaviour.to_owned();
    let starts = Starts { argument, limits, restarts: Arc::clone(&restarts), ..Starts::new(&context(MODEL)) };
    let worker = Worker::start("m_0", Box::new(starts)).unwrap();
    (WorkerInstance::new(Arc::clone(&worker), outputs()), worker, restarts)
}

/// Executes requests with these ids as one batch; what each is answered.
fn execute(instance: &mut WorkerInstance, ids: &[&str]) -> Vec<Vec<Result<usize, String>>> {
    let contents = [5; 20_000];
    let (requests, recorders): (Vec<_>, Vec<_>) =
        ids.iter().map(|id| Recorder::request(request(id, &contents), 1)).unzip();
    instance.execute(Arc::<Executions>::default().batch(requests));
    let size = |answer: nereid_backend_api::Answer| match answer {
        Ok(response) => Ok(response.outputs.iter().map(Tensor::byte_size).sum()),
        Err(error) => Err(error.message().to_owned()),
    };
    recorders.iter().map(|recorder| recorder.answers().into_iter().map(size).collect()).collect()
}

#[test]
fn misbehaving_process_answers_its_requests_and_the_next_ones() {
    let good = vec![Ok(20_000)];
    for (id, expected, dies) in [
        ("", good.clone(), false),
        ("prints", good.clone(), false),
        ("later", vec![Ok(1), Ok(100_000), Ok(1)], false),
        ("fails", vec![Err("as it was asked to".to_owned())], false),
        ("nothing", vec![Err("released the request without answering".to_owned())], false),
        ("unknown output", vec![Ok(20_000)], false),
        ("wrong size", vec![Err("INT32 of shape [100] takes 400".to_owned())], false),
        ("an outcome too many", vec![Err("broke the protocol".to_owned())], true),
        ("exits", vec![Err("'m_0' exited with status 7".to_owned())], true),
        ("aborts", vec![Err("'m_0' was killed by signal 6 (SIGABRT: aborted)".to_owned())], true),
        ("hangs", vec![Err("did not answer in time".to_owned())], true),
    ] {
        let limit = Duration::from_secs(if id == "hangs" { 2 } else { 60 });
        let (mut instance, worker, restarts) = instance(Limits { execute: Some(limit), ..Limits::default() });
        let answers = execute(&mut instance, &[id, ""]);
        for (answer, expected) in answers[0].iter().zip(&expected) {
            match (answer, expected) {
                (Err(error), Err(part)) => assert!(error.contains(part.as_str()), "{id}: {error}"),
                (answer, expected) => assert_eq!(answer, expected, "{id}"),
            }
        }
        assert_eq!(answers[0].len(), expected.len(), "{id}");
        assert_eq!(answers[1][0].is_err(), dies, "{id}: {:?}", answers[1]);
        assert_eq!(execute(&mut instance, &["", ""]), [good.clone(), good.clone()], "{id}");
        assert_eq!(restarts.load(Ordering::Relaxed), usize::from(dies), "{id}");
        assert_eq!(worker.ready(true), Ok(()), "{id}");
        drop(instance);
        assert!(matches!(worker.state(), State::Stopped), "{id}");
    }
}

#[test]
fn responses_that_were_sent_before_an_exception_arrive_before_it() {
    let (mut instance, _, restarts) = instance(Limits::default());
    for _ in 0..20 {
        let answers = execute(&mut instance, &["answers, then throws", ""]);
        assert_eq!(answers[0], [Ok(1), Ok(100_000), Ok(1)]);
        assert_eq!(answers[1], [Err("ValueError: late".to_owned())]);
    }
    assert_eq!(restarts.load(Ordering::Relaxed), 0);
}

#[test]
fn an_instance_that_is_slow_to_say_that_it_is_ready_is_not_ready_and_lives_on() {
    let limits = Limits { ready: Duration::from_millis(50), ..Limits::default() };
    let (mut instance, worker, restarts) = instance_that("slow to be ready", limits);
    for _ in 0..2 {
        let error = worker.ready(true).unwrap_err();
        assert!(error.message().contains("has not said whether it is ready for 0.05 s"), "{error}");
        // The answer that comes too late is not taken for the execution's.
        assert_eq!(execute(&mut instance, &["", ""]), [[Ok(20_000)], [Ok(20_000)]]);
    }
    assert_eq!(worker.ready(false), Ok(()));
    assert_eq!(restarts.load(Ordering::Relaxed), 0);
}

#[test]
fn a_process_that_keeps_dying_is_started_after_pauses_and_its_requests_do_not_wait_for_ever() {
    let (mut instance, worker, restarts) = instance(Limits::default());
    for deaths in 1..4 {
        assert!(execute(&mut instance, &["aborts"])[0][0].is_err());
        assert_eq!(execute(&mut instance, &[""]), [[Ok(20_000)]]);
        assert_eq!(restarts.load(Ordering::Relaxed), deaths);
    }
    worker.stop();
    let answer = execute(&mut instance, &[""]).remove(0).remove(0);
    assert_eq!(answer, Err("model instance 'm_0' has ended".to_owned()));
}

#[test]
fn while_a_process_starts_again_its_instance_executes_in_those_of_others() {
    let workers = Workers::default();
    let instances = |behaviour: &str| {
        let (instance, worker, _) = instance_that(behaviour, Limits::default());
        workers.add(&worker);
        (instance.helped_by(workers.clone()), worker)
    };
    let (mut one, one_worker) = instances("");
    let (other, other_worker) = instances("");
    // It starts at once after its first death, and after growing pauses later.
    for _ in 0..3 {
        assert!(execute(&mut one, &["aborts"])[0][0].is_err());
        assert_eq!(execute(&mut one, &[""]), [[Ok(20_000)]]);
    }
    assert_eq!(workers.all().len(), 2);
    one_worker.stop();
    // An instance that ends does not make its model unready.
    assert!(one_worker.ready(false).is_err());
    assert!(workers.all().iter().all(|worker| Arc::ptr_eq(worker, &other_worker)));
    for _ in 0..3 {
        assert_eq!(execute(&mut one, &[""]), [[Ok(20_000)]], "the other process executes");
    }
    assert_eq!(other_worker.ready(true), Ok(()));
    drop(other);
    let answer = execute(&mut one, &[""]).remove(0).remove(0);
    assert_eq!(answer, Err("model instance 'm_0' has ended".to_owned()));
}

#[test]
fn a_process_that_does_not_start_properly_is_an_error_in_time() {
    let limits = Limits::default();
    let short = Limits { start: Duration::from_millis(300), ..limits };
    for (behaviour, limits, part) in [
        ("ends at once", limits, "exited with status 3"),
        ("never says hello", short, "did not answer in time"),
        ("speaks garbage", limits, "broke the protocol"),
    ] {
        let error = start(behaviour, limits, Box::new(|_| ())).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
    let launch = Launch { program: "/nowhere/program".into(), ..Launch::default() };
    let error = Process::start(&launch, "m_0", Arc::new(NoPeers), limits, Box::new(|_| ())).unwrap_err();
    assert_eq!(error.message(), "cannot start '/nowhere/program': No such file or directory (os error 2)");
}

#[test]
fn a_process_that_dies_while_it_is_idle_is_started_again() {
    let (mut instance, worker, restarts) = instance(Limits::default());
    let State::Running(process) = worker.state() else { panic!("it runs") };
    process.kill("was killed by the test");
    assert_eq!(process.wait().as_deref(), Some("was killed by the test"));
    assert_eq!(execute(&mut instance, &[""]), [[Ok(20_000)]]);
    assert_eq!(restarts.load(Ordering::Relaxed), 1);
}

#[test]
fn instance_whose_process_is_stopped_ends_at_once() {
    let behaviour = format!("is stopped, for {}", std::process::id());
    let (mut instance, worker, _) = instance_that(&behaviour, Limits::default());
    assert_eq!(execute(&mut instance, &[""]), [[Ok(20_000)]]);
    let pid = std::fs::read_dir("/proc").unwrap().flatten().find(|entry| {
        std::fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|line| line.contains(&behaviour))
    });
    let pid = pid.unwrap().file_name();
    assert!(std::process::Command::new("kill").arg("-STOP").arg(pid).status().unwrap().success());
    let began = Instant::now();
    drop(instance);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(matches!(worker.state(), State::Stopped));
}

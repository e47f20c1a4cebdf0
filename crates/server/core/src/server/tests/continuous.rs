//! An engine with continuous batching: requests join those that execute, as far as it has slots, and all others stay in the
//! queue.

use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::Waker;

use nereid_backend_api::{
    CorrelationId, Instance, Intake, Model as BackendModel, ModelContext, Next, Request,
};
use nereid_model_config::parse_text;

use super::*;
use crate::scope::ScopedName;
use crate::source::BlockingSource;
use nereid_scheduling::rate_limiter::{RateLimit, ResourceLimit};

/// The device of an engine: the test decides when it finishes a request.
#[derive(Default)]
struct Device {
    state: Mutex<DeviceState>,
    changed: Condvar,
    slots: AtomicUsize,
    /// Names a way to fail instead of running.
    failure: Mutex<Option<Failure>>,
    /// Whether the instances have [`Instance::run`] of their own.
    runs: AtomicBool,
    warm_ups: AtomicUsize,
    /// Called after each request that an engine takes.
    pace: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

#[derive(Default)]
struct DeviceState {
    /// The ids of the requests in the order in which they were taken.
    taken: Vec<String>,
    finished: Vec<String>,
    /// The requests that the engine found cancelled.
    cancelled: Vec<String>,
    /// Whether every request is finished at once.
    is_open: bool,
    wakers: Vec<Waker>,
    instances: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    PanicBefore,
    PanicAfter,
    Return,
}

impl Device {
    fn with_slots(slots: usize) -> Arc<Self> {
        let device = Self::default();
        device.slots.store(slots, Ordering::Relaxed);
        device.runs.store(true, Ordering::Relaxed);
        Arc::new(device)
    }

    fn change(&self, change: impl FnOnce(&mut DeviceState)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        let wakers = state.wakers.clone();
        drop(state);
        self.changed.notify_all();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn finish(&self, id: &str) {
        self.change(|state| state.finished.push(id.to_owned()));
    }

    fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    fn failure(&self) -> Option<Failure> {
        *self.failure.lock().unwrap()
    }

    fn pace(&self) {
        let pace = self.pace.lock().unwrap().clone();
        if let Some(pace) = pace {
            pace();
        }
    }

    /// The requests that were taken, once there are this many.
    fn taken(&self, count: usize) -> Vec<String> {
        self.wait_until(|state| state.taken.len() >= count, |state| state.taken.clone())
    }

    fn wait_until<T>(&self, is_so: impl Fn(&DeviceState) -> bool, read: impl Fn(&DeviceState) -> T) -> T {
        let limit = Duration::from_secs(20);
        let state = self.state.lock().unwrap();
        let (state, wait) = self.changed.wait_timeout_while(state, limit, |state| !is_so(state)).unwrap();
        assert!(!wait.timed_out(), "taken: {:?}", state.taken);
        read(&state)
    }
}

struct Engine {
    device: Arc<Device>,
    active: Vec<Batch>,
}

fn id(batch: &Batch) -> String {
    batch.requests()[0].id.clone()
}

impl Instance for Engine {
    fn execute(&mut self, batch: Batch) {
        self.device.warm_ups.fetch_add(1, Ordering::Relaxed);
        echo(batch);
    }

    fn executes_continuously(&self) -> bool {
        true
    }

    fn run(&mut self, mut intake: Intake) {
        if !self.device.runs.load(Ordering::Relaxed) {
            return run_by_default(intake);
        }
        self.device.change(|state| state.wakers.push(intake.waker()));
        loop {
            let failure = self.device.failure();
            assert_ne!(failure, Some(Failure::PanicBefore), "on purpose");
            if failure == Some(Failure::Return) {
                return;
            }
            let slots = self.device.slots.load(Ordering::Relaxed);
            let active = &self.active;
            // The correlation id is the number of slots that a request takes; one without.
            let size = |request: &Request| match request.correlation_id {
                CorrelationId::Number(slots) => slots as usize,
                _ => 1,
            };
            let used: usize = active.iter().map(|batch| size(&batch.requests()[0])).sum();
            match intake.try_next(|request| used + size(request) <= slots) {
                Next::Request(batch) => {
                    self.device.change(|state| state.taken.push(id(&batch)));
                    self.active.push(batch);
                    let failure = self.device.failure();
                    assert_ne!(failure, Some(Failure::PanicAfter), "on purpose");
                    self.device.pace();
                    continue;
                }
                Next::Ended if self.active.is_empty() => return,
                Next::Ended | Next::Full | Next::Nothing => {}
            }
            if !self.step() {
                intake.wait();
            }
        }
    }
}

/// Executes through the default of [`Instance::run`].
fn run_by_default(intake: Intake) {
    struct Plain;
    impl Instance for Plain {
        fn execute(&mut self, batch: Batch) {
            echo(batch);
        }
    }
    Plain.run(intake);
}

impl Engine {
    /// Answers the requests that are finished or cancelled. Whether there were any.
    fn step(&mut self) -> bool {
        let mut state = self.device.state.lock().unwrap();
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for batch in self.active.drain(..) {
            let is_cancelled = batch.requests()[0].responder().is_cancelled();
            if is_cancelled {
                state.cancelled.push(id(&batch));
            }
            if is_cancelled || state.is_open || state.finished.contains(&id(&batch)) {
                done.push(batch);
            } else {
                left.push(batch);
            }
        }
        drop(state);
        self.device.changed.notify_all();
        self.active = left;
        let is_any = !done.is_empty();
        done.into_iter().for_each(echo);
        is_any
    }
}

struct Engines(Arc<Device>);

impl Backend for Engines {
    fn load(&self, _: ModelContext) -> Result<Box<dyn BackendModel>> {
        Ok(Box::new(Engines(Arc::clone(&self.0))))
    }
}

impl BackendModel for Engines {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        self.0.change(|state| state.instances += 1);
        Ok(Box::new(Engine { device: Arc::clone(&self.0), active: Vec::new() }))
    }
}

fn model(name: &str, text: &str) -> (String, Result<ModelSpec>) {
    let given = parse_text(text).unwrap();
    let mut config = ModelConfig { name: name.to_owned(), ..config() };
    config.scheduling_choice = given.scheduling_choice;
    (config.instance_group, config.model_warmup) = (given.instance_group, given.model_warmup);
    nereid_model_config::normalise(&mut config);
    (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), name, config, [1])))
}

fn serving(device: &Arc<Device>, text: &str) -> Arc<Server> {
    let server = server(Engines(Arc::clone(device)), vec![model("m", text)]);
    assert!(server.is_ready(), "{:?}", index(&server));
    server
}

fn named(id: &str) -> InferRequest {
    InferRequest { id: id.into(), ..request() }
}

/// A request that takes this many slots.
fn sized(id: &str, slots: u64) -> InferRequest {
    InferRequest { correlation_id: CorrelationId::Number(slots), ..named(id) }
}

fn pending(server: &Server) -> usize {
    server.model(ScopedName::everywhere("m"), None).unwrap().pending()
}

const SCHEDULINGS: [&str; 3] = [
    "",
    "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }",
    "dynamic_batching {
        preserve_ordering: true }",
];

#[tokio::test]
async fn requests_join_those_that_execute_and_others_stay_in_the_queue() {
    for scheduling in SCHEDULINGS {
        for slots in 1..4 {
            let device = Device::with_slots(slots);
            let server = serving(&device, scheduling);
            let ids = ["a", "b", "c", "d", "e"];
            let mut answers: Vec<_> = ids.map(|id| infer(&server, named(id)).unwrap()).into();
            for (index, id) in ids.into_iter().enumerate() {
                let taken = (index + slots).min(ids.len());
                assert_eq!(device.taken(taken), ids[..taken], "{scheduling}");
                assert_eq!(pending(&server), ids.len() - taken);
                device.finish(id);
                answers[index].single().await.unwrap();
            }
            let statistics = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
            let counts = [statistics.success.count, statistics.inference_count, statistics.execution_count];
            assert_eq!((counts, statistics.queue.count), ([5; 3], 5), "each is an execution of its own");
            assert_eq!(statistics.batches[&1].compute_infer.count, 5);
            assert!(statistics.success.ns >= statistics.queue.ns + statistics.compute_infer.ns);
        }
    }
}

#[tokio::test]
async fn urgent_requests_are_taken_first() {
    let device = Device::with_slots(1);
    let server = serving(&device, "dynamic_batching { priority_levels: 3 default_priority_level: 2 }");
    let mut answers = Vec::new();
    for (id, priority) in [("first", 3), ("late", 3), ("usual", 0), ("urgent", 1), ("later", 3)] {
        answers.push(infer(&server, InferRequest { priority, ..named(id) }).unwrap());
        device.taken(1);
    }
    device.open();
    for mut answer in answers {
        answer.single().await.unwrap();
    }
    assert_eq!(device.taken(5), ["first", "urgent", "usual", "late", "later"]);
}

#[tokio::test]
async fn limits_and_timeouts_concern_the_queue_and_not_the_slots() {
    let device = Device::with_slots(1);
    let policy = "dynamic_batching { default_queue_policy { max_queue_size: 2
        default_timeout_microseconds: 3600000000 allow_timeout_override: true } }";
    let server = serving(&device, policy);
    // Long enough for the requests behind it to join the queue.
    let hasty = |id| InferRequest { timeout: Some(Duration::from_millis(500)), ..named(id) };
    let mut first = infer(&server, named("first")).unwrap();
    device.taken(1);
    let mut expires = infer(&server, hasty("expires")).unwrap();
    let mut waits = infer(&server, named("waits")).unwrap();
    let error = infer(&server, named("refused")).unwrap().single().await.unwrap_err();
    assert!(error.message().contains("has 2 pending requests"), "{error}");
    let error = expires.single().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::Unavailable, "Request timeout expired"));
    assert_eq!(pending(&server), 1);
    device.open();
    first.single().await.unwrap();
    waits.single().await.unwrap();
    assert_eq!(device.taken(2), ["first", "waits"]);
}

#[tokio::test]
async fn a_cancelled_request_leaves_the_queue_at_once_and_its_slot_when_the_engine_notices() {
    let device = Device::with_slots(1);
    let server = serving(&device, "");
    let executing = infer(&server, named("executing")).unwrap();
    device.taken(1);
    let queued = infer(&server, named("queued")).unwrap();
    let mut last = infer(&server, named("last")).unwrap();
    drop(queued);
    assert_eq!(pending(&server), 1);
    drop(executing);
    device.change(|_| ());
    assert_eq!(device.taken(2), ["executing", "last"]);
    device.open();
    last.single().await.unwrap();
    device.wait_until(|state| state.cancelled == ["executing"], |_| ());
}

#[tokio::test]
async fn a_request_that_does_not_fit_holds_back_those_behind_it_and_an_idle_engine_takes_any() {
    let device = Device::with_slots(4);
    let server = serving(&device, "");
    let sizes = [("a", 1), ("b", 2), ("c", 3), ("d", 1), ("huge", 9), ("e", 1)];
    let mut answers = sizes.map(|(id, size)| infer(&server, sized(id, size)).unwrap());
    assert_eq!(device.taken(2), ["a", "b"]);
    // One slot is left: "d" would fit, but "c" is before it.
    assert_eq!(pending(&server), 4);
    device.finish("b");
    answers[1].single().await.unwrap();
    assert_eq!(device.taken(3), ["a", "b", "c"]);
    device.finish("a");
    assert_eq!(device.taken(4)[3], "d");
    assert_eq!(pending(&server), 2);
    for id in ["c", "d"] {
        device.finish(id);
    }
    // It has more than the engine has, which takes nothing else until it is done.
    assert_eq!(device.taken(5)[4], "huge");
    assert_eq!(pending(&server), 1);
    device.open();
    for (index, answer) in answers.iter_mut().enumerate().filter(|(index, _)| *index != 1) {
        answer.single().await.unwrap_or_else(|error| panic!("{index}: {error}"));
    }
}

#[tokio::test]
async fn an_engine_without_room_leaves_requests_to_others() {
    let device = Device::with_slots(2);
    let server = serving(&device, "instance_group { count: 3 }");
    let ids: Vec<_> = (0..8).map(|number| number.to_string()).collect();
    let mut answers: Vec<_> = ids.iter().map(|id| infer(&server, named(id)).unwrap()).collect();
    let mut taken = device.taken(6);
    taken.sort();
    assert_eq!((taken, pending(&server)), (ids[..6].to_vec(), 2));
    device.open();
    for answer in &mut answers {
        answer.single().await.unwrap();
    }
}

#[tokio::test]
async fn queued_and_held_requests_are_executed_before_an_unload_or_a_stop_ends() {
    for scheduling in SCHEDULINGS {
        for stops in [false, true] {
            let device = Device::with_slots(2);
            let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
            let models: BTreeMap<_, _> = [model("m", scheduling)].into();
            let server = Server::new(options, backends(Engines(Arc::clone(&device))), Arc::new(models));
            server.start(Some(vec!["m".to_owned()])).unwrap();
            let mut answers = ["a", "b", "c"].map(|id| infer(&server, named(id)).unwrap());
            device.taken(2);
            let found = server.model(ScopedName::everywhere("m"), None).unwrap();
            thread::scope(|scope| {
                if stops {
                    server.begin_shutdown();
                    assert_eq!(server.work(), Work::Requests);
                    scope.spawn(|| server.unload_all());
                } else {
                    let (done, outcome) = channel();
                    server
                        .unload_model(ScopedName::everywhere("m"), move |result| done.send(result).unwrap())
                        .unwrap();
                    outcome.recv().unwrap().unwrap();
                    assert_eq!(index(&server), ["m/1 UNLOADING"]);
                }
                device.open();
                for answer in &mut answers {
                    nereid_backend_api::block_on(answer.single()).unwrap();
                }
            });
            drop((found, answers));
            // Instances, model and backend hold references to the device, so their number shows that the instances have ended.
            while Arc::strong_count(&device) > 2 {
                thread::yield_now();
            }
            assert_eq!(device.taken(3), ["a", "b", "c"]);
        }
    }
}

#[tokio::test]
async fn an_engine_that_fails_answers_its_requests_and_goes_on() {
    for failure in [Failure::PanicBefore, Failure::PanicAfter, Failure::Return] {
        for slots in [1, 3] {
            let device = Device::with_slots(slots);
            let server = serving(&device, "dynamic_batching { preserve_ordering: true }");
            let mut in_slots: Vec<_> =
                (0..slots).map(|number| infer(&server, named(&format!("s{number}"))).unwrap()).collect();
            device.taken(slots);
            let mut queued: Vec<_> =
                ["q0", "q1"].map(|id| infer(&server, named(id)).unwrap()).into_iter().collect();
            *device.failure.lock().unwrap() = Some(failure);
            device.finish("s0");
            let mut errors = 0;
            for answer in in_slots.iter_mut().chain(&mut queued) {
                if let Err(error) = answer.single().await {
                    assert_eq!(error.code(), ErrorCode::Internal);
                    let expected = if failure == Failure::Return { "stopped before" } else { "panicked" };
                    assert!(error.message().contains(expected), "{error}");
                    errors += 1;
                }
            }
            assert!(errors >= slots, "{failure:?}: {errors} of {}", slots + 2);
            // The model serves again once its engine is well.
            *device.failure.lock().unwrap() = None;
            device.open();
            for number in 0..4 {
                let _ = ask(&server, named(&format!("between{number}"))).await;
            }
            ask(&server, named("after")).await.unwrap();
            assert_eq!(pending(&server), 0);
            server.unload_all();
        }
    }
}

#[tokio::test]
async fn an_instance_that_only_says_that_it_is_continuous_executes_one_request_after_another() {
    for scheduling in SCHEDULINGS {
        let device = Device::with_slots(1);
        device.runs.store(false, Ordering::Relaxed);
        let server = serving(&device, scheduling);
        let mut answers: Vec<_> = (0..20).map(|_| infer(&server, request()).unwrap()).collect();
        for answer in &mut answers {
            answer.single().await.unwrap();
        }
        server.unload_all();
    }
}

#[tokio::test]
async fn engines_of_several_models_share_a_resource_by_priority() {
    for priorities in [[1, 1], [1, 2], [3, 1]] {
        let device = Device::with_slots(2);
        let group = |priority| {
            format!(
                "instance_group {{ rate_limiter {{ priority: {priority} resources {{ name: 'R' count: 1 }} }} }}"
            )
        };
        let limits = vec![ResourceLimit { name: "R".to_owned(), count: 1, device: None }];
        let options = ServerOptions { rate_limit: RateLimit::ExecutionCount(limits), ..options() };
        let models = vec![model("m0", &group(priorities[0])), model("m1", &group(priorities[1]))];
        let server = server_with(options, Engines(Arc::clone(&device)), models);
        let ask = |model: usize, number: usize| {
            let found = server.model(ScopedName::everywhere(&format!("m{model}")), None).unwrap();
            server.infer(&found, named(&format!("{model}.{number}")), Caller::default()).unwrap()
        };
        let mut answers = vec![ask(0, 0)];
        device.taken(1);
        for number in 1..24 {
            answers.extend([ask(0, number), ask(1, number)]);
        }
        // The other model waits for the resource.
        let limiter = server.models.limiter().unwrap();
        while limiter.waiting() == 0 {
            thread::yield_now();
        }
        assert!(device.taken(1).iter().all(|id| id.starts_with("0.")));
        // As if each request took long: the other engine has time to request the resource while both have requests.
        let seen = Arc::downgrade(&device);
        *device.pace.lock().unwrap() = Some(Arc::new(move || {
            let Some(device) = seen.upgrade() else { return };
            let taken = device.taken(0);
            let left = |prefix: &str| taken.iter().filter(|id| id.starts_with(prefix)).count() < 22;
            while left("0.") && left("1.") && limiter.waiting() == 0 {
                thread::yield_now();
            }
        }));
        device.open();
        for answer in &mut answers {
            answer.single().await.unwrap();
        }
        // While both have requests, neither is far behind what its priority allows.
        let (taken, mut counts) = (device.taken(47), [0_u32, 0]);
        for id in taken {
            counts[usize::from(id.starts_with("1."))] += 1;
            if counts.iter().any(|count| *count > 20) {
                break;
            }
            let weighed = [counts[0] * priorities[0], counts[1] * priorities[1]];
            // Both slots of the one that began were taken at once.
            let most = 2 * priorities[0].max(priorities[1]);
            assert!(weighed[0].abs_diff(weighed[1]) <= most, "{counts:?} of {priorities:?}");
        }
        // An idle engine holds no resource.
        let found = server.model(ScopedName::everywhere("m1"), None).unwrap();
        server.infer(&found, named("last"), Caller::default()).unwrap().single().await.unwrap();
    }
}

#[tokio::test]
async fn an_engine_keeps_its_requests_when_instances_are_added() {
    let device = Device::with_slots(1);
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
    let source = Arc::new(Counts(AtomicUsize::new(1)));
    let server = Server::new(options, backends(Engines(Arc::clone(&device))), Arc::clone(&source) as _);
    server.start(Some(vec!["m".to_owned()])).unwrap();
    let mut first = infer(&server, named("first")).unwrap();
    device.taken(1);
    source.0.store(2, Ordering::Relaxed);
    let (done, outcome) = channel();
    server
        .load_model(ScopedName::everywhere("m"), Overrides::default(), move |result| {
            done.send(result).unwrap()
        })
        .unwrap();
    while server.model(ScopedName::everywhere("m"), None).unwrap().config().instance_group[0].count == 1 {
        thread::yield_now();
    }
    let mut second = infer(&server, named("second")).unwrap();
    device.wait_until(|state| state.instances == 2 && state.taken.len() == 2, |_| ());
    device.finish("first");
    first.single().await.unwrap();
    drop(first);
    outcome.recv().unwrap().unwrap();
    // The kept instance serves on.
    let mut third = infer(&server, named("third")).unwrap();
    assert_eq!(device.taken(3), ["first", "second", "third"]);
    device.open();
    second.single().await.unwrap();
    third.single().await.unwrap();
    assert_eq!(device.wait_until(|_| true, |state| state.instances), 2);
}

/// A model with this many instances.
struct Counts(AtomicUsize);

impl BlockingSource for Counts {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["m".to_owned()])
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let count = self.0.load(Ordering::Relaxed);
        let (_, spec) = model("m", &format!("instance_group {{ count: {count} }}"));
        Ok(ModelSpec { fingerprint: self.fingerprint_of(id)?, ..spec? })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        let config = self.0.load(Ordering::Relaxed) as u64;
        Ok(Fingerprint { config, versions: BTreeMap::from([(1, 1)]), ..Fingerprint::default() })
    }
}

#[test]
fn a_continuous_model_is_warmed_up_by_executions_and_refuses_sequence_batching() {
    let device = Device::with_slots(1);
    let warm_up = "instance_group { count: 3 } model_warmup { name: 'w' batch_size: 2
        inputs { key: 'IN' value { data_type: TYPE_UINT8 dims: 2 zero_data: true } } }";
    drop(serving(&device, warm_up));
    assert_eq!(device.warm_ups.load(Ordering::Relaxed), 3);
    for strategy in ["direct { }", "oldest { max_candidate_sequences: 2 }"] {
        let server = server(
            Engines(Device::with_slots(1)),
            vec![model("m", &format!("sequence_batching {{ {strategy} }}"))],
        );
        let reason = index(&server).join("\n");
        assert!(reason.contains("which sequence_batching does not support"), "{reason}");
    }
}

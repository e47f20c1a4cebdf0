//! Requests to a whole server whose models are not loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;
use nereid_backend_api::{Backend, DataType, InferRequest, Response, Tensor};
use nereid_core::{
    BlockingSource, Caller, ExecutorFactory, Fingerprint, MemoryBasis, ModelControl, ModelId, ModelSpec,
    Overrides, RequestHead, Scope, ScopedName, ServerOptions,
};
use nereid_ensemble::EnsembleFactory;
use nereid_testkit::{Gate, ScriptedBackend, ScriptedModel};

use super::*;
use crate::idleness::IDLE_CHECK;

mod ensembles;
mod order;
mod schedules;

/// The content of models whose executions wait at the gate.
const HELD: u8 = 99;

const ON_DEMAND: &str = "parameters { key: 'load_on_demand' value { string_value: 'true' } }";

/// Models that the test changes: each has a number for its contents, and more for its configuration.
#[derive(Default)]
struct Changing(Mutex<BTreeMap<String, (u8, String)>>, AtomicUsize);

impl Changing {
    fn put(&self, name: &str, content: u8, text: &str) {
        self.0.lock().unwrap().insert(name.to_owned(), (content, text.to_owned()));
    }

    fn of(&self, name: &str) -> Result<(u8, String)> {
        let found = self.0.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Error::not_found(format!("no '{name}'")))
    }
}

impl BlockingSource for Changing {
    fn names(&self) -> Result<Vec<String>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }

    /// Names that begin with "both" are in two namespaces.
    fn ids(&self, name: &str) -> Result<Vec<ModelId>> {
        let namespaces: &[_] = if name.starts_with("both") { &["one", "two"] } else { &[""] };
        let id = |namespace: &&str| ModelId { namespace: (*namespace).to_owned(), name: name.to_owned() };
        Ok(namespaces.iter().map(id).collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let (_, text) = self.of(&id.name)?;
        let backend = if text.contains("ensemble_scheduling") { "" } else { "backend: 'b'" };
        let tensors = "input { name: 'X' data_type: TYPE_UINT8 dims: [ 1 ] } output { name: 'Y' data_type: TYPE_UINT8 dims: [ 1 ] }";
        let config = nereid_testkit::normalised(&id.name, &format!("{backend} {tensors} {text}"));
        let fingerprint = self.fingerprint_of(id)?;
        Ok(ModelSpec { fingerprint, ..ModelSpec::new(id.clone(), "m", config, [1]) })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let content = u64::from(self.of(&id.name)?.0);
        Ok(Fingerprint { whole: content, config: 0, versions: [(1, content)].into() })
    }
}

/// A server, its source, and what its backend does.
struct World {
    server: Arc<Server>,
    source: Arc<Changing>,
    loads: Arc<Mutex<Vec<String>>>,
    is_broken: Arc<AtomicBool>,
    /// Whether loads wait.
    held: Arc<(Mutex<bool>, Condvar)>,
    /// Holds the executions of models whose content is 99.
    gate: Gate,
    residency: Arc<ResidencyManager>,
}

fn world(control: ModelControl, options: ResidencyOptions, models: &[(&str, u8, &str)]) -> World {
    world_at(Box::new(Timestamp::now), control, options, models)
}

fn world_at(
    clock: Clock,
    control: ModelControl,
    options: ResidencyOptions,
    models: &[(&str, u8, &str)],
) -> World {
    let world = idle_world(clock, control, options, models);
    world.server.start((control == ModelControl::OnDemand).then(Vec::new)).unwrap();
    world
}

/// A server that was not started.
fn idle_world(
    clock: Clock,
    control: ModelControl,
    options: ResidencyOptions,
    models: &[(&str, u8, &str)],
) -> World {
    let source = Arc::<Changing>::default();
    models.iter().for_each(|(name, content, text)| source.put(name, *content, text));
    let loads = Arc::<Mutex<Vec<String>>>::default();
    let (is_broken, held) = (Arc::<AtomicBool>::default(), Arc::<(Mutex<bool>, Condvar)>::default());
    let (loaded, broken, holding, contents) =
        (Arc::clone(&loads), Arc::clone(&is_broken), Arc::clone(&held), Arc::clone(&source));
    let gate = Gate::default();
    let holds = gate.clone();
    let backend = ScriptedBackend::new(move |context| {
        loaded.lock().unwrap().push(context.name.clone());
        drop(holding.1.wait_while(holding.0.lock().unwrap(), |held| *held).unwrap());
        if broken.load(Ordering::Relaxed) {
            return Err(Error::internal("broken on purpose"));
        }
        let (content, _) = contents.of(&context.name)?;
        let gate = holds.clone();
        Ok(ScriptedModel::new(move |batch| {
            if content == HELD {
                gate.pass(&batch);
            }
            let answer = || Ok(Response::new(vec![Tensor::new("Y", DataType::Uint8, [1], vec![content])]));
            let answers: Vec<_> = batch.requests().iter().map(|_| answer()).collect();
            batch.complete(answers);
        }))
    });
    let all_on_demand = control == ModelControl::OnDemand;
    let options = ResidencyOptions { all_on_demand, ..options };
    let residency = ResidencyManager::with_clock(options, Box::new(BTreeMap::new), clock);
    let options = ServerOptions {
        name: "test".into(),
        strict_readiness: true,
        load_threads: 4,
        model_control: control,
        residency: Some(Arc::clone(&residency) as _),
        executors: [Arc::new(EnsembleFactory) as Arc<dyn ExecutorFactory>].into_iter().collect(),
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("b".to_owned(), Arc::new(backend) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, Arc::clone(&source) as _);
    residency.attach(&server);
    World { server, source, loads, is_broken, held, gate, residency }
}

fn input() -> InferRequest {
    let inputs = vec![Tensor::new("X", DataType::Uint8, [1], vec![0])];
    InferRequest { inputs, ..InferRequest::default() }
}

/// A server whose three models are loaded on demand: all of a repository, or by their configurations.
fn every_way() -> impl Iterator<Item = World> {
    let all = |text| [("a", 1, text), ("b", 2, text), ("c", 3, text)];
    let ways = [
        (ModelControl::OnDemand, ""),
        (ModelControl::None, ON_DEMAND),
        (ModelControl::Explicit, ON_DEMAND),
        (ModelControl::Poll, ON_DEMAND),
    ];
    ways.into_iter().map(move |(control, text)| world(control, ResidencyOptions::default(), &all(text)))
}

impl World {
    async fn ask(&self, name: &str) -> Result<u8> {
        self.ask_with(name, None, None).await
    }

    async fn ask_with(&self, name: &str, version: Option<u64>, time_limit: Option<Duration>) -> Result<u8> {
        let head = || RequestHead::default().with_time_limit(time_limit);
        let model = self.server.resolve_with(ScopedName::everywhere(name), version, head).await?;
        let mut answers = self.server.infer(&model, input(), Caller::default())?;
        Ok(answers.single().await?.outputs[0].contiguous()?[0])
    }

    fn loads(&self) -> Vec<String> {
        std::mem::take(&mut self.loads.lock().unwrap())
    }

    fn hold(&self, held: bool) {
        *self.held.0.lock().unwrap() = held;
        self.held.1.notify_all();
    }

    /// The names of the models in memory.
    fn resident(&self) -> BTreeSet<String> {
        self.server.models().ready().map(|model| model.name().to_owned()).collect()
    }

    fn evict(&self, name: &str) {
        // A load may be visible before it has ended.
        while let Err(error) = self.server.evict_model(name) {
            assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn requests_load_their_models_once_in_every_mode() {
    for world in every_way() {
        assert!(world.server.is_ready() && world.loads().is_empty());
        for round in 0..3 {
            let asked = join_all((0..90).map(|number| world.ask(["a", "b", "c"][number % 3]))).await;
            for (number, answer) in asked.into_iter().enumerate() {
                assert_eq!(answer.unwrap(), [1, 2, 3][number % 3]);
            }
            let loads = world.loads();
            assert_eq!(loads.iter().collect::<BTreeSet<_>>().len(), 3, "round {round}: {loads:?}");
            assert_eq!(loads.len(), 3, "round {round}: {loads:?}");
            ["a", "b", "c"].iter().for_each(|name| world.evict(name));
        }
        // Neither an unknown model nor an unknown version of a loaded one loads anything.
        world.ask("a").await.unwrap();
        world.loads();
        for (name, version) in [("d", None), ("a", Some(2)), ("", None), ("../a", None)] {
            let error = world.ask_with(name, version, None).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::NotFound, "{name}: {error}");
            world.server.model_ready(ScopedName::everywhere(name), version).await.unwrap_err();
        }
        for name in ["a", "b", "c"] {
            world.server.model_ready(ScopedName::everywhere(name), None).await.unwrap();
        }
        assert!(world.loads().is_empty());
    }
}

#[tokio::test]
async fn a_failed_load_answers_all_that_wait_and_later_requests_until_the_pause_is_over() {
    for world in every_way() {
        world.is_broken.store(true, Ordering::Relaxed);
        for outcome in join_all((0..20).map(|_| world.ask("a"))).await {
            let error = outcome.unwrap_err();
            assert_eq!((error.code(), error.retry_after().is_some()), (ErrorCode::Unavailable, true));
            assert!(error.message().ends_with("broken on purpose"), "{error}");
        }
        world.is_broken.store(false, Ordering::Relaxed);
        world.ask("a").await.unwrap_err();
        world.server.model_ready(ScopedName::everywhere("a"), None).await.unwrap_err();
        assert_eq!(world.loads(), ["a"]);
        // Other models do not wait, and neither does the server.
        assert_eq!(world.ask("b").await.unwrap(), 2);
        assert!(world.server.is_ready());
    }
    let options = ResidencyOptions { retry_pause: Duration::ZERO, ..ResidencyOptions::default() };
    let world = world(ModelControl::OnDemand, options, &[("a", 1, "")]);
    world.is_broken.store(true, Ordering::Relaxed);
    world.ask("a").await.unwrap_err();
    world.is_broken.store(false, Ordering::Relaxed);
    assert_eq!(world.ask("a").await.unwrap(), 1);
}

#[tokio::test]
async fn a_request_whose_time_is_short_is_refused_and_the_load_goes_on() {
    let short = Duration::from_millis(20);
    let waiting_shortly = || ResidencyOptions { wait: short, ..ResidencyOptions::default() };
    for (options, limit) in [
        (ResidencyOptions::default(), Some(short)),
        (waiting_shortly(), None),
        (waiting_shortly(), Some(4 * short)),
    ] {
        let world = world(ModelControl::OnDemand, options, &[("a", 1, "")]);
        world.hold(true);
        let error = world.ask_with("a", None, limit).await.unwrap_err();
        assert_eq!((error.code(), error.retry_after().is_some()), (ErrorCode::Unavailable, true), "{error}");
        world.hold(false);
        // The load was started, and serves the next request.
        while world.server.model(ScopedName::everywhere("a"), None).is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.ask("a").await.unwrap(), 1);
        assert_eq!(world.loads(), ["a"]);
    }
}

#[tokio::test]
async fn clients_that_leave_end_nothing_for_others() {
    for world in every_way() {
        world.hold(true);
        let mut context = Context::from_waker(Waker::noop());
        let mut leaving: Vec<_> = (0..50).map(|_| Box::pin(world.ask("a"))).collect();
        assert!(leaving.iter_mut().all(|asking| asking.as_mut().poll(&mut context).is_pending()));
        let mut staying = Box::pin(world.ask("a"));
        assert!(staying.as_mut().poll(&mut context).is_pending());
        drop(leaving);
        world.hold(false);
        assert_eq!(staying.await.unwrap(), 1);
        assert_eq!(world.loads(), ["a"]);
    }
}

#[tokio::test]
async fn a_stopping_server_ends_the_wait() {
    let world = world(ModelControl::OnDemand, ResidencyOptions::default(), &[("a", 1, "")]);
    world.hold(true);
    let mut asking = Box::pin(world.ask("a"));
    let mut context = Context::from_waker(Waker::noop());
    // First for the listing, then for the load.
    while world.loads.lock().unwrap().is_empty() {
        assert!(matches!(asking.as_mut().poll(&mut context), Poll::Pending));
        tokio::task::yield_now().await;
    }
    world.server.begin_shutdown();
    let error = asking.await.unwrap_err();
    assert!(error.message().contains("the server is stopping"), "{error}");
    world.hold(false);
    world.server.unload_all();
}

#[tokio::test]
async fn an_unloaded_model_is_loaded_as_its_files_are_then() {
    for world in every_way() {
        assert_eq!(world.ask("a").await.unwrap(), 1);
        world.evict("a");
        let text = world.source.of("a").unwrap().1;
        world.source.put("a", 7, &text);
        world.source.put("new", 9, &text);
        assert_eq!(world.ask("a").await.unwrap(), 7);
        if world.server.options().model_control == ModelControl::OnDemand {
            // Once the last listing is old enough.
            while world.ask("new").await.is_err() {
                tokio::time::sleep(LISTING_AGE / 10).await;
            }
        } else {
            // Found as this mode always finds new models.
            world.ask("new").await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn unknown_names_share_listings_of_the_source() {
    let world = world(ModelControl::OnDemand, ResidencyOptions::default(), &[("a", 1, "")]);
    let names: Vec<_> = (0..500).map(|number| format!("unknown{number}")).collect();
    for _ in 0..4 {
        for outcome in join_all(names.iter().map(|name| world.ask(name))).await {
            assert_eq!(outcome.unwrap_err().code(), ErrorCode::NotFound);
        }
    }
    let listings = world.source.1.load(Ordering::Relaxed);
    assert!(listings <= 10, "{listings} listings for 2000 requests");
    assert!(world.loads().is_empty());
}

#[tokio::test]
async fn an_unload_by_a_client_frees_memory_or_ends_the_service_of_a_model() {
    for world in every_way() {
        let control = world.server.options().model_control;
        if !matches!(control, ModelControl::Explicit | ModelControl::OnDemand) {
            continue;
        }
        world.ask("a").await.unwrap();
        let (done, outcome) = mpsc::channel();
        world
            .server
            .unload_model(ScopedName::everywhere("a"), move |result| done.send(result).unwrap())
            .unwrap();
        outcome.recv().unwrap().unwrap();
        let is_served = world.ask("a").await.is_ok();
        assert_eq!(is_served, control == ModelControl::OnDemand);
        assert_eq!(world.server.model_ready(ScopedName::everywhere("a"), None).await.is_ok(), is_served);
    }
}

/// A budget in which each model declares its size.
fn budget(bytes: u64) -> ResidencyOptions {
    ResidencyOptions {
        memory_budget: Some(bytes),
        evictions_a_minute: 10_000,
        retry_pause: Duration::ZERO,
        ..ResidencyOptions::default()
    }
}

/// The parameters of a model of this size.
fn sized(bytes: u64, more: &str) -> String {
    format!("parameters {{ key: 'memory_byte_size' value {{ string_value: '{bytes}' }} }} {more}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn models_leave_for_others_and_every_request_is_answered_by_its_own_model() {
    let size = sized(10, "");
    let names: Vec<_> = (0..12).map(|number| format!("m{number}")).collect();
    let models: Vec<_> =
        names.iter().zip(1..).map(|(name, content)| (name.as_str(), content, size.as_str())).collect();
    for control in [ModelControl::OnDemand, ModelControl::None, ModelControl::Explicit, ModelControl::Poll] {
        let world = Arc::new(world(control, budget(35), &models));
        // The other modes load what fits at their start; the rest waits for its requests.
        let at_start = world.resident().len();
        assert_eq!(at_start, if control == ModelControl::OnDemand { 0 } else { 3 }, "{control:?}");
        assert!(world.server.is_ready());
        let asking = (0..4_usize).map(|client| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let (mut random, mut refused) = (client as u64, 0);
                for _ in 0..60 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Small numbers more often.
                    let number = ((random >> 33) % 12 * ((random >> 45) % 12) / 11) as usize;
                    match world.ask(&format!("m{number}")).await {
                        Ok(answer) => assert_eq!(usize::from(answer), number + 1),
                        Err(error) => {
                            assert!(error.retry_after().is_some(), "{error}");
                            refused += 1;
                        }
                    }
                    assert!(world.resident().len() <= 3, "{:?}", world.resident());
                }
                refused
            })
        });
        let refused: usize = join_all(asking).await.into_iter().map(Result::unwrap).sum();
        assert!(refused < 24, "{control:?}: {refused} of 240 requests were refused");
        for (name, content, _) in &models {
            assert_eq!(world.ask(name).await.unwrap(), *content, "{control:?}");
        }
        assert!(world.server.is_ready());
        let memory = world.residency.resident();
        assert_eq!(memory.iter().map(|(_, _, memory)| memory.budget).sum::<u64>(), 30);
    }
}

#[tokio::test]
async fn instances_beyond_those_of_the_load_need_room_in_the_budget() {
    let scaled = sized(
        10,
        "parameters { key: 'instances_max' value { string_value: '9' } } instance_group { count: 2 }",
    );
    let plain = sized(10, "");
    for (bytes, most) in [(None, 1_000), (Some(40), 6), (Some(29), 3), (Some(20), 2)] {
        let options = ResidencyOptions { memory_budget: bytes, ..budget(0) };
        let world = world(ModelControl::OnDemand, options, &[("a", 1, &scaled), ("b", 2, &plain)]);
        for name in ["a", "b"] {
            world.ask(name).await.unwrap();
        }
        let model = world.server.model(ScopedName::everywhere("a"), None).unwrap();
        let has_room = |instances| world.server.has_room_for_instances(&model, instances);
        assert!(has_room(2) && has_room(most), "{bytes:?}");
        assert_eq!(has_room(most + 1), bytes.is_none(), "{bytes:?}");
    }
}

#[tokio::test]
async fn instances_of_a_name_in_two_namespaces_take_their_share_of_its_memory() {
    let scaled = sized(
        40,
        "parameters { key: 'instances_max' value { string_value: '9' } } instance_group { count: 2 }",
    );
    let options = ResidencyOptions { memory_budget: Some(70), ..budget(0) };
    let world = world(ModelControl::OnDemand, options, &[("both", 1, &scaled)]);
    let scopes = ["one", "two"].map(|name| Scope::of(name, move |id| id.namespace == name));
    let mut models = Vec::new();
    for scope in &scopes {
        models.push(world.server.resolve(ScopedName::new("both", scope), None).await.unwrap());
    }
    // Each has half of the 40 bytes, with two instances: 10 for a further one.
    for model in &models {
        assert!(world.server.has_room_for_instances(model, 5));
        assert!(!world.server.has_room_for_instances(model, 6));
    }
}

#[tokio::test]
async fn entries_of_the_index_have_their_part_of_the_memory() {
    let text = sized(40, "");
    let world = world(ModelControl::OnDemand, budget(100), &[("both", 1, &text), ("other", 2, &text)]);
    let entries = async || {
        let index = world.server.index().await.unwrap();
        let memory = world.server.memory(&index);
        let taken = memory.into_iter().map(|memory| memory.map(|memory| (memory.budget, memory.basis)));
        index.into_iter().map(|(id, _)| id.to_string()).zip(taken).collect::<BTreeMap<_, _>>()
    };
    let names = ["one::both", "two::both", "other"].map(str::to_owned);
    let of = |taken: [Option<u64>; 3]| {
        let taken = taken.map(|bytes| bytes.map(|bytes| (bytes, MemoryBasis::Declared)));
        names.clone().into_iter().zip(taken).collect::<BTreeMap<_, _>>()
    };
    let one = Scope::of("one", |id| id.namespace == "one");
    let two = Scope::of("two", |id| id.namespace == "two");
    world.server.resolve(ScopedName::new("both", &one), None).await.unwrap();
    let found = entries().await;
    assert_eq!(found["one::both"], Some((40, MemoryBasis::Declared)));
    assert!(!found.contains_key("other") || found["other"].is_none(), "{found:?}");
    world.server.resolve(ScopedName::new("both", &two), None).await.unwrap();
    world.ask("other").await.unwrap();
    assert_eq!(entries().await, of([Some(20), Some(20), Some(40)]));
    // Models out of memory have what they would take.
    world.evict("other");
    assert_eq!(entries().await, of([Some(20), Some(20), Some(40)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_models_in_use_nor_kept_ones_leave() {
    let kept = sized(10, "parameters { key: 'keep_loaded' value { string_value: 'true' } }");
    let (plain, large) = (sized(10, ""), sized(31, ""));
    let models = [
        ("kept", 1, kept.as_str()),
        ("busy", HELD, &plain),
        ("a", 3, &plain),
        ("b", 4, &plain),
        ("large", 5, &large),
    ];
    let world = world(ModelControl::OnDemand, budget(30), &models);
    world.ask("kept").await.unwrap();
    let busy = world.server.resolve(ScopedName::everywhere("busy"), None).await.unwrap();
    let answers = world.server.infer(&busy, input(), Caller::default()).unwrap();
    drop(busy);
    for name in ["a", "b", "a", "b"] {
        world.ask(name).await.unwrap();
        assert_eq!(world.resident(), [name, "busy", "kept"].map(str::to_owned).into());
    }
    let error = world.ask("large").await.unwrap_err();
    assert!(error.message().contains("more than the memory budget"), "{error}");
    world.source.put("a", HELD, &plain);
    let holder = world.server.resolve(ScopedName::everywhere("a"), None).await.unwrap();
    let others = world.server.infer(&holder, input(), Caller::default()).unwrap();
    drop(holder);
    let error = world.ask("b").await.unwrap_err();
    assert!(error.message().contains("none can leave now") && error.retry_after().is_some(), "{error}");
    world.gate.open();
    for mut answers in [answers, others] {
        assert_eq!(answers.single().await.unwrap().outputs[0].contiguous().unwrap()[0], HELD);
    }
    assert_eq!(world.ask("b").await.unwrap(), 4);
}

/// The parameters of a model that takes this much of GPUs.
fn on_gpus(gpus: &str) -> String {
    let gpus = format!("parameters {{ key: 'gpu_memory_byte_size' value {{ string_value: '{gpus}' }} }}");
    sized(10, &gpus)
}

#[tokio::test]
async fn models_leave_a_gpu_for_others_there_and_only_those_that_make_room() {
    let texts = ["0:10", "1:10", "0:10", "0:6,1:6", "0:11", "2:1000"].map(on_gpus);
    let names = ["zero", "one", "again", "pair", "large", "free"];
    let models: Vec<_> =
        (1..).zip(names).zip(&texts).map(|((it, name), text)| (name, it, text.as_str())).collect();
    let gpu_memory_budgets = BTreeMap::from([(0, 10), (1, 10)]);
    for memory_budget in [None, Some(1000), Some(30)] {
        let options =
            ResidencyOptions { memory_budget, gpu_memory_budgets: gpu_memory_budgets.clone(), ..budget(0) };
        let world = world(ModelControl::OnDemand, options, &models);
        for name in ["one", "free", "zero"] {
            world.ask(name).await.unwrap();
        }
        assert_eq!(world.resident(), ["free", "one", "zero"].map(str::to_owned).into());
        world.ask("again").await.unwrap();
        assert_eq!(world.resident(), ["again", "free", "one"].map(str::to_owned).into());
        world.ask("pair").await.unwrap();
        assert_eq!(world.resident(), ["pair", "free"].map(str::to_owned).into());
        let error = world.ask("large").await.unwrap_err();
        assert!(
            error.message().contains("takes about 0.0 MB of GPU 0, more than the memory budget"),
            "{error}"
        );
        assert_eq!(world.resident(), ["pair", "free"].map(str::to_owned).into());
        world.ask("one").await.unwrap();
        assert_eq!(world.resident(), ["free", "one"].map(str::to_owned).into());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_in_use_stay_on_their_gpu() {
    let (gpu, text) = (on_gpus("0:10"), on_gpus("1:10"));
    let models = [("busy", HELD, gpu.as_str()), ("other", 2, text.as_str()), ("waits", 3, gpu.as_str())];
    let options =
        ResidencyOptions { memory_budget: None, gpu_memory_budgets: [(0, 15), (1, 15)].into(), ..budget(0) };
    let world = world(ModelControl::OnDemand, options, &models);
    world.ask("other").await.unwrap();
    let busy = world.server.resolve(ScopedName::everywhere("busy"), None).await.unwrap();
    let mut answers = world.server.infer(&busy, input(), Caller::default()).unwrap();
    drop(busy);
    let error = world.ask("waits").await.unwrap_err();
    let expected = "it takes about 0.0 MB of GPU 0, and models take 0.0 MB of 0.0 MB; none can leave now";
    assert!(error.message().contains(expected), "{error}");
    assert_eq!(world.resident(), ["busy", "other"].map(str::to_owned).into());
    world.gate.open();
    answers.single().await.unwrap();
    drop(answers);
    assert_eq!(world.ask("waits").await.unwrap(), 3);
    assert_eq!(world.resident(), ["other", "waits"].map(str::to_owned).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_budget_of_a_gpu_is_exceeded_whatever_is_requested() {
    let texts: Vec<_> = (0..12).map(|it| on_gpus(["0:10", "1:10", "0:5,1:5", "2:7"][it % 4])).collect();
    let names: Vec<_> = (0..12).map(|number| format!("m{number}")).collect();
    let models: Vec<_> =
        (1..).zip(&names).zip(&texts).map(|((it, name), text)| (name.as_str(), it, text.as_str())).collect();
    let budgets = BTreeMap::from([(0, 20), (1, 15), (2, 7)]);
    for control in [ModelControl::OnDemand, ModelControl::None, ModelControl::Poll] {
        let options =
            ResidencyOptions { memory_budget: None, gpu_memory_budgets: budgets.clone(), ..budget(0) };
        let world = Arc::new(world(control, options, &models));
        let check = |world: &World| {
            let mut taken = BTreeMap::<i32, u64>::new();
            for memory in world.residency.resident().into_iter().flat_map(|(_, _, memory)| memory.gpus) {
                *taken.entry(memory.gpu).or_default() += memory.budget;
            }
            assert!(taken.iter().all(|(gpu, taken)| taken <= &budgets[gpu]), "{control:?}: {taken:?}");
        };
        check(&world);
        let asking = (0..4_usize).map(|client| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                for step in 0..40 {
                    let number = (client * 7 + step * 5 + step / 3) % 12;
                    match world.ask(&format!("m{number}")).await {
                        Ok(answer) => assert_eq!(usize::from(answer), number + 1),
                        Err(error) => assert!(error.retry_after().is_some(), "{error}"),
                    }
                }
            })
        });
        let all = join_all(asking);
        for outcome in all.await {
            outcome.unwrap();
        }
        check(&world);
        for (name, content, _) in &models {
            assert_eq!(world.ask(name).await.unwrap(), *content, "{control:?}");
            check(&world);
        }
    }
}

#[tokio::test]
async fn only_so_many_models_leave_in_a_minute() {
    let size = sized(10, "");
    let models = [("a", 1, size.as_str()), ("b", 2, &size), ("c", 3, &size)];
    for limit in 1..4 {
        let options = ResidencyOptions { evictions_a_minute: limit, ..budget(10) };
        let world = world(ModelControl::OnDemand, options, &models);
        world.ask("a").await.unwrap();
        for number in 0..limit {
            world.ask(["b", "c", "a"][number]).await.unwrap();
        }
        let error = world.ask(["c", "a", "b"][limit - 1]).await.unwrap_err();
        assert!(error.message().contains("left the memory within the last minute"), "{error}");
        let seconds = error.retry_after().unwrap().get();
        assert!(world.resident().len() == 1 && (30..=60).contains(&seconds), "{seconds}");
    }
}

#[tokio::test]
async fn idle_models_leave_and_come_back_for_their_next_request() {
    let never = "parameters { key: 'idle_timeout_secs' value { string_value: '0' } }";
    let models = [("a", 1, ""), ("b", 2, never), ("busy", HELD, "")];
    let idle_timeout = Some(Duration::from_millis(100));
    for control in [ModelControl::OnDemand, ModelControl::None, ModelControl::Explicit, ModelControl::Poll] {
        let options = ResidencyOptions { idle_timeout, ..ResidencyOptions::default() };
        let world = world(control, options, &models);
        for round in 0..2 {
            world.ask("a").await.unwrap();
            world.ask("b").await.unwrap();
            let busy = world.server.resolve(ScopedName::everywhere("busy"), None).await.unwrap();
            let request = InferRequest { id: format!("{round}"), ..input() };
            let mut answers = world.server.infer(&busy, request, Caller::default()).unwrap();
            drop(busy);
            while world.server.model(ScopedName::everywhere("a"), None).is_ok() {
                tokio::time::sleep(IDLE_CHECK / 4).await;
            }
            // Neither those that are in use, nor those that never leave.
            assert_eq!(world.resident(), ["b", "busy"].map(str::to_owned).into(), "{control:?}");
            assert!(world.server.is_ready());
            world.gate.release(&format!("{round}"));
            answers.single().await.unwrap();
        }
    }
}

#[tokio::test]
async fn requests_load_no_model_of_another_scope() {
    for world in every_way() {
        let scope = Scope::of("one", |id| id.namespace == "one");
        for _ in 0..2 {
            for name in ["a", "b", "c", "d"] {
                let scoped = ScopedName::new(name, &scope);
                let error = world.server.resolve(scoped, None).await.map(drop).unwrap_err();
                let expected = format!("Request for unknown model: '{name}' is not found");
                assert_eq!((error.code(), error.message()), (ErrorCode::NotFound, expected.as_str()));
                world.server.model_ready(scoped, None).await.unwrap_err();
            }
            assert!(world.loads().is_empty());
        }
        // How a load for others ended stays hidden, too.
        world.is_broken.store(true, Ordering::Relaxed);
        world.ask("a").await.unwrap_err();
        let hidden = world.server.resolve(ScopedName::new("a", &scope), None).await.map(drop).unwrap_err();
        assert_eq!(hidden.message(), "Request for unknown model: 'a' is not found");
        world.is_broken.store(false, Ordering::Relaxed);
        let all = Scope::of("every", |_| true);
        let found = world.server.resolve(ScopedName::new("b", &all), None).await.unwrap();
        assert_eq!(found.name(), "b");
    }
}

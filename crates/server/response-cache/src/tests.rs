//! Cached models behind a whole server, with a cache that is a plain map.

mod coalescing;
mod keys;
mod ordering;
mod storing;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use nereid_core::backend_api::{
    Buffer, CorrelationId, DataType, Error, InferRequest, ParameterValue, Request, RequestedOutput, Response,
    Result, SequenceFlags, Tensor, block_on,
};
use nereid_core::model_config::{self, ModelConfig};
use nereid_core::{
    BlockingSource, Caller, ExecutorFactory, Fingerprint, InferStatistics, Interceptors, ModelControl,
    ModelId, ModelSpec, Overrides, ResponseStream, ScopedName, Server, ServerOptions,
};
use nereid_ensemble::EnsembleFactory;
use nereid_testkit::{Gate, ScriptedBackend};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;

/// A cache in a map.
#[derive(Default)]
struct MapCache {
    entries: Arc<Mutex<HashMap<CacheKey, CacheEntry>>>,
    /// Another thread resolves lookups.
    waits: bool,
    /// Makes the cache shared, and replaces every entry found.
    poison: Option<CacheEntry>,
    greatest: Option<usize>,
    /// Keys looked up before. If set, only these are admitted.
    known: Option<Mutex<HashSet<[u8; 32]>>>,
    lookups: AtomicUsize,
    forgotten: AtomicU64,
}

impl ResponseCache for MapCache {
    fn scope(&self) -> CacheScope {
        if self.poison.is_some() { CacheScope::Shared } else { CacheScope::Server }
    }

    fn lookup(&self, key: &CacheKey) -> CacheLookup {
        self.lookups.fetch_add(1, Relaxed);
        let found = self.entries.lock().unwrap().get(key).cloned();
        let found = found.map(|found| self.poison.clone().unwrap_or(found));
        if !self.waits {
            return CacheLookup::Ready(found);
        }
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || drop(sender.send(found)));
        CacheLookup::Wait(Box::pin(async { receiver.await.ok().flatten() }))
    }

    fn admits(&self, key: &CacheKey) -> bool {
        self.known.as_ref().is_none_or(|known| !known.lock().unwrap().insert(*key.digest()))
    }

    fn insert(&self, key: &CacheKey, entry: CacheEntry) {
        self.entries.lock().unwrap().insert(*key, entry);
    }

    fn max_entry_size(&self) -> usize {
        self.greatest.unwrap_or(usize::MAX)
    }

    fn forget(&self, load: u64) {
        self.forgotten.fetch_add(1, Relaxed);
        self.entries.lock().unwrap().retain(|key, _| key.load() != load);
    }
}

/// Models that a test changes.
#[derive(Default)]
struct Changing(Mutex<BTreeMap<String, (ModelConfig, u64)>>);

impl Changing {
    fn put(&self, config: &str) {
        let mut config = model_config::parse_text(config).unwrap();
        model_config::normalise(&mut config);
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = models.len() as u64 + models.values().map(|(_, number)| number).sum::<u64>();
        models.insert(config.name.clone(), (config, number));
    }
}

impl BlockingSource for Changing {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let config = self.0.lock().unwrap()[&id.name].0.clone();
        let fingerprint = self.fingerprint_of(id)?;
        Ok(ModelSpec { fingerprint, ..ModelSpec::new(id.clone(), "m", config, [1]) })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let number = self.0.lock().unwrap().get(&id.name).ok_or_else(|| Error::not_found("gone"))?.1;
        Ok(Fingerprint { whole: number, config: number, versions: [(1, number)].into() })
    }
}

const TENSORS: &str = "backend: 'b' input { name: 'A' data_type: TYPE_UINT8 dims: [ -1 ] }
    input { name: 'B' data_type: TYPE_UINT8 dims: [ -1, -1 ] optional: true }
    output { name: 'Y' data_type: TYPE_UINT8 dims: [ -1 ] } output { name: 'Z' data_type: TYPE_UINT8 dims: [ -1 ] }";

const ON: &str = "response_cache { enable: true }";

struct World {
    server: Arc<Server>,
    source: Arc<Changing>,
    cache: Arc<MapCache>,
    caching: ResponseCaching,
    executed: Arc<AtomicUsize>,
    gate: Gate,
}

/// The model's answer, with the requested outputs: `Y` lists everything that it may depend on, `Z` counts executions. An
/// input that starts with 99 is an error, one with 98 is answered twice.
fn answered(request: &InferRequest, number: usize) -> Result<Response> {
    let mut reported = Vec::new();
    let mut inputs: Vec<_> = request.inputs.iter().collect();
    inputs.sort_by(|one, other| one.name.cmp(&other.name));
    for input in inputs {
        let contents = input.contiguous()?;
        if contents.first() == Some(&99) {
            return Err(Error::invalid_arg("failed on purpose"));
        }
        reported.extend_from_slice(input.name.as_bytes());
        reported.extend(input.shape.iter().map(|dim| *dim as u8));
        reported.extend_from_slice(&contents);
    }
    let mut parameters: Vec<_> = request.parameters.iter().map(|it| format!("{it:?}")).collect();
    parameters.sort();
    reported.extend_from_slice(parameters.concat().as_bytes());
    reported.extend_from_slice(format!("{}{:?}", request.correlation_id, request.sequence).as_bytes());
    let outputs = [("Y", reported), ("Z", vec![number as u8])];
    let wanted = |name: &str| request.outputs.is_empty() || request.outputs.iter().any(|it| it.name == name);
    let outputs = outputs.into_iter().filter(|(name, _)| wanted(name));
    let outputs = outputs.map(|(name, it)| Tensor::new(name, DataType::Uint8, [it.len() as i64], it));
    Ok(Response::new(outputs.collect()))
}

fn answer(request: Request, number: usize) {
    let twice = request.inputs.iter().any(|input| input.contiguous().unwrap().first() == Some(&98));
    let outcome = answered(&request, number);
    if twice {
        request.responder().send(outcome.clone());
    }
    request.answer(outcome);
}

fn world(cache: MapCache, configs: &[String]) -> World {
    world_with(ResponseCaching::new, cache, configs, Gate::opened())
}

fn world_with(
    caching: impl Fn(Arc<dyn ResponseCache>) -> ResponseCaching,
    cache: MapCache,
    configs: &[String],
    gate: Gate,
) -> World {
    let (executed, source) = (Arc::<AtomicUsize>::default(), Arc::<Changing>::default());
    let (counter, passed) = (Arc::clone(&executed), gate.clone());
    let backend = ScriptedBackend::executing(move |batch| {
        passed.pass(&batch);
        for request in batch.into_requests() {
            answer(request, counter.fetch_add(1, Relaxed));
        }
    });
    configs.iter().for_each(|config| source.put(config));
    let cache = Arc::new(cache);
    let caching = caching(Arc::clone(&cache) as _);
    let options = ServerOptions {
        load_threads: 1,
        model_control: ModelControl::Explicit,
        interceptors: interceptors(&caching),
        executors: [Arc::new(EnsembleFactory) as Arc<dyn ExecutorFactory>].into_iter().collect(),
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("b".to_owned(), Arc::new(backend) as _)]);
    let server = Server::new(options, backends, Arc::clone(&source) as _);
    let failures = server.start(None).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    World { server, source, cache, caching, executed, gate }
}

fn interceptors(caching: &ResponseCaching) -> Interceptors {
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::new(caching.clone()));
    interceptors
}

fn plain() -> World {
    world(MapCache::default(), &[format!("name: 'm' {TENSORS} {ON}")])
}

fn tensor(name: &str, shape: &[i64], contents: impl Into<Bytes>) -> Tensor {
    Tensor::new(name, DataType::Uint8, shape, contents)
}

fn request(contents: &[u8]) -> InferRequest {
    let input = tensor("A", &[contents.len() as i64], contents.to_vec());
    InferRequest { inputs: vec![input], ..InferRequest::default() }
}

impl World {
    fn begin(&self, model: &str, request: InferRequest) -> ResponseStream {
        self.server
            .infer(
                &self.server.model(ScopedName::everywhere(model), None).unwrap(),
                request,
                Caller::default(),
            )
            .unwrap()
    }

    fn ask(&self, request: InferRequest) -> Result<Response> {
        block_on(self.begin("m", request).single())
    }

    /// Executions, hits, misses, successes, failures.
    fn counted(&self, model: &str) -> [u64; 5] {
        let InferStatistics { cache_hit, cache_miss, success, fail, .. } =
            self.server.model(ScopedName::everywhere(model), None).unwrap().statistics().snapshot();
        [self.executed.load(Relaxed) as u64, cache_hit.count, cache_miss.count, success.count, fail.count]
    }

    fn load(&self, model: &str) {
        let (done, outcome) = channel();
        let done = move |loaded: Result<()>| done.send(loaded).unwrap();
        self.server.load_model(ScopedName::everywhere(model), Overrides::default(), done).unwrap();
        outcome.recv().unwrap().unwrap();
    }
}

fn bytes(response: &Response, name: &str) -> Vec<u8> {
    let output = response.outputs.iter().find(|output| output.name == name).unwrap();
    output.contiguous().unwrap().into_owned()
}

#[test]
fn an_equal_request_is_answered_without_execution() {
    for waits in [false, true] {
        let cache = MapCache { waits, ..MapCache::default() };
        let world = world(cache, &[format!("name: 'm' {TENSORS} {ON}")]);
        let first = world.ask(request(b"abc")).unwrap();
        let mut again = request(b"abc");
        (again.id, again.priority) = ("other".into(), 3);
        let second = world.ask(again).unwrap();
        assert_eq!((bytes(&second, "Y"), bytes(&second, "Z")), (bytes(&first, "Y"), vec![0]));
        world.ask(request(b"abd")).unwrap();
        assert_eq!(world.counted("m"), [2, 1, 2, 3, 0], "{waits}");
        let statistics =
            world.server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
        assert_eq!((statistics.inference_count, statistics.execution_count), (2, 0));
        assert_eq!((statistics.compute_infer.count, statistics.queue.count), (2, 3));
        assert!(statistics.cache_hit.ns > 0 && statistics.cache_miss.ns > 0);
        let counts = world.caching.counts();
        assert_eq!((counts.hits, counts.misses), (1, 2));
    }
}

#[test]
fn uncached_models_do_not_look_up_the_cache() {
    let configs = ["", "response_cache { enable: false }"];
    for config in configs {
        let world = world(MapCache::default(), &[format!("name: 'm' {TENSORS} {config}")]);
        world.ask(request(b"abc")).unwrap();
        world.ask(request(b"abc")).unwrap();
        assert_eq!(world.counted("m"), [2, 0, 0, 2, 0]);
        assert_eq!(world.cache.lookups.load(Relaxed), 0);
    }
}

#[test]
fn errors_and_several_answers_are_not_stored() {
    for (first, counted) in [(99, [2, 0, 2, 0, 2]), (98, [2, 0, 2, 2, 0])] {
        let world = plain();
        for _ in 0..2 {
            assert!(world.ask(request(&[first, 1])).is_err());
        }
        assert_eq!(world.counted("m"), counted, "{first}");
        assert!(world.cache.entries.lock().unwrap().is_empty());
    }
}

#[test]
fn an_answer_that_is_too_large_is_not_stored() {
    let cache = MapCache { greatest: Some(1000), ..MapCache::default() };
    let world = world(cache, &[format!("name: 'm' {TENSORS} {ON}")]);
    for (length, hits) in [(2000, 0), (10, 1)] {
        for _ in 0..2 {
            world.ask(request(&vec![1; length])).unwrap();
        }
        assert_eq!(world.counted("m")[1], hits, "{length}");
    }
}

fn full() -> MapCache {
    MapCache { known: Some(Mutex::default()), ..MapCache::default() }
}

#[test]
fn request_that_is_not_admitted_is_a_miss_and_is_not_stored() {
    for waits in [false, true] {
        let world = world(MapCache { waits, ..full() }, &[format!("name: 'm' {TENSORS} {ON}")]);
        for (round, counted) in [[1, 0, 1, 1, 0], [2, 0, 2, 2, 0], [2, 1, 2, 3, 0]].into_iter().enumerate() {
            let answer = world.ask(request(b"abc")).unwrap();
            assert_eq!(bytes(&answer, "Z"), [round.min(1) as u8]);
            assert_eq!(world.counted("m"), counted, "{waits}");
            assert_eq!(world.cache.entries.lock().unwrap().len(), round.min(1));
        }
        let statistics =
            world.server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
        assert!(statistics.cache_miss.ns > 0);
        let counts = world.caching.counts();
        assert_eq!((counts.hits, counts.misses), (1, 2));
        assert!(world.ask(request(&[99])).is_err());
        assert_eq!(world.counted("m"), [3, 1, 3, 3, 1]);
    }
}

#[test]
fn reloaded_model_finds_no_earlier_entries() {
    let world = plain();
    world.ask(request(b"abc")).unwrap();
    world.source.put(&format!("name: 'm' {TENSORS} {ON} parameters {{ key: 'a' }}"));
    world.load("m");
    let answer = world.ask(request(b"abc")).unwrap();
    assert_eq!(bytes(&answer, "Z"), [1]);
    assert_eq!(world.counted("m"), [2, 0, 1, 1, 0]);
    // The previous load is forgotten on a separate thread, once its last holder is gone.
    while world.cache.forgotten.load(Relaxed) == 0 {
        thread::yield_now();
    }
    assert_eq!(world.cache.entries.lock().unwrap().len(), 1);
}

#[test]
fn request_for_some_outputs_is_answered_from_the_entry_with_all() {
    let only = |names: &[&str]| InferRequest {
        outputs: names.iter().map(|name| RequestedOutput::new(*name)).collect(),
        ..request(b"abc")
    };
    let names =
        |response: Response| -> Vec<_> { response.outputs.into_iter().map(|output| output.name).collect() };
    for waits in [false, true] {
        let cache = MapCache { waits, ..MapCache::default() };
        let world = world(cache, &[format!("name: 'm' {TENSORS} {ON}")]);
        // An answer with some outputs is not used for a request for all.
        assert_eq!(names(world.ask(only(&["Z"])).unwrap()), ["Z"]);
        assert_eq!(names(world.ask(only(&["Z"])).unwrap()), ["Z"]);
        assert_eq!(names(world.ask(only(&["Z", "Y"])).unwrap()), ["Y", "Z"]);
        assert_eq!(world.counted("m"), [2, 1, 2, 3, 0], "{waits}");
        assert_eq!(names(world.ask(only(&["Y"])).unwrap()), ["Y"]);
        assert_eq!(names(world.ask(only(&[])).unwrap()), ["Y", "Z"]);
        let classes = RequestedOutput { name: "Y".into(), classification: 1 };
        let classified = InferRequest { outputs: vec![classes], ..request(b"abc") };
        assert_eq!(world.ask(classified).unwrap().outputs[0].data_type, DataType::Bytes);
        assert_eq!(world.counted("m"), [2, 4, 2, 6, 0], "{waits}");
    }
}

#[test]
fn inputs_that_others_may_write_are_copied_before_they_are_executed() {
    let world = plain();
    let shared = |contents: &'static [u8]| {
        let mut input = tensor("A", &[3], Bytes::new());
        input.buffers = [Buffer::shared(Bytes::from_static(contents))].into_iter().collect();
        InferRequest { inputs: vec![input], ..InferRequest::default() }
    };
    assert_eq!(bytes(&world.ask(request(b"abc")).unwrap(), "Z"), [0]);
    assert_eq!(bytes(&world.ask(shared(b"abc")).unwrap(), "Z"), [0]);
    assert_eq!(bytes(&world.ask(shared(b"abd")).unwrap(), "Z"), [1]);
    assert_eq!(bytes(&world.ask(request(b"abd")).unwrap(), "Z"), [1]);
}

#[test]
fn an_entry_keeps_no_memory_but_its_own() {
    // Small answers are copied, large ones only where they keep something else in memory.
    for (length, is_kept) in [(1, false), (10, false), (300, false), (2000, true), (100_000, true)] {
        let large = Bytes::from(vec![7; 1_000_000]);
        let own = Buffer::own(vec![1; length]);
        let mut response = Response::new(vec![
            tensor("Y", &[length as i64], large.slice(..length)),
            tensor("Z", &[length as i64], Bytes::new()),
        ]);
        response.outputs[1].buffers = [own.clone()].into_iter().collect();
        let entry = CacheEntry::of(&response).unwrap();
        drop(response);
        assert!(large.is_unique());
        let answer = entry.response();
        for (output, value) in answer.outputs.iter().zip([7, 1]) {
            assert_eq!(output.contiguous().unwrap(), vec![value; length]);
        }
        let address = |it: &Buffer| it.as_host().unwrap().as_ptr();
        assert_eq!(address(&answer.outputs[1].buffers[0]) == address(&own), is_kept, "{length}");
        assert!(entry.byte_size() > 2 * length && entry.byte_size() < 2 * length + 1000);
    }
}

#[test]
fn foreign_entry_is_used_only_if_it_fits_the_model() {
    let output = |name: &str, data_type, shape: &[i64], length| {
        CacheEntry::of(&Response::new(vec![Tensor::new(name, data_type, shape, vec![5; length])])).unwrap()
    };
    let poisons = [
        (output("Y", DataType::Uint8, &[2], 2), true),
        (output("X", DataType::Uint8, &[2], 2), false),
        (output("Y", DataType::Int8, &[2], 2), false),
        (output("Y", DataType::Uint8, &[3], 2), false),
        (output("Y", DataType::Uint8, &[-1], 1), false),
    ];
    for (poison, is_taken) in poisons {
        let case = format!("{poison:?}");
        let cache = MapCache { poison: Some(poison), ..MapCache::default() };
        let world = world(cache, &[format!("name: 'm' {TENSORS} {ON}")]);
        world.ask(request(b"abc")).unwrap();
        world.ask(request(b"abc")).unwrap();
        assert_eq!(world.counted("m")[1] == 1, is_taken, "{case}");
    }
}

const ENSEMBLE: &str = "name: 'e' platform: 'ensemble'
    input { name: 'I' data_type: TYPE_UINT8 dims: [ -1 ] } output { name: 'O' data_type: TYPE_UINT8 dims: [ -1 ] }
    ensemble_scheduling { step { model_name: 'm' model_version: -1
        input_map { key: 'A' value: 'I' } output_map { key: 'Z' value: 'O' } } }";

#[test]
fn ensembles_are_cached_as_a_whole_until_a_member_is_reloaded() {
    let configs = [format!("name: 'm' {TENSORS}"), format!("{ENSEMBLE} {ON}")];
    let world = world(MapCache::default(), &configs);
    let ask = || {
        let inputs = vec![tensor("I", &[3], b"abc".to_vec())];
        let request = InferRequest { inputs, ..InferRequest::default() };
        block_on(world.begin("e", request).single()).unwrap()
    };
    let parameters = |response: &Response| response.parameters.iter().len();
    let (first, second) = (ask(), ask());
    assert_eq!((bytes(&first, "O"), bytes(&second, "O")), (vec![0], vec![0]));
    // The parameters of the first request's sequence are not stored.
    assert_eq!((parameters(&first), parameters(&second)), (3, 0));
    assert_eq!(world.counted("e"), [1, 1, 1, 2, 0]);
    world.source.put(&format!("name: 'm' {TENSORS} parameters {{ key: 'a' }}"));
    world.load("m");
    assert_eq!(bytes(&ask(), "O"), [1]);
    assert_eq!(bytes(&ask(), "O"), [1]);
}

#[test]
fn members_are_cached_within_an_ensemble_that_is_not() {
    let world = world(MapCache::default(), &[format!("name: 'm' {TENSORS} {ON}"), ENSEMBLE.to_owned()]);
    for _ in 0..3 {
        let inputs = vec![tensor("I", &[3], b"abc".to_vec())];
        let request = InferRequest { inputs, ..InferRequest::default() };
        assert_eq!(bytes(&block_on(world.begin("e", request).single()).unwrap(), "O"), [0]);
    }
    assert_eq!(world.counted("m"), [1, 2, 1, 3, 0]);
    assert_eq!(world.counted("e"), [1, 0, 0, 3, 0]);
}

#[test]
fn a_decoupled_ensemble_is_not_cached() {
    let decoupled = "model_transaction_policy { decoupled: true }";
    let world = world(MapCache::default(), &[format!("name: 'm' {TENSORS} {decoupled}")]);
    world.source.put(&format!("{ENSEMBLE} {ON}"));
    let (done, outcome) = channel();
    let done = move |loaded: Result<()>| done.send(loaded).unwrap();
    world.server.load_model(ScopedName::everywhere("e"), Overrides::default(), done).unwrap();
    let error = outcome.recv().unwrap().unwrap_err();
    assert!(error.message().contains("cannot be cached"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The answers are the model's, in every state of the cache.
    #[test]
    fn random_traffic_gets_the_models_answers(
        asked in prop::collection::vec(keys::any_request(), 1..40),
        waits in any::<bool>(),
        coalesce in any::<bool>(),
        is_full in any::<bool>(),
    ) {
        let cache = MapCache { waits, ..if is_full { full() } else { MapCache::default() } };
        let caching = |cache| ResponseCaching::new(cache).with_coalescing(coalesce);
        let world = world_with(caching, cache, &[format!("name: 'm' {TENSORS} {ON}")], Gate::opened());
        let (mut known, mut missed) = (HashSet::new(), HashSet::new());
        let mut hits = 0;
        for plain in &asked {
            let expected = answered(&plain.build(), 0).unwrap();
            let answer = world.ask(plain.build()).unwrap();
            let names = |response: &Response| response.outputs.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
            prop_assert_eq!(names(&answer), names(&expected));
            if expected.outputs.iter().any(|output| output.name == "Y") {
                prop_assert_eq!(bytes(&answer, "Y"), bytes(&expected, "Y"));
            }
            // The same request, or the one with all outputs, was answered before.
            let all = plain.with_all_outputs();
            let is_known = [plain.rule(), all.rule()].iter().any(|rule| known.contains(rule));
            hits += u64::from(is_known);
            // A full cache admits keys that were looked up before.
            if !is_known && (!is_full || !missed.insert(plain.rule())) {
                known.insert(plain.rule());
            }
        }
        prop_assert_eq!(world.counted("m")[1], hits);
    }
}

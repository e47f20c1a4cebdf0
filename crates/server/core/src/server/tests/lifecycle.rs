//! Models that are loaded and unloaded while clients send requests, from a source that changes.

mod against_plain_rules;
mod events;
mod evicting;
mod fetching;
mod forgetting;
mod instances;
mod members;
mod namespaces;
mod readiness;

use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};

use super::*;
use crate::scope::ScopedName;
use crate::source::{BlockingSource, Overrides};

/// A source whose one model `m` changes as the test likes.
#[derive(Default)]
struct Changing(Mutex<Option<(Vec<u64>, Fingerprint)>>, AtomicBool);

impl Changing {
    /// The model has these versions, each with a number for its contents.
    fn set(&self, whole: u64, versions: &[(u64, u64)]) {
        let fingerprint = Fingerprint { whole, versions: versions.iter().copied().collect(), config: 0 };
        let numbers = versions.iter().map(|(version, _)| *version).collect();
        *self.0.lock().unwrap() = Some((numbers, fingerprint));
    }

    fn remove(&self) {
        *self.0.lock().unwrap() = None;
    }

    fn set_readable(&self, readable: bool) {
        self.1.store(!readable, AtomicOrdering::Relaxed);
    }
}

impl BlockingSource for Changing {
    fn names(&self) -> Result<Vec<String>> {
        if self.1.load(AtomicOrdering::Relaxed) {
            return Err(Error::not_found("the source cannot be read"));
        }
        Ok(self.0.lock().unwrap().iter().map(|_| "m".to_owned()).collect())
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        let gone = || Error::not_found(format!("no '{id}'"));
        let (versions, fingerprint) =
            self.0.lock().unwrap().clone().filter(|_| id.name == "m").ok_or_else(gone)?;
        let given = overrides.config.as_deref().unwrap_or("4 1");
        if given == "unreadable" {
            return Err(Error::invalid_arg("its configuration is wrong"));
        }
        let numbers: Vec<_> = given.split(' ').map(|number| number.parse().unwrap()).collect();
        let group = ModelInstanceGroup { count: numbers[1], ..ModelInstanceGroup::default() };
        let config = ModelConfig { max_batch_size: numbers[0], instance_group: vec![group], ..config() };
        let (_, spec) = spec(config, &versions);
        Ok(ModelSpec { fingerprint, ..spec? })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let state = self.0.lock().unwrap();
        let found = state.as_ref().filter(|_| id.name == "m").map(|(_, fingerprint)| fingerprint.clone());
        found.ok_or_else(|| Error::not_found("gone"))
    }
}

/// Counts the loads of a backend. Version 9 is broken, and all are while `broken` is set.
#[derive(Clone, Default)]
struct Counting {
    loads: Arc<AtomicU64>,
    /// The names of the instances that were made.
    instances: Arc<Mutex<Vec<String>>>,
    broken: Arc<AtomicBool>,
}

impl Counting {
    fn backend(&self) -> ScriptedBackend {
        let counting = self.clone();
        ScriptedBackend::new(move |context| {
            counting.loads.fetch_add(1, AtomicOrdering::Relaxed);
            assert!(context.version != 13, "a backend that panics");
            if context.version == 9 || counting.broken.load(AtomicOrdering::Relaxed) {
                return Err(Error::internal("broken on purpose"));
            }
            let instances = Arc::clone(&counting.instances);
            Ok(ScriptedModel::new(echo).on_create(move |instance| {
                instances.lock().unwrap().push(instance.name.clone());
                Ok(())
            }))
        })
    }
}

/// A configuration given with a load: the greatest batch and the number of instances.
fn with_config(numbers: &str) -> Overrides {
    Overrides { config: Some(numbers.into()), files: Vec::new() }
}

struct World {
    server: Arc<Server>,
    source: Arc<Changing>,
    backend: Counting,
}

fn world(control: ModelControl) -> World {
    let (source, backend) = (Arc::new(Changing::default()), Counting::default());
    source.set(1, &[(1, 1)]);
    let options = ServerOptions { model_control: control, ..options() };
    let server = Server::new(options, backends(backend.backend()), Arc::clone(&source) as _);
    World { server, source, backend }
}

impl World {
    fn loads(&self) -> u64 {
        self.backend.loads.swap(0, AtomicOrdering::Relaxed)
    }

    fn load_with(&self, overrides: Overrides) -> Result<()> {
        let (done, outcome) = channel();
        self.server
            .load_model(ScopedName::everywhere("m"), overrides, move |result| done.send(result).unwrap())?;
        outcome.recv().unwrap()
    }

    fn load(&self) -> Result<()> {
        self.load_with(Overrides::default())
    }

    fn unload(&self) -> Result<()> {
        let (done, outcome) = channel();
        self.server.unload_model(ScopedName::everywhere("m"), move |result| done.send(result).unwrap())?;
        outcome.recv().unwrap()
    }

    fn evict(&self) -> Result<()> {
        evict(&self.server, "m").map(drop)
    }

    fn load_on_demand(&self) -> Result<()> {
        let (done, outcome) = channel();
        self.server.load_on_demand(ScopedName::everywhere("m"), move |result| done.send(result).unwrap());
        outcome.recv().unwrap()
    }

    /// The index once nothing is being unloaded.
    fn settled(&self) -> Vec<String> {
        loop {
            let index = index(&self.server);
            if index.iter().all(|line| !line.contains("UNLOADING")) {
                return index;
            }
            thread::yield_now();
        }
    }
}

fn evict(server: &Server, name: &str) -> Result<Vec<String>> {
    server.evict_model(name)
}

#[test]
fn a_server_whose_source_cannot_be_read_is_not_live_until_a_poll_reads_it() {
    for (control, only) in [
        (ModelControl::None, None),
        (ModelControl::Explicit, Some(vec![])),
        (ModelControl::Explicit, Some(vec!["m".to_owned()])),
        (ModelControl::Poll, None),
    ] {
        let World { server, source, .. } = world(control);
        assert!(server.is_live() && !server.is_ready(), "{control:?}");
        source.set_readable(false);
        server.start(only.clone()).unwrap_err();
        assert!(!server.is_live() && !server.is_ready(), "{control:?}");
        assert_eq!(server.models().index().count(), 0);
        if control == ModelControl::Poll {
            server.poll(Duration::from_secs(60)).unwrap_err();
            assert!(!server.is_live());
            source.set_readable(true);
            server.poll(Duration::from_secs(60)).unwrap();
            assert!(server.is_live() && server.is_ready());
            assert_eq!(index(&server), ["m/1 READY"]);
            // Later, served models need no source.
            source.set_readable(false);
            server.poll(Duration::from_secs(60)).unwrap_err();
            assert!(server.is_live() && server.is_ready());
        }
    }
}

#[tokio::test]
async fn clients_load_and_unload_a_model() {
    let world = world(ModelControl::Explicit);
    world.server.start(Some(Vec::new())).unwrap();
    assert!(world.server.is_ready());
    assert_eq!(index(&world.server), ["m"]);
    assert_eq!(ask(&world.server, request()).await.unwrap_err().code(), ErrorCode::NotFound);
    world.load().unwrap();
    assert_eq!(index(&world.server), ["m/1 READY"]);
    ask(&world.server, request()).await.unwrap();
    world.unload().unwrap();
    assert_eq!(ask(&world.server, request()).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded"]);
    // A client that unloads a model wants the server to be ready without it.
    assert!(world.server.is_ready());
    world.unload().unwrap();
    world.load().unwrap();
    assert_eq!(world.loads(), 2);
}

#[test]
fn only_names_of_folders_are_loaded_and_unloaded() {
    let World { server, .. } = world(ModelControl::Explicit);
    server.start(Some(Vec::new())).unwrap();
    for (name, is_taken) in [
        ("m", true),
        ("no-such", true),
        ("a..b", true),
        ("...", true),
        ("", false),
        (".", false),
        ("..", false),
        ("../m", false),
        ("a/b", false),
        ("/m", false),
        ("m\0", false),
    ] {
        let outcomes = [
            server.load_model(ScopedName::everywhere(name), Overrides::default(), |_| ()),
            server.unload_model(ScopedName::everywhere(name), |_| ()),
        ];
        for outcome in outcomes {
            let refused = outcome.err().map(|error| error.code());
            assert_eq!(refused, (!is_taken).then_some(ErrorCode::InvalidArg), "{name:?}");
        }
    }
}

#[test]
fn only_what_has_changed_is_loaded_anew() {
    let world = world(ModelControl::Explicit);
    world.source.set(1, &[(1, 1), (2, 1)]);
    world.load().unwrap();
    assert_eq!(world.loads(), 2);
    world.load().unwrap();
    assert_eq!(world.loads(), 0);
    // One version more, one less, one changed.
    world.source.set(1, &[(1, 1), (2, 1), (3, 1)]);
    world.load().unwrap();
    assert_eq!(
        (world.loads(), world.settled()),
        (1, vec!["m/1 READY".into(), "m/2 READY".into(), "m/3 READY".into()])
    );
    world.source.set(1, &[(2, 5), (3, 1)]);
    world.load().unwrap();
    assert_eq!(world.loads(), 1);
    assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded", "m/2 READY", "m/3 READY"]);
    // Its configuration concerns all.
    world.source.set(2, &[(2, 5), (3, 1)]);
    world.load().unwrap();
    assert_eq!(world.loads(), 2);
}

#[test]
fn a_load_makes_a_version_anew_whose_backend_says_that_it_is_not_ready() {
    for versions in [vec![1], vec![1, 2, 3]] {
        let loads = Arc::new(Mutex::new(Vec::new()));
        let unhealthy = Arc::new(Mutex::new(Vec::<u64>::new()));
        let (seen, broken) = (Arc::clone(&loads), Arc::clone(&unhealthy));
        let backend = ScriptedBackend::new(move |context| {
            seen.lock().unwrap().push(context.version);
            let (version, broken) = (context.version, Arc::clone(&broken));
            // A reloaded version is healthy again.
            broken.lock().unwrap().retain(|broken| *broken != version);
            Ok(ScriptedModel::new(echo).ready(move || {
                let is_broken = broken.lock().unwrap().contains(&version);
                if is_broken { Err(Error::unavailable("its process has ended")) } else { Ok(()) }
            }))
        });
        let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
        let models: BTreeMap<_, _> = [spec(config(), &versions)].into();
        let server = Server::new(options, backends(backend), Arc::new(models));
        assert_eq!(server.start(Some(vec!["m".to_owned()])).unwrap(), []);
        let load = || {
            let (done, outcome) = channel();
            server
                .load_model(ScopedName::everywhere("m"), Overrides::default(), move |result| {
                    done.send(result).unwrap()
                })
                .unwrap();
            outcome.recv().unwrap().unwrap();
            std::mem::take(&mut *loads.lock().unwrap())
        };
        loads.lock().unwrap().clear();
        assert_eq!(load(), [0_u64; 0]);
        for round in 0..versions.len() {
            unhealthy.lock().unwrap().extend(&versions[round..]);
            assert_eq!(load(), versions[round..]);
            assert!(nereid_backend_api::block_on(server.ready()));
            assert_eq!(load(), [0_u64; 0]);
        }
    }
}

#[tokio::test]
async fn a_load_that_fails_leaves_what_is_served() {
    let world = world(ModelControl::Explicit);
    world.load().unwrap();
    world.source.set(2, &[(1, 1), (9, 1)]);
    let error = world.load().unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(error.message().contains("version 9 is at UNAVAILABLE state: broken on purpose"), "{error}");
    assert_eq!(world.settled(), ["m/1 READY", "m/9 UNAVAILABLE: broken on purpose"]);
    ask(&world.server, request()).await.unwrap();
    // Once it is mended nothing is left of the failure.
    world.source.set(3, &[(1, 2)]);
    world.load().unwrap();
    assert_eq!(world.settled(), ["m/1 READY", "m/9 UNAVAILABLE: unloaded"]);
    world.source.remove();
    assert_eq!(world.load().unwrap_err().code(), ErrorCode::Internal);
    ask(&world.server, request()).await.unwrap();
}

#[test]
fn a_model_that_is_not_served_has_one_entry_for_each_version_with_its_last_failure() {
    for files in [Vec::new(), vec![("1/model".into(), "".into())]] {
        let overrides = || Overrides { config: Some("unreadable".into()), files: files.clone() };
        for (versions, loaded) in
            [(&[][..], false), (&[1][..], true), (&[1, 2][..], true), (&[1, 9][..], false)]
        {
            let world = world(ModelControl::Explicit);
            world.server.start(Some(Vec::new())).unwrap();
            if !versions.is_empty() {
                world.source.set(1, &versions.iter().map(|version| (*version, 1)).collect::<Vec<_>>());
                assert_eq!(world.load().is_ok(), loaded);
                // A model that is served is not concerned.
                if loaded {
                    let before = world.settled();
                    world.load_with(overrides()).unwrap_err();
                    assert_eq!(world.settled(), before);
                    world.unload().unwrap();
                    world.settled();
                }
            }
            world.load_with(overrides()).unwrap_err();
            let failed = |version: &u64| format!("m/{version} UNAVAILABLE: its configuration is wrong");
            let mut expected: Vec<_> = versions.iter().map(failed).collect();
            if versions.is_empty() {
                expected.push("m UNAVAILABLE: its configuration is wrong".to_owned());
            }
            assert_eq!(world.settled(), expected);
            for version in [None, versions.first().copied()] {
                let error = infer_version(&world.server, version, request()).err().unwrap();
                assert!(error.message().ends_with(": its configuration is wrong"), "{error}");
            }
            world.unload().unwrap();
            let gone: Vec<_> =
                versions.iter().map(|version| format!("m/{version} UNAVAILABLE: unloaded")).collect();
            assert_eq!(world.settled(), if gone.is_empty() { vec!["m".to_owned()] } else { gone });
        }
    }
}

#[tokio::test]
async fn a_backend_that_panics_takes_down_its_own_load() {
    let world = world(ModelControl::Explicit);
    world.load().unwrap();
    for _ in 0..2 {
        world.source.set(2, &[(1, 1), (13, 1)]);
        assert!(world.load().unwrap_err().message().contains("panicked"));
        ask(&world.server, request()).await.unwrap();
    }
    world.source.set(3, &[(1, 1)]);
    world.load().unwrap();
    assert_eq!(world.settled(), ["m/1 READY", "m/13 UNAVAILABLE: unloaded"]);
}

#[test]
fn an_override_is_loaded_in_any_case_and_stays_until_the_repository_changes() {
    let world = world(ModelControl::Explicit);
    let size = || world.server.model(ScopedName::everywhere("m"), None).unwrap().config().max_batch_size;
    world.load().unwrap();
    world.load_with(with_config("2 1")).unwrap();
    world.load_with(with_config("3 1")).unwrap();
    assert_eq!((world.loads(), size()), (3, 3));
    world.load().unwrap();
    assert_eq!((world.loads(), size()), (0, 3));
    world.source.set(2, &[(1, 1)]);
    world.load().unwrap();
    assert_eq!((world.loads(), size()), (1, 4));
}

#[tokio::test]
async fn instances_are_changed_without_loading_the_model_anew() {
    let world = world(ModelControl::Explicit);
    let model = || world.server.model(ScopedName::everywhere("m"), None).unwrap();
    world.load().unwrap();
    ask(&world.server, request()).await.unwrap();
    assert_eq!((world.loads(), model().pool().len()), (1, 1));
    for count in [3, 2] {
        world.load_with(with_config(&format!("4 {count}"))).unwrap();
        ask(&world.server, request()).await.unwrap();
        assert_eq!((world.loads(), model().pool().len()), (0, count));
        assert_eq!(model().config().instance_group[0].count, i32::try_from(count).unwrap());
    }
    // The counters continue.
    assert_eq!(model().statistics().snapshot().success.count, 3);
    // With anything else it is another model.
    world.load_with(with_config("2 2")).unwrap();
    assert_eq!((world.loads(), model().statistics().snapshot().success.count), (1, 0));
}

#[tokio::test]
async fn a_failed_load_is_reported_in_the_index_and_to_requests() {
    let world = world(ModelControl::Explicit);
    let reasons = || {
        let index = world.server.blocking_index().unwrap().into_iter().filter_map(|(_, status)| status);
        index.map(|status| (status.state.name(), status.reason())).collect::<Vec<_>>()
    };
    let failures = || world.server.models().load_failures().map(|(_, count)| count).collect::<Vec<_>>();
    let is_broken = |broken| world.backend.broken.store(broken, AtomicOrdering::Relaxed);
    is_broken(true);
    world.load().unwrap_err();
    assert_eq!(reasons(), [("UNAVAILABLE", Some("broken on purpose".to_owned()))]);
    for version in [None, Some(1)] {
        let error = infer_version(&world.server, version, request()).err().unwrap();
        assert!(error.message().ends_with(": broken on purpose"), "{error}");
    }
    is_broken(false);
    world.load().unwrap();
    assert_eq!((reasons(), failures()), (vec![("READY", None)], vec![1]));
    // The old one is still served.
    is_broken(true);
    world.source.set(2, &[(1, 1)]);
    for count in [2, 3] {
        world.load().unwrap_err();
        let reasons = reasons();
        let [(state, Some(reason))] = reasons.as_slice() else { panic!("one with a reason: {reasons:?}") };
        assert!(
            *state == "READY" && reason.contains("still served") && reason.contains("broken on purpose"),
            "{reason}"
        );
        assert_eq!(failures(), [count]);
        ask(&world.server, request()).await.unwrap();
    }
    is_broken(false);
    world.load().unwrap();
    assert_eq!((reasons(), failures()), (vec![("READY", None)], vec![3]));
    is_broken(true);
    world.load_with(with_config("2 1")).unwrap_err();
    world.unload().unwrap();
    world.settled();
    assert_eq!(reasons(), [("UNAVAILABLE", Some("unloaded".to_owned()))]);
}

#[tokio::test]
async fn instances_that_stay_are_not_made_anew() {
    let world = world(ModelControl::Explicit);
    let mut before = 0;
    for count in [1, 4, 2, 2, 3, 1, 6, 5, 6] {
        world.load_with(with_config(&format!("4 {count}"))).unwrap();
        let made = std::mem::take(&mut *world.backend.instances.lock().unwrap());
        let expected: Vec<_> = (before..count).map(|number| format!("m_0_{number}")).collect();
        assert_eq!(made, expected, "from {before} to {count}");
        let asked = (0..16).map(|_| infer(&world.server, request()).unwrap());
        for mut answers in asked.collect::<Vec<_>>() {
            answers.single().await.unwrap();
        }
        before = count;
    }
    assert_eq!(world.loads(), 1);
}

#[test]
fn clients_control_models_in_explicit_mode_only() {
    for control in [ModelControl::None, ModelControl::Poll] {
        let world = world(control);
        world.server.start(None).unwrap();
        for refused in [world.load(), world.unload()] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::Unavailable);
        }
        assert_eq!(index(&world.server), ["m/1 READY"]);
    }
}

#[test]
fn a_change_is_taken_up_when_two_looks_have_seen_the_same_of_it() {
    let world = world(ModelControl::Poll);
    world.server.start(None).unwrap();
    let look = || {
        world.server.poll(Duration::MAX).unwrap();
        world.loads()
    };
    assert_eq!((world.loads(), look(), look()), (1, 0, 0));
    // A copy in progress.
    world.source.set(1, &[(1, 1), (2, 1)]);
    assert_eq!(look(), 0);
    world.source.set(1, &[(1, 1), (2, 2)]);
    assert_eq!((look(), look(), look()), (0, 1, 0));
    assert_eq!(world.settled(), ["m/1 READY", "m/2 READY"]);
    // A broken one is tried once, until it changes again.
    world.source.set(1, &[(1, 1), (2, 2), (9, 1)]);
    assert_eq!((look(), look(), look(), look()), (0, 1, 0, 0));
    // The others are still served.
    assert!(world.server.is_ready());
    world.source.set(1, &[(1, 1), (2, 2)]);
    assert_eq!((look(), look()), (0, 0));
    assert!(world.server.is_ready());
    world.source.remove();
    assert_eq!(look(), 0);
    // What became of it is forgotten.
    assert_eq!(world.settled(), [""; 0]);
    world.source.set(1, &[(1, 1)]);
    assert_eq!((look(), look()), (0, 1));
}

#[test]
fn model_that_failed_at_start_loads_once_it_is_mended() {
    let world = world(ModelControl::Poll);
    world.backend.broken.store(true, AtomicOrdering::Relaxed);
    world.server.start(None).unwrap();
    world.server.poll(Duration::MAX).unwrap();
    world.server.poll(Duration::MAX).unwrap();
    assert_eq!(
        (world.loads(), index(&world.server)),
        (1, vec!["m/1 UNAVAILABLE: broken on purpose".to_owned()])
    );
    world.backend.broken.store(false, AtomicOrdering::Relaxed);
    world.source.set(1, &[(1, 2)]);
    world.server.poll(Duration::MAX).unwrap();
    world.server.poll(Duration::MAX).unwrap();
    assert_eq!(index(&world.server), ["m/1 READY"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_in_a_tight_loop_see_no_error_while_a_model_is_loaded_anew() {
    let world = world(ModelControl::Explicit);
    world.load().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (server, stop) = (Arc::clone(&world.server), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut asked = 0_u64;
                while !stop.load(AtomicOrdering::Relaxed) {
                    infer(&server, request()).unwrap().single().await.unwrap();
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for change in 2..40 {
        world.source.set(change, &[(1, change)]);
        world.load().unwrap();
    }
    stop.store(true, AtomicOrdering::Relaxed);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
    assert_eq!(world.settled(), ["m/1 READY"]);
}

#[test]
fn clients_that_load_and_unload_the_same_model_at_once_are_all_answered() {
    let world = world(ModelControl::Explicit);
    thread::scope(|scope| {
        for client in 0..20 {
            let world = &world;
            scope
                .spawn(move || if client % 2 == 0 { world.load().unwrap() } else { world.unload().unwrap() });
        }
    });
    world.load().unwrap();
    assert_eq!(world.settled(), ["m/1 READY"]);
}

#[tokio::test]
async fn a_request_in_progress_is_answered_by_the_version_it_was_sent_to() {
    let gate = Gate::default();
    let source = Arc::new(Changing::default());
    source.set(1, &[(1, 1)]);
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
    let server = Server::new(options, backends(gated(&gate)), Arc::clone(&source) as _);
    let world = World { server, source, backend: Counting::default() };
    world.load().unwrap();
    let mut executing = infer(&world.server, request()).unwrap();
    let mut queued = infer(&world.server, request()).unwrap();
    gate.entered(1);
    world.unload().unwrap();
    assert_eq!(index(&world.server), ["m/1 UNLOADING"]);
    gate.open();
    executing.single().await.unwrap();
    queued.single().await.unwrap();
    drop((executing, queued));
    assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded"]);
}

const WARM_UP: &str = r#"instance_group { count: 2 }
    model_warmup { name: "none" inputs { key: "IN" value { data_type: TYPE_UINT8 dims: [ 2 ] zero_data: true } } }
    model_warmup { name: "some" batch_size: 3 count: 2
        inputs { key: "IN" value { data_type: TYPE_UINT8 dims: [ 2 ] random_data: true } } }"#;

fn warmed_up(script: Script) -> Arc<Server> {
    let text = format!("{}\n{WARM_UP}", nereid_model_config::to_text(&config()));
    server(scripted(script), vec![spec(nereid_model_config::parse_text(&text).unwrap(), &[1])])
}

#[tokio::test]
async fn a_model_is_warmed_up_on_each_instance_before_it_is_ready() {
    static SIZES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    let server = warmed_up(|batch| {
        SIZES.lock().unwrap().push((batch.requests().len(), batch.size()));
        echo(batch);
    });
    assert_eq!(*SIZES.lock().unwrap(), [(3, 3); 4]);
    // As in the reference, all of it is counted: four executions of three requests of one item each.
    let counts = || {
        let counted = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
        let compute = [counted.compute_input, counted.compute_infer, counted.compute_output];
        let batches: Vec<_> =
            counted.batches.iter().map(|(size, it)| (*size, it.compute_infer.count)).collect();
        assert!(compute.iter().all(|phase| phase.count == counted.success.count), "{counted:?}");
        assert!(counted.last_inference_ms > 0 && counted.fail.count == 0);
        (counted.inference_count, counted.execution_count, counted.success.count, batches)
    };
    assert_eq!(counts(), (12, 4, 12, vec![(3, 4)]));
    assert_eq!(server.work(), Work::Nothing);
    ask(&server, request()).await.unwrap();
    assert_eq!(counts(), (13, 5, 13, vec![(1, 1), (3, 4)]));
}

#[test]
fn a_warm_up_that_fails_fails_the_load() {
    let scripts: [(Script, &str); 3] = [
        (|batch| batch.fail(Error::internal("it is cold")), "it is cold"),
        (|batch| drop(batch), "without answering"),
        (|_| panic!("the backend's own fault"), "without answering"),
    ];
    for (script, reason) in scripts {
        let server = warmed_up(script);
        assert!(!server.is_ready());
        let index = index(&server);
        assert!(index[0].contains("warm-up 'some'") && index[0].contains(reason), "{index:?}");
    }
}

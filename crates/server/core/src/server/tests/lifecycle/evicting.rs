//! Models that are loaded for their requests: after an eviction, or for the first time.

use std::future::ready;
use std::pin::Pin;
use std::sync::OnceLock;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::members::{depending, plain, server_of};
use super::*;
use crate::scope::ScopedName;
use crate::table::{ModelTable, VersionState};
use crate::versions::{Choice, ModelRequest, Residency, VersionChooser};

#[tokio::test]
async fn an_evicted_model_answers_what_it_took_and_keeps_the_server_ready() {
    for control in [ModelControl::None, ModelControl::Explicit, ModelControl::Poll] {
        let world = world(control);
        world.source.set(1, &[(1, 1), (2, 1)]);
        world.server.start(Some(vec!["m".into()])).unwrap();
        let held = world.server.model(ScopedName::everywhere("m"), None).unwrap();
        world.evict().unwrap();
        // A request that found it before holds it.
        assert_eq!(index(&world.server)[1], "m/2 UNLOADING", "{control:?}");
        assert!(world.server.is_ready(), "{control:?}");
        world.server.infer(&held, request(), Caller::default()).unwrap().single().await.unwrap();
        drop(held);
        let evicted = ["m/1 UNLOADED: loaded on demand", "m/2 UNLOADED: loaded on demand"];
        assert_eq!(world.settled(), evicted, "{control:?}");
        assert!(world.server.is_ready() && world.server.ready().await, "{control:?}");
        for version in [None, Some(1), Some(2)] {
            let error = world.server.model(ScopedName::everywhere("m"), version).err().unwrap();
            assert!(error.message().ends_with(": loaded on demand"), "{error}");
        }
        assert_eq!(world.evict().unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(world.loads(), 2);
        world.load_on_demand().unwrap();
        assert_eq!(world.settled(), ["m/1 READY", "m/2 READY"], "{control:?}");
        assert_eq!(world.loads(), 2);
    }
}

#[test]
fn a_poll_leaves_an_evicted_model_to_its_next_request_whatever_its_files() {
    let world = world(ModelControl::Poll);
    world.server.start(None).unwrap();
    let poll = || {
        for _ in 0..3 {
            world.server.poll(Duration::MAX).unwrap();
        }
    };
    world.evict().unwrap();
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 UNLOADED: loaded on demand".into()], 1));
    world.source.set(1, &[(1, 3)]);
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 UNLOADED: loaded on demand".into()], 0));
    world.load_on_demand().unwrap();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 READY".into()], 1));
    let served = world.server.model(ScopedName::everywhere("m"), None).unwrap().fingerprint().versions[&1];
    assert_eq!(served, 3);
    world.evict().unwrap();
    world.source.remove();
    poll();
    assert_eq!(world.settled(), Vec::<String>::new());
    assert!(world.server.is_ready());
}

#[test]
fn an_unload_and_a_failed_load_end_an_eviction() {
    for is_held in [false, true] {
        let world = world(ModelControl::Explicit);
        world.server.start(Some(vec!["m".into()])).unwrap();
        let held = world.server.model(ScopedName::everywhere("m"), None).unwrap();
        let held = is_held.then_some(held);
        world.evict().unwrap();
        world.unload().unwrap();
        drop(held);
        assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded"]);
        world.load().unwrap();
        world.evict().unwrap();
        world.backend.broken.store(true, AtomicOrdering::Relaxed);
        world.load_on_demand().unwrap_err();
        assert_eq!(world.settled(), ["m/1 UNAVAILABLE: broken on purpose"]);
        // The model is missed now.
        assert!(!world.server.is_ready());
    }
}

/// `both` consists of `a` and `b`, `outer` of `both` and `c`.
fn nested(start: &[&str]) -> Arc<Server> {
    let models = vec![
        plain("a", 1),
        plain("b", 1),
        plain("c", 1),
        depending("both", &["a", "b"]),
        depending("outer", &["both", "c"]),
    ];
    let server = server_of(scripted(echo), models);
    server.start(Some(start.iter().map(|name| (*name).to_owned()).collect())).unwrap();
    server
}

fn settled(server: &Server) -> Vec<String> {
    loop {
        let index = index(server);
        if index.iter().all(|line| !line.contains("UNLOADING")) {
            return index;
        }
        thread::yield_now();
    }
}

fn load_on_demand(server: &Server, name: &str) -> Result<()> {
    let (done, outcome) = channel();
    server.load_on_demand(ScopedName::everywhere(name), move |result| done.send(result).unwrap());
    outcome.recv().unwrap()
}

#[test]
fn models_leave_after_those_that_consist_of_them_and_come_back_with_these() {
    // The model that leaves, the models that leave with it, in order, and those in memory afterwards.
    for (name, left, resident) in [
        ("a", &["outer", "both", "a"][..], "b c"),
        ("b", &["outer", "both", "b"], "a c"),
        ("c", &["outer", "c"], "a b both"),
    ] {
        let server = nested(&["outer"]);
        assert_eq!(server.evict_model_and_wait(name).unwrap(), left);
        let lines = settled(&server);
        let ready = |server: &Server| {
            server.models().ready().map(|model| model.name().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ready(&server), resident);
        let evicted = lines.iter().filter(|line| line.ends_with("UNLOADED: loaded on demand")).count();
        assert_eq!(evicted, left.len(), "{lines:?}");
        assert!(server.is_ready());
        load_on_demand(&server, "outer").unwrap();
        assert_eq!(ready(&server), "a b both c outer");
        assert!(server.is_ready());
    }
}

#[test]
fn a_model_stays_while_requests_hold_one_that_consists_of_it() {
    let server = nested(&["both"]);
    let held = server.model(ScopedName::everywhere("both"), None).unwrap();
    let error = evict(&server, "a").unwrap_err();
    assert_eq!(error.message(), "model 'a' cannot be evicted: 'both' consists of it");
    assert_eq!(
        index(&server),
        ["a/1 READY", "b/1 READY", "both/1 UNLOADING", "c", "outer"],
        "its next request loads it with its members"
    );
    drop(held);
    while let Err(error) = evict(&server, "a") {
        assert_eq!(error.code(), ErrorCode::Unavailable);
        thread::yield_now();
    }
    let evicted = ["a/1 UNLOADED: loaded on demand", "b/1 READY", "both/1 UNLOADED: loaded on demand"];
    assert_eq!(settled(&server)[..3], evicted);
}

#[test]
fn an_unload_of_a_member_ends_the_service_of_an_evicted_model() {
    let unload = |server: &Server, name: &str| {
        let (done, outcome) = channel();
        let done = move |result| done.send(result).unwrap();
        server.unload_model(ScopedName::everywhere(name), done).unwrap();
        outcome.recv().unwrap().unwrap();
    };
    let load = |server: &Server, name: &str| {
        let (done, outcome) = channel();
        let done = move |result| done.send(result).unwrap();
        server.load_model(ScopedName::everywhere(name), Overrides::default(), done).unwrap();
        outcome.recv().unwrap().unwrap();
    };
    for evicted in ["a", "b"] {
        let server = nested(&["both"]);
        server.evict_model_and_wait(evicted).unwrap();
        settled(&server);
        // A load of another member leaves it to its next request.
        load(&server, "b");
        let line =
            |server: &Server| settled(server).into_iter().find(|line| line.starts_with("both")).unwrap();
        assert_eq!(line(&server), "both/1 UNLOADED: loaded on demand");
        unload(&server, "a");
        let reason = line(&server);
        assert!(
            reason.starts_with("both/1 UNAVAILABLE") && reason.contains("'a'"),
            "{evicted} was evicted: {reason}"
        );
        assert!(server.is_ready());
        load(&server, "a");
        assert_eq!(line(&server), "both/1 READY", "{evicted}");
    }
}

#[test]
fn models_that_consist_of_others_or_that_only_a_client_has_are_not_evicted() {
    let server = nested(&["both"]);
    for (name, expected) in [
        (
            "both",
            "model 'both' cannot be evicted: it consists of other models and holds no memory of its own",
        ),
        ("c", "model 'c' cannot be evicted: it is not loaded"),
    ] {
        assert_eq!(evict(&server, name).unwrap_err().message(), expected);
    }

    let world = world(ModelControl::Explicit);
    world.server.start(Some(Vec::new())).unwrap();
    world.load_with(with_config("2 1")).unwrap();
    let error = world.evict().unwrap_err();
    assert!(error.message().contains("only the client has"), "{error}");
    assert_eq!(index(&world.server), ["m/1 READY"]);
}

/// Loads an evicted model for its next request.
#[derive(Clone, Default)]
struct OnDemand(Arc<OnceLock<Weak<Server>>>);

impl VersionChooser for OnDemand {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        let is_awaited =
            |state: &VersionState| state.is_evicted() || matches!(state, VersionState::Loading { .. });
        if !models.states_of(ScopedName::everywhere(&request.name)).any(is_awaited) {
            return Choice::Version(
                models.find(ScopedName::everywhere(&request.name), request.version).cloned(),
            );
        }
        let (done, loaded) = oneshot::channel();
        if let Some(server) = self.0.get().and_then(Weak::upgrade) {
            server.load_on_demand(ScopedName::everywhere(&request.name), move |_| {
                done.send(()).unwrap_or_default()
            });
        }
        Choice::Wait(Box::pin(loaded.map(drop)))
    }
}

#[tokio::test]
async fn requests_wait_for_the_load_of_an_evicted_model() {
    let (source, backend, chooser) =
        (Arc::new(Changing::default()), Counting::default(), OnDemand::default());
    source.set(1, &[(1, 1)]);
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(chooser.clone()));
    let options = ServerOptions { versions, ..options() };
    let server = Server::new(options, backends(backend.backend()), Arc::clone(&source) as _);
    chooser.0.set(Arc::downgrade(&server)).unwrap();
    server.start(None).unwrap();
    let world = World { server, source, backend };
    let ask = async || {
        let model = world.server.resolve(ScopedName::everywhere("m"), None).await?;
        world.server.infer(&model, request(), Caller::default())?.single().await.map(drop)
    };
    for _ in 0..3 {
        world.evict().unwrap();
        assert_eq!(world.settled(), ["m/1 UNLOADED: loaded on demand"]);
        world.loads();
        for outcome in join_all((0..8).map(|_| ask())).await {
            outcome.unwrap();
        }
        assert_eq!(world.loads(), 1, "one load for all requests that wait");
    }
    // A load that fails ends the wait with its reason.
    world.evict().unwrap();
    world.backend.broken.store(true, AtomicOrdering::Relaxed);
    let error = ask().await.unwrap_err();
    assert!(error.message().contains("broken on purpose"), "{error}");
}

/// Leaves every model to its first request, which this does not load.
#[derive(Debug)]
pub(super) struct FirstRequests;

impl VersionChooser for FirstRequests {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        Choice::Version(models.find(ScopedName::everywhere(&request.name), request.version).cloned())
    }
}

impl Residency for FirstRequests {
    fn is_on_demand(&self, config: &ModelConfig) -> Result<bool> {
        match config.max_batch_size {
            3 => Err(Error::invalid_arg("a batch of 3")),
            size => Ok(size != 5),
        }
    }

    fn is_offered(
        &self,
        name: ScopedName<'_>,
        models: &ModelTable,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(ready(models.states_of(name).any(VersionState::is_evicted)))
    }
}

fn waiting_for_requests(control: ModelControl) -> World {
    let world = world(control);
    let residency = Some(Arc::new(FirstRequests) as _);
    let options = ServerOptions { model_control: control, residency, ..options() };
    let server = Server::new(options, backends(world.backend.backend()), Arc::clone(&world.source) as _);
    World { server, ..world }
}

#[tokio::test]
async fn a_model_that_is_loaded_on_demand_is_neither_loaded_nor_required_at_start() {
    for control in [ModelControl::None, ModelControl::Explicit, ModelControl::Poll] {
        let world = waiting_for_requests(control);
        world.source.set(1, &[(1, 1), (2, 1)]);
        world.server.start(Some(vec!["m".into()])).unwrap();
        let unloaded = ["m/1 UNLOADED: loaded on demand", "m/2 UNLOADED: loaded on demand"];
        assert_eq!(
            (world.settled(), world.loads()),
            (unloaded.map(str::to_owned).to_vec(), 0),
            "{control:?}"
        );
        assert!(world.server.is_ready());
        world.server.model_ready(ScopedName::everywhere("m"), None).await.unwrap();
        world.server.model_ready(ScopedName::everywhere("other"), None).await.unwrap_err();
        assert_eq!(world.loads(), 0, "{control:?}");
        world.backend.broken.store(true, AtomicOrdering::Relaxed);
        world.load_on_demand().unwrap_err();
        assert!(world.server.is_ready(), "its failure leaves the server ready");
        world.server.model_ready(ScopedName::everywhere("m"), None).await.unwrap_err();
        world.backend.broken.store(false, AtomicOrdering::Relaxed);
        world.load_on_demand().unwrap();
        assert_eq!(world.settled(), ["m/1 READY", "m/2 READY"], "{control:?}");
        assert!(world.server.is_ready() && world.server.ready().await);
    }
}

#[test]
fn a_poll_defers_new_models_and_reloads_loaded_ones() {
    let world = waiting_for_requests(ModelControl::Poll);
    world.server.start(None).unwrap();
    let poll = || (0..3).for_each(|_| assert!(world.server.poll(Duration::MAX).is_ok()));
    world.load_on_demand().unwrap();
    world.source.set(1, &[(1, 2)]);
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 READY".into()], 2));
    world.source.remove();
    poll();
    world.source.set(1, &[(1, 3)]);
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 UNLOADED: loaded on demand".into()], 0));
}

#[test]
fn a_server_of_models_on_demand_lists_them_and_loads_what_is_named() {
    for named in [&[][..], &["m"]] {
        let world = waiting_for_requests(ModelControl::OnDemand);
        let named: Vec<_> = named.iter().map(|name| (*name).to_owned()).collect();
        let is_named = !named.is_empty();
        world.server.start(Some(named)).unwrap();
        let unloaded = |version| vec![format!("m{version} UNLOADED: loaded on demand")];
        let expected = if is_named { vec!["m/1 READY".to_owned()] } else { unloaded("") };
        assert_eq!((world.settled(), world.loads()), (expected, u64::from(is_named)));
        assert!(world.server.is_ready());
        // A poll follows the models that are loaded.
        world.source.set(1, &[(1, 2)]);
        (0..3).for_each(|_| assert!(world.server.poll(Duration::MAX).is_ok()));
        assert_eq!(world.loads(), u64::from(is_named));
        world.load().unwrap();
        world.unload().unwrap();
        assert_eq!(world.settled(), unloaded("/1"));
        world.source.remove();
        assert_eq!(world.settled(), Vec::<String>::new());
    }
}

#[test]
fn an_invalid_setting_of_residency_fails_the_load() {
    let world = waiting_for_requests(ModelControl::Explicit);
    world.server.start(Some(Vec::new())).unwrap();
    let error = world.load_with(with_config("3 1")).unwrap_err();
    assert!(error.message().ends_with("a batch of 3"), "{error}");
    assert_eq!(world.loads(), 0);
    world.load_with(with_config("5 1")).unwrap();
    assert_eq!(world.settled(), ["m/1 READY"]);
}

#[test]
fn an_eviction_on_the_calling_thread_waits_for_the_memory_but_not_forever() {
    let world = world(ModelControl::Explicit);
    world.server.start(Some(vec!["m".into()])).unwrap();
    let holder = world.server.model(ScopedName::everywhere("m"), None).unwrap();
    // The holder keeps its memory: the eviction waits for it for some time.
    world.server.evict_model_and_wait("m").unwrap();
    assert_eq!(index(&world.server), ["m/1 UNLOADING"]);
    drop(holder);
    assert_eq!(world.settled(), ["m/1 UNLOADED: loaded on demand"]);
    assert_eq!(world.server.evict_model_and_wait("m").unwrap_err().code(), ErrorCode::NotFound);
}

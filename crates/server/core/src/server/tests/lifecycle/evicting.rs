//! Models that are evicted, and loaded again for the next request.

use std::sync::OnceLock;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::members::{depending, plain, server_of};
use super::*;
use crate::table::{ModelTable, VersionState};
use crate::versions::{Choice, ModelRequest, VersionChooser};

#[tokio::test]
async fn an_evicted_model_answers_what_it_took_and_keeps_the_server_ready() {
    for control in [ModelControl::None, ModelControl::Explicit, ModelControl::Poll] {
        let world = world(control);
        world.source.set(1, &[(1, 1), (2, 1)]);
        world.server.start(Some(vec!["m".into()])).unwrap();
        let held = world.server.model("m", None).unwrap();
        world.evict().unwrap();
        // A request that found it before holds it.
        assert_eq!(index(&world.server)[1], "m/2 UNLOADING", "{control:?}");
        assert!(world.server.is_ready(), "{control:?}");
        world.server.infer(&held, request(), Caller::default()).unwrap().single().await.unwrap();
        drop(held);
        let evicted = ["m/1 UNAVAILABLE: evicted", "m/2 UNAVAILABLE: evicted"];
        assert_eq!(world.settled(), evicted, "{control:?}");
        assert!(world.server.is_ready() && world.server.ready().await, "{control:?}");
        for version in [None, Some(1), Some(2)] {
            let error = world.server.model("m", version).err().unwrap();
            assert!(error.message().ends_with(": evicted"), "{error}");
        }
        assert_eq!(world.evict().unwrap_err().code(), ErrorCode::NotFound);
        assert_eq!(world.loads(), 2);
        world.load_evicted().unwrap();
        assert_eq!(world.settled(), ["m/1 READY", "m/2 READY"], "{control:?}");
        assert_eq!(world.loads(), 2);
    }
}

#[test]
fn a_poll_loads_an_evicted_model_only_if_its_files_changed() {
    let world = world(ModelControl::Poll);
    world.server.start(None).unwrap();
    let poll = || {
        for _ in 0..3 {
            world.server.poll(Duration::MAX).unwrap();
        }
    };
    world.evict().unwrap();
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 UNAVAILABLE: evicted".into()], 1));
    world.source.set(1, &[(1, 3)]);
    poll();
    assert_eq!((world.settled(), world.loads()), (vec!["m/1 READY".into()], 1));
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
        let held = world.server.model("m", None).unwrap();
        let held = is_held.then_some(held);
        world.evict().unwrap();
        world.unload().unwrap();
        drop(held);
        assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded"]);
        world.load().unwrap();
        world.evict().unwrap();
        world.backend.broken.store(true, AtomicOrdering::Relaxed);
        world.load_evicted().unwrap_err();
        assert_eq!(world.settled(), ["m/1 UNAVAILABLE: broken on purpose"]);
        // The model is missed now.
        assert!(!world.server.is_ready());
    }
}

#[test]
fn models_that_others_consist_of_or_only_a_client_has_are_not_evicted() {
    let models = vec![plain("a", 1), plain("b", 1), depending("both", &["a", "b"])];
    let server = server_of(scripted(echo), models);
    server.start(Some(vec!["both".into()])).unwrap();
    for (name, expected) in [
        ("a", "model 'a' cannot be evicted: 'both' consists of it"),
        (
            "both",
            "model 'both' cannot be evicted: it consists of other models and holds no memory of its own",
        ),
        ("c", "model 'c' cannot be evicted: it is not loaded"),
    ] {
        assert_eq!(evict(&server, name).unwrap_err().message(), expected);
    }
    let (done, outcome) = channel();
    server.unload_model("both", move |result| done.send(result).unwrap()).unwrap();
    outcome.recv().unwrap().unwrap();
    evict(&server, "a").unwrap();

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
        let id = ModelId::plain(&request.name);
        let is_awaited =
            |(_, state): (u64, &VersionState)| state.is_evicted() || matches!(state, VersionState::Loading);
        if !models.versions(&id).any(is_awaited) {
            return Choice::Version(models.find(&request.name, request.version).cloned());
        }
        let (done, loaded) = oneshot::channel();
        if let Some(server) = self.0.get().and_then(Weak::upgrade) {
            server.load_evicted(&request.name, move |_| done.send(()).unwrap_or_default());
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
        let model = world.server.resolve("m", None).await?;
        world.server.infer(&model, request(), Caller::default())?.single().await.map(drop)
    };
    for _ in 0..3 {
        world.evict().unwrap();
        assert_eq!(world.settled(), ["m/1 UNAVAILABLE: evicted"]);
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

//! Events that subscribers receive, and the end of versions.

use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;

use super::*;
use crate::scope::ScopedName;
use nereid_backend_api::block_on;

#[test]
fn every_change_is_announced_after_it_is_visible() {
    let world = world(ModelControl::Explicit);
    let mut changes = world.server.changes();
    let mut heard = || changes.next().now_or_never().flatten().is_some();
    assert!(!heard());
    world.server.start(Some(Vec::new())).unwrap();
    assert!(heard() && world.server.is_ready());
    world.load().unwrap();
    assert!(heard());
    world.load().unwrap();
    world.unload().unwrap();
    assert!(heard());
    world.settled();
    world.server.begin_shutdown();
    assert!(heard() && !world.server.is_ready());
    let World { server, .. } = world;
    drop(server);
    // The end of the unload may be announced late; the end of the server comes last.
    block_on(async { while changes.next().await.is_some() {} });
}

/// Reads the index whenever one of these versions is logged as loaded.
struct Reader(Arc<Server>, [u64; 2], Arc<Mutex<Vec<Vec<String>>>>);

impl tracing::Subscriber for Reader {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let lines = self.1.map(|version| format!("successfully loaded 'm' version {version}"));
        let mut is_loaded = false;
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            is_loaded |= lines.contains(&format!("{value:?}"));
        });
        if is_loaded {
            self.2.lock().unwrap().push(index(&self.0));
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_log_says_that_a_model_is_loaded_once_it_is_served() {
    let (world, seen) = (world(ModelControl::Explicit), Arc::default());
    // Models are loaded on threads of the server, so the reader sees the log of the whole process: no other test has these
    // versions.
    let versions = [1001, 1002];
    world.source.set(1, &versions.map(|version| (version, 1)));
    world.server.start(Some(Vec::new())).unwrap();
    let reader = Reader(Arc::clone(&world.server), versions, Arc::clone(&seen));
    tracing::subscriber::set_global_default(reader).unwrap();
    world.load().unwrap();
    assert_eq!(*seen.lock().unwrap(), vec![["m/1001 READY", "m/1002 READY"]; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_sees_generations_in_order_and_always_the_last_state() {
    let world = world(ModelControl::Explicit);
    let (server, mut changes) = (Arc::clone(&world.server), world.server.changes());
    let subscriber = tokio::spawn(async move {
        let (mut generation, mut table, mut states) = (0, 0, Vec::new());
        loop {
            let next = changes.next().await.unwrap();
            assert!(next > generation);
            generation = next;
            let is_over = server.is_ready();
            let models = server.models();
            assert!(models.generation() >= table);
            table = models.generation();
            states.extend(models.index().map(|status| status.state.name()));
            if is_over {
                return (table, states);
            }
        }
    });
    for _ in 0..100 {
        world.load().unwrap();
        world.unload().unwrap();
        world.settled();
    }
    // The last event there is.
    world.server.start(Some(Vec::new())).unwrap();
    let (table, states) = subscriber.await.unwrap();
    assert_eq!((table, states.last()), (world.server.models().generation(), Some(&"UNAVAILABLE")));
}

/// On which threads models end, and how many were loaded.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>);

/// Part of a model, which notes on which thread that ends.
struct Loaded(Ends);

impl Drop for Loaded {
    fn drop(&mut self) {
        let thread = thread::current();
        self.0.0.lock().unwrap().push(thread.name().unwrap_or_default().to_owned());
    }
}

fn ending(control: ModelControl) -> (Ends, World) {
    let backend = Ends::default();
    let source = Arc::new(Changing::default());
    source.set(1, &[(1, 1)]);
    let ends = backend.clone();
    let loads = ScriptedBackend::new(move |_| {
        ends.1.fetch_add(1, AtomicOrdering::Relaxed);
        let loaded = Loaded(ends.clone());
        Ok(ScriptedModel::new(move |batch| {
            let _held = &loaded;
            echo(batch);
        }))
    });
    let options = ServerOptions { model_control: control, ..options() };
    let server = Server::new(options, backends(loads), Arc::clone(&source) as _);
    (backend, World { server, source, backend: Counting::default() })
}

#[test]
fn a_version_lasts_as_long_as_it_is_held_and_ends_on_a_thread_of_its_own() {
    let (backend, world) = ending(ModelControl::Explicit);
    world.load().unwrap();
    let held = world.server.model(ScopedName::everywhere("m"), None).unwrap();
    world.unload().unwrap();
    assert_eq!(index(&world.server), ["m/1 UNLOADING"]);
    assert!(backend.0.lock().unwrap().is_empty());
    drop(held);
    assert_eq!(world.settled(), ["m/1 UNAVAILABLE: unloaded"]);
    let ended = backend.0.lock().unwrap().clone();
    assert_eq!(ended, ["nereid-drain"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_version_ends_once_and_never_on_a_client_s_thread() {
    let (backend, world) = ending(ModelControl::Explicit);
    world.load().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (server, stop) = (Arc::clone(&world.server), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(AtomicOrdering::Relaxed) {
                    ask(&server, request()).await.unwrap();
                }
            })
        })
        .collect();
    for change in 2..60 {
        world.source.set(change, &[(1, change)]);
        world.load().unwrap();
    }
    stop.store(true, AtomicOrdering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    world.unload().unwrap();
    world.settled();
    let loaded = backend.1.load(AtomicOrdering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    while backend.0.lock().unwrap().len() < loaded {
        assert!(Instant::now() < deadline, "{} of {loaded} ended", backend.0.lock().unwrap().len());
        thread::yield_now();
    }
    let ended = backend.0.lock().unwrap().clone();
    assert!(ended.len() == loaded && ended.iter().all(|name| name == "nereid-drain"), "{ended:?}");
}

#[test]
fn a_server_that_goes_takes_its_models_with_it() {
    let (backend, world) = ending(ModelControl::Explicit);
    world.load().unwrap();
    let World { server, .. } = world;
    drop(server);
    let deadline = Instant::now() + Duration::from_secs(20);
    while backend.0.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

//! The stage before loading: slow sources, and the hooks of the files that they fetch.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Receiver;

use futures_util::FutureExt;
use tokio::sync::Semaphore;

use super::*;
use crate::scope::ScopedName;
use crate::source::{BlockingSource, FetchedModel, ModelSource, Progress, SourceEntry, SourceFuture};
use crate::spec::Origin;
use crate::{FetchStatus, LoadGuard, LoadHooks};
use nereid_backend_api::block_on;

/// A source of models that are fetched when there is a permit for that; `now` needs none.
struct Remote {
    permits: Semaphore,
    fetching: AtomicUsize,
    most: AtomicUsize,
    heard: Arc<Mutex<Vec<String>>>,
    /// The origin of the files, the number of instances, and whether they can be loaded.
    model: Mutex<(Origin, i32, bool)>,
    listed: AtomicUsize,
    /// Whether a listing never ends.
    is_slow: AtomicBool,
    number: AtomicU64,
}

impl Default for Remote {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(0),
            fetching: AtomicUsize::default(),
            most: AtomicUsize::default(),
            heard: Arc::default(),
            model: Mutex::new((Origin::Source, 1, true)),
            listed: AtomicUsize::default(),
            is_slow: AtomicBool::default(),
            number: AtomicU64::default(),
        }
    }
}

struct Files(ModelSpec);

impl FetchedModel for Files {
    fn read(self: Box<Self>) -> Result<ModelSpec> {
        Ok(self.0)
    }
}

/// Counts fetches in progress as long as it is there.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AtomicOrdering::SeqCst);
    }
}

/// Records the calls of its hooks.
struct Hears(String, Arc<Mutex<Vec<String>>>);

impl Hears {
    fn note(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{} {what}", self.0));
    }
}

impl LoadHooks for Hears {
    fn loaded(&self) {
        self.note("loaded");
    }

    fn failed(&self, _: &Error) {
        self.note("failed");
    }

    fn unloading(&self) {
        self.note("unloading");
    }

    fn dropped(&self) {
        self.note("dropped");
    }
}

impl ModelSource for Remote {
    fn list(&self) -> SourceFuture<'_, Vec<SourceEntry>> {
        Box::pin(async {
            self.listed.fetch_add(1, AtomicOrdering::SeqCst);
            if self.permits.is_closed() {
                return Err(Error::unavailable("the source is gone"));
            }
            if self.is_slow.load(AtomicOrdering::SeqCst) {
                pending::<()>().await;
            }
            let listed = |name: &str| SourceEntry { name: name.into(), ids: Ok(vec![ModelId::plain(name)]) };
            Ok(vec![listed("m")])
        })
    }

    fn find<'a>(&'a self, name: &'a str, _: Instant) -> SourceFuture<'a, Vec<ModelId>> {
        Box::pin(async move { Ok(vec![ModelId::plain(name)]) })
    }

    fn fingerprint<'a>(&'a self, _: &'a ModelId, _: Instant) -> SourceFuture<'a, Fingerprint> {
        Box::pin(async {
            Ok(Fingerprint { config: self.number.load(AtomicOrdering::SeqCst), ..Fingerprint::default() })
        })
    }

    fn fetch<'a>(
        &'a self,
        id: &'a ModelId,
        _: &'a Overrides,
        progress: &'a Progress,
        _: Instant,
    ) -> SourceFuture<'a, Box<dyn FetchedModel>> {
        Box::pin(async move {
            let fetching = self.fetching.fetch_add(1, AtomicOrdering::SeqCst) + 1;
            let _counted = Counted(&self.fetching);
            self.most.fetch_max(fetching, AtomicOrdering::SeqCst);
            if id.name != "now" {
                progress.expect(100);
                progress.advance(40);
                self.permits.acquire().await.map_err(|_| Error::unavailable("the source is gone"))?.forget();
                progress.advance(60);
            }
            let number = self.number.fetch_add(1, AtomicOrdering::SeqCst);
            let (origin, count, loads) = *self.model.lock().unwrap();
            let group = ModelInstanceGroup { count, ..ModelInstanceGroup::default() };
            let config = ModelConfig { name: id.name.clone(), instance_group: vec![group], ..config() };
            let version = if loads { 1 } else { 2 };
            let guard = LoadGuard::new(Hears(number.to_string(), Arc::clone(&self.heard)));
            let fingerprint =
                Fingerprint { config: number, versions: [(1, 1)].into(), ..Fingerprint::default() };
            let spec = ModelSpec::new(id.clone(), "m", config, [version]);
            Ok(Box::new(Files(ModelSpec { guard, origin, fingerprint, ..spec })) as _)
        })
    }
}

fn remote(options: ServerOptions) -> (Arc<Remote>, Arc<Server>) {
    let source = Arc::new(Remote::default());
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options };
    let server = Server::new(options, backends(scripted(echo)), Arc::clone(&source) as _);
    server.start(Some(Vec::new())).unwrap();
    (source, server)
}

fn begin_load(server: &Server, name: &str) -> Receiver<Result<()>> {
    let (done, outcome) = channel();
    server
        .load_model(ScopedName::everywhere(name), Overrides::default(), move |result| {
            done.send(result).unwrap()
        })
        .unwrap();
    outcome
}

fn begin_unload(server: &Server, name: &str) -> Receiver<Result<()>> {
    let (done, outcome) = channel();
    server.unload_model(ScopedName::everywhere(name), move |result| done.send(result).unwrap()).unwrap();
    outcome
}

const LONG: Duration = Duration::from_secs(20);

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !what() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

#[test]
fn a_fetch_reports_its_progress_and_holds_up_no_load() {
    let (source, server) = remote(ServerOptions { load_threads: 1, ..options() });
    let mut changes = server.changes();
    let slow: Vec<_> = ["a", "b", "c"].map(|name| begin_load(&server, name)).into();
    wait_for(|| server.fetches().iter().filter(|fetch| fetch.fetched == 40).count() == 3);
    let status = |fetch: FetchStatus| (fetch.id.name, fetch.fetched, fetch.total);
    let fetches: Vec<_> = server.fetches().into_iter().map(status).collect();
    assert_eq!(fetches, ["a", "b", "c"].map(|name| (name.to_owned(), 40, 100)));
    assert!(changes.next().now_or_never().is_some());
    begin_load(&server, "now").recv_timeout(LONG).unwrap().unwrap();
    source.permits.add_permits(3);
    for outcome in slow {
        outcome.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!((server.fetches().len(), server.models().ready().count()), (0, 4));
}

#[test]
fn fetches_have_a_limit_of_their_own() {
    let (source, server) = remote(ServerOptions { max_fetches: 5, load_threads: 2, ..options() });
    let outcomes: Vec<_> = (0..100).map(|number| begin_load(&server, &format!("m{number}"))).collect();
    wait_for(|| source.fetching.load(AtomicOrdering::SeqCst) == 5);
    source.permits.add_permits(100);
    for outcome in outcomes {
        outcome.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(source.most.load(AtomicOrdering::SeqCst), 5);
    assert_eq!(server.models().ready().count(), 100);
}

#[test]
fn an_unload_cancels_a_fetch_that_hangs_and_the_loads_behind_it() {
    let (source, server) = remote(options());
    let hanging = begin_load(&server, "m");
    wait_for(|| source.fetching.load(AtomicOrdering::SeqCst) == 1);
    let behind = begin_load(&server, "m");
    begin_unload(&server, "m").recv_timeout(LONG).unwrap().unwrap();
    for outcome in [hanging, behind] {
        let error = outcome.recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert!(error.message().contains("cancelled by an unload"), "{error}");
    }
    assert_eq!((source.fetching.load(AtomicOrdering::SeqCst), server.fetches().len()), (0, 0));
    // It can be loaded again.
    source.permits.add_permits(1);
    begin_load(&server, "m").recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(index(&server), ["m/1 READY"]);
}

#[test]
fn server_that_begins_to_stop_cancels_fetches_and_listings_that_wait() {
    let (source, server) = remote(ServerOptions { max_fetches: 2, ..options() });
    let outcomes: Vec<_> = (0..6).map(|number| begin_load(&server, &format!("m{number}"))).collect();
    wait_for(|| source.fetching.load(AtomicOrdering::SeqCst) == 2);
    source.is_slow.store(true, AtomicOrdering::SeqCst);
    let before = source.listed.load(AtomicOrdering::SeqCst);
    let (listed, index) = (server.index(), Arc::clone(&server));
    let waiting = thread::spawn(move || (block_on(listed), block_on(index.index())));
    wait_for(|| source.listed.load(AtomicOrdering::SeqCst) > before);
    server.begin_shutdown();
    for outcome in outcomes {
        let error = outcome.recv_timeout(LONG).unwrap().unwrap_err();
        assert!(error.message().contains("stopping"), "{error}");
    }
    wait_for(|| waiting.is_finished());
    let (listed, later) = waiting.join().unwrap();
    // As far as the source was listed before.
    assert!(listed.is_ok() && later.is_ok());
}

#[test]
fn a_server_that_ends_cancels_all_fetches() {
    let (source, server) = remote(ServerOptions { max_fetches: 2, ..options() });
    let outcomes: Vec<_> = (0..6).map(|number| begin_load(&server, &format!("m{number}"))).collect();
    wait_for(|| source.fetching.load(AtomicOrdering::SeqCst) == 2);
    server.unload_all();
    for outcome in outcomes {
        let error = outcome.recv_timeout(LONG).unwrap().unwrap_err();
        assert!(error.message().contains("stopping"), "{error}");
    }
    wait_for(|| source.fetching.load(AtomicOrdering::SeqCst) == 0);
}

#[test]
fn a_guard_hears_each_step_once_and_in_order() {
    let (source, server) = remote(options());
    let load = || begin_load(&server, "now").recv_timeout(LONG).unwrap();
    let heard = |expected: &[&str]| {
        wait_for(|| source.heard.lock().unwrap().len() >= expected.len());
        let mut heard = std::mem::take(&mut *source.heard.lock().unwrap());
        // Loads of different files end independently of each other.
        heard.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
        assert_eq!(heard, expected);
    };
    load().unwrap();
    heard(&["0 loaded"]);
    let held = server.model(ScopedName::everywhere("now"), None).unwrap();
    // Other files take the place of the first ones, whose requests go on.
    *source.model.lock().unwrap() = (Origin::Request(1), 1, true);
    load().unwrap();
    heard(&["0 unloading", "1 loaded"]);
    drop(held);
    heard(&["0 dropped"]);
    // A failed load releases its files at once.
    *source.model.lock().unwrap() = (Origin::Request(2), 1, false);
    load().unwrap_err();
    heard(&["2 failed", "2 dropped"]);
    // With other instances alone, the files stay, and those that came again go.
    *source.model.lock().unwrap() = (Origin::Request(1), 2, true);
    load().unwrap();
    assert_eq!(
        server.model(ScopedName::everywhere("now"), None).unwrap().config().instance_group[0].count,
        2
    );
    heard(&["3 loaded", "3 unloading", "3 dropped"]);
    begin_unload(&server, "now").recv_timeout(LONG).unwrap().unwrap();
    heard(&["1 unloading", "1 dropped"]);
    // A server that ends releases all files.
    *source.model.lock().unwrap() = (Origin::Source, 1, true);
    load().unwrap();
    server.unload_all();
    heard(&["4 loaded", "4 unloading", "4 dropped"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_is_listed_for_many_at_once_and_sees_what_was_there_before_it_was_asked_for() {
    let (source, server) = remote(options());
    let before = source.listed.load(AtomicOrdering::SeqCst);
    let asked: Vec<_> = (0..200).map(|_| server.index()).collect();
    for index in futures_util::future::join_all(asked).await {
        assert_eq!(index.unwrap().len(), 1);
    }
    let listed = source.listed.load(AtomicOrdering::SeqCst) - before;
    assert!((1..50).contains(&listed), "{listed} times");
    source.permits.close();
    assert_eq!(server.index().await.err().map(|error| error.code()), Some(ErrorCode::Unavailable));
}

#[test]
fn the_index_of_a_server_that_polls_is_that_of_the_last_poll() {
    let source = Arc::new(Remote::default());
    let options = ServerOptions { model_control: ModelControl::Poll, ..options() };
    let server = Server::new(options, backends(scripted(echo)), Arc::clone(&source) as _);
    source.permits.add_permits(1);
    server.start(None).unwrap();
    let listed = || source.listed.load(AtomicOrdering::SeqCst);
    let before = listed();
    let names: BTreeSet<_> = server.blocking_index().unwrap().into_iter().map(|(id, _)| id.name).collect();
    assert_eq!((names, listed()), (BTreeSet::from(["m".to_owned()]), before));
    source.permits.close();
    server.poll(LONG).unwrap_err();
    assert_eq!(server.blocking_index().err().map(|error| error.code()), Some(ErrorCode::Unavailable));
}

/// A source whose models are read at once, and counted.
#[derive(Default)]
struct Counting {
    reads: AtomicUsize,
    /// Tells one state of the model from others.
    number: AtomicU64,
    /// Whether the model can be loaded.
    is_broken: AtomicBool,
}

impl Counting {
    fn current(&self) -> Fingerprint {
        Fingerprint { whole: self.number.load(AtomicOrdering::SeqCst), ..Fingerprint::default() }
    }
}

impl BlockingSource for Arc<Counting> {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["m".into()])
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        self.reads.fetch_add(1, AtomicOrdering::SeqCst);
        if self.is_broken.load(AtomicOrdering::SeqCst) {
            return Err(Error::invalid_arg("broken"));
        }
        let origin = if overrides.files.is_empty() { Origin::Source } else { Origin::Request(1) };
        let config = ModelConfig { name: id.name.clone(), ..config() };
        let fingerprint = self.current();
        Ok(ModelSpec { fingerprint, origin, ..ModelSpec::new(id.clone(), "m", config, [1]) })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        Ok(self.current())
    }
}

#[test]
fn a_model_that_has_not_changed_is_not_read_again() {
    let source = Arc::new(Counting::default());
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
    let server = Server::new(options, backends(scripted(echo)), Arc::new(Arc::clone(&source)) as _);
    server.start(Some(Vec::new())).unwrap();
    let reads = |act: &dyn Fn() -> Result<()>| {
        let before = source.reads.load(AtomicOrdering::SeqCst);
        let outcome = act();
        (source.reads.load(AtomicOrdering::SeqCst) - before, outcome.is_ok())
    };
    let load = || begin_load(&server, "m").recv_timeout(LONG).unwrap();
    let load_with = |overrides: Overrides| {
        let (done, outcome) = channel();
        server
            .load_model(ScopedName::everywhere("m"), overrides, move |result| done.send(result).unwrap())
            .unwrap();
        outcome.recv_timeout(LONG).unwrap()
    };
    let change = || source.number.fetch_add(1, AtomicOrdering::SeqCst);
    let files = || Overrides {
        config: Some("{}".into()),
        files: [("1/x".into(), bytes::Bytes::new())].into_iter().collect(),
    };
    assert_eq!(reads(&load), (1, true));
    assert_eq!(reads(&load), (0, true));
    change();
    assert_eq!(reads(&load), (1, true));
    assert_eq!(
        reads(&|| load_with(Overrides { config: Some("{}".into()), ..Overrides::default() })),
        (1, true)
    );
    assert_eq!(reads(&load), (0, true));
    // Files of a request differ from the source's.
    assert_eq!(reads(&|| load_with(files())), (1, true));
    assert_eq!(reads(&load), (1, true));
    begin_unload(&server, "m").recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(reads(&load), (1, true));
    // What failed is tried again.
    change();
    source.is_broken.store(true, AtomicOrdering::SeqCst);
    assert_eq!(reads(&load), (1, false));
    assert_eq!(reads(&load), (1, false));
    source.is_broken.store(false, AtomicOrdering::SeqCst);
    assert_eq!(reads(&load), (1, true));
    assert_eq!(reads(&load), (0, true));
}

//! Requests whose models choose their versions.

use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;

use super::*;
use crate::interceptors::LoadedVersion;
use crate::release::{Release, ReleaseStatus};
use crate::request_head::RequestHead;
use crate::scope::ScopedName;
use crate::source::Overrides;
use crate::table::ModelTable;
use crate::versions::{Choice, ModelRequest, VersionChooser};

/// A model with versions 1 and 2, and a chooser.
fn serving_versions(chooser: impl VersionChooser + 'static) -> Arc<Server> {
    let model = ScriptedModel::new(echo);
    let backend = ScriptedBackend::new(move |_| Ok(model.clone()));
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(chooser));
    let options = ServerOptions { versions, model_control: ModelControl::Explicit, ..options() };
    let text = "version_policy { all {} }";
    let version_policy = nereid_model_config::parse_text(text).unwrap().version_policy;
    let other = ModelConfig { name: "other".into(), ..config() };
    let other = ("other".to_owned(), Ok(ModelSpec::new(ModelId::plain("other"), "other", other, [1])));
    let models = vec![spec(ModelConfig { version_policy, ..config() }, &[1, 2]), other];
    let models: BTreeMap<_, _> = models.into_iter().collect();
    Server::new(options, backends(backend), Arc::new(models))
}

/// Sends requests to version 1, unless they have a header.
struct Canary;

impl VersionChooser for Canary {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        let version = match (request.version, request.head.get("x-canary")) {
            (Some(version), _) => version,
            (None, Some(version)) => version.parse().unwrap(),
            (None, None) => 1,
        };
        Choice::Version(models.find(ScopedName::everywhere(&request.name), Some(version)).cloned())
    }
}

#[tokio::test]
async fn a_chooser_sees_the_head_of_requests_to_its_model() {
    let server = serving_versions(Canary);
    server.start(None).unwrap();
    let resolved = async |name: &str, version, head: &[(&str, &str)]| {
        let head = || head.iter().copied().collect::<RequestHead>();
        server.resolve_with(ScopedName::everywhere(name), version, head).await.map(|model| model.version())
    };
    assert_eq!(server.resolve(ScopedName::everywhere("m"), None).await.unwrap().version(), 1);
    for (version, head, expected) in [
        (None, &[][..], Ok(1)),
        (None, &[("x-other", "2")], Ok(1)),
        (None, &[("x-other", "1"), ("X-Canary", "2")], Ok(2)),
        (Some(1), &[("x-canary", "2")], Ok(1)),
        (Some(2), &[], Ok(2)),
        (None, &[("x-canary", "3")], Err(ErrorCode::NotFound)),
    ] {
        let outcome = resolved("m", version, head).await.map_err(|error| error.code());
        assert_eq!(outcome, expected, "{version:?} {head:?}");
    }
    // The head of other requests is not even read.
    let unread = || panic!("the model has no chooser");
    assert_eq!(
        server.resolve_with(ScopedName::everywhere("other"), None, unread).await.unwrap().version(),
        1
    );
}

/// Sends requests with a key to version 2, others to version 1, and counts.
#[derive(Debug, Default)]
struct Keyed(AtomicUsize);

#[derive(Debug)]
struct OneRelease(Arc<Keyed>);

impl Release for Keyed {
    fn established(&self) -> u64 {
        1
    }

    fn has_keys(&self) -> bool {
        true
    }

    fn key(&self, head: &RequestHead) -> Option<u64> {
        head.get("x-key")?.parse().ok()
    }

    fn choose(&self, _: &InferRequest, key: Option<u64>, served: &[u64]) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(served, [1, 2]);
        if key.is_some() { 2 } else { 1 }
    }

    fn note(&self, version: u64) -> Option<String> {
        (version == 2).then(|| "candidate".to_owned())
    }

    fn status(&self) -> ReleaseStatus {
        ReleaseStatus::default()
    }
}

impl ReleaseFactory for OneRelease {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Release>>> {
        Ok((version.spec.id.name == "m").then(|| Arc::<Keyed>::clone(&self.0) as _))
    }

    fn parameters(&self) -> &[&str] {
        &["release"]
    }
}

#[tokio::test]
async fn a_release_chooses_when_the_request_is_known() {
    let model = ScriptedModel::new(echo);
    let backend = ScriptedBackend::new(move |_| Ok(model.clone()));
    let release = Arc::<Keyed>::default();
    let releases: Option<Arc<dyn ReleaseFactory>> = Some(Arc::new(OneRelease(Arc::clone(&release))));
    let text = "version_policy { all {} }";
    let version_policy = nereid_model_config::parse_text(text).unwrap().version_policy;
    let models = BTreeMap::from([spec(ModelConfig { version_policy, ..config() }, &[1, 2])]);
    let server = Server::new(ServerOptions { releases, ..options() }, backends(backend), Arc::new(models));
    server.start(None).unwrap();
    for (version, head, expected) in
        [(None, &[][..], 1), (None, &[("x-key", "7")], 2), (Some(1), &[("x-key", "7")], 1), (Some(2), &[], 2)]
    {
        let before = release.0.load(Ordering::Relaxed);
        let head = || head.iter().copied().collect::<RequestHead>();
        let model = server.resolve_with(ScopedName::everywhere("m"), version, head).await.unwrap();
        // Only requests are split: metadata and readiness are the established version's.
        assert_eq!(model.version(), version.unwrap_or(1));
        assert_eq!(release.0.load(Ordering::Relaxed), before);
        let mut answers = server.infer(&model, request(), Caller::default()).unwrap();
        assert_eq!(answers.model_version(), expected);
        answers.single().await.unwrap();
        assert_eq!(release.0.load(Ordering::Relaxed) - before, usize::from(version.is_none()));
    }
    let reasons: Vec<_> = server.models().index().map(|status| status.reason()).collect();
    assert_eq!(reasons, [None, Some("candidate".to_owned())]);
    let inner = server.models().find_for(&ModelId::plain("m"), None, &request()).unwrap();
    assert_eq!(inner.version(), 1);
}

/// Lets requests wait until the test changes the state, and for a served version then.
struct Waiting {
    state: watch::Sender<u64>,
    asked: Arc<AtomicUsize>,
}

impl VersionChooser for Waiting {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Ok(model) = models.find(ScopedName::everywhere(&request.name), request.version) {
            return Choice::Version(Ok(Arc::clone(model)));
        }
        let mut state = self.state.subscribe();
        state.mark_unchanged();
        Choice::Wait(Box::pin(async move {
            let _ = state.changed().await;
        }))
    }
}

fn waiting() -> (Arc<Server>, watch::Sender<u64>, Arc<AtomicUsize>) {
    let (state, asked) = (watch::Sender::new(0), Arc::<AtomicUsize>::default());
    let server = serving_versions(Waiting { state: state.clone(), asked: Arc::clone(&asked) });
    server.start(Some(Vec::new())).unwrap();
    (server, state, asked)
}

fn is_pending(resolving: &mut ResolveFuture) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(resolving).poll(&mut context), Poll::Pending)
}

#[tokio::test]
async fn a_request_waits_until_its_chooser_finds_a_version() {
    let (server, state, asked) = waiting();
    let mut resolving = [None, Some(2)].map(|version| server.resolve(ScopedName::everywhere("m"), version));
    assert!(resolving.iter_mut().all(is_pending));
    // A change for nothing: the chooser decides again, and waits again.
    state.send_modify(|number| *number += 1);
    assert!(resolving.iter_mut().all(is_pending));
    assert_eq!(asked.load(Ordering::Relaxed), 4);
    let (done, outcome) = channel();
    server
        .load_model(ScopedName::everywhere("m"), Overrides::default(), move |it| done.send(it).unwrap())
        .unwrap();
    outcome.recv().unwrap().unwrap();
    state.send_modify(|number| *number += 1);
    for resolving in resolving {
        let model = resolving.await.unwrap();
        assert_eq!(model.version(), 2);
        server.infer(&model, request(), Caller::default()).unwrap().single().await.unwrap();
    }
    // Nothing to wait for any more.
    assert_eq!(server.resolve(ScopedName::everywhere("m"), Some(1)).await.unwrap().version(), 1);
    let known: BTreeSet<_> = server.models().ready_versions(ScopedName::everywhere("m")).collect();
    assert_eq!(known, BTreeSet::from([1, 2]));
}

#[tokio::test]
async fn a_server_that_stops_ends_the_wait_of_requests() {
    for is_stopping_before in [false, true] {
        let (server, _state, _) = waiting();
        if is_stopping_before {
            server.begin_shutdown();
        }
        let mut resolving = server.resolve(ScopedName::everywhere("m"), None);
        assert_eq!(is_pending(&mut resolving), !is_stopping_before);
        if is_stopping_before {
            continue;
        }
        server.begin_shutdown();
        let error = resolving.await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert!(error.message().contains("the server is stopping"), "{error}");
    }
}

#[tokio::test]
async fn a_dropped_request_waits_no_longer() {
    let (server, state, asked) = waiting();
    let mut resolving = server.resolve(ScopedName::everywhere("m"), None);
    assert!(is_pending(&mut resolving));
    assert_eq!(state.receiver_count(), 1);
    drop(resolving);
    assert_eq!(state.receiver_count(), 0);
    state.send_modify(|number| *number += 1);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

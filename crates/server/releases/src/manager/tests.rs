//! Releases in a whole server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nereid_core::backend_api::{
    Backend, Batch, CorrelationId, DataType, Error, InferRequest, Response, SequenceFlags, Tensor,
};
use nereid_core::{
    BlockingSource, Caller, Fingerprint, Interceptors, ModelControl, ModelSpec, Overrides, ReleaseStatus,
    ReleasedVersion, RequestHead, ScopedName, Server, ServerOptions, Verdict,
};
use nereid_testkit::{ScriptedBackend, ScriptedModel};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::*;

/// The behaviour of a version.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Right,
    Wrong,
    Fails,
}

/// The repository: the configuration of the model, and its versions with the number of their files.
#[derive(Default)]
struct Repository {
    text: String,
    versions: BTreeMap<u64, (Kind, u64)>,
}

#[derive(Default)]
struct Changing(Mutex<Repository>);

impl BlockingSource for Changing {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["m".into()])
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        let repository = self.0.lock().unwrap();
        let tensors = "backend: 'b' max_batch_size: 4 \
             input { name: 'X' data_type: TYPE_UINT8 dims: [ 1 ] } output { name: 'Y' data_type: TYPE_UINT8 dims: [ 1 ] }";
        let config = nereid_testkit::normalised("m", &format!("{tensors} {}", repository.text));
        assert!(overrides.config.is_none());
        let versions: Vec<_> = repository.versions.keys().copied().collect();
        drop(repository);
        let fingerprint = self.fingerprint_of(id)?;
        Ok(ModelSpec { fingerprint, ..ModelSpec::new(id.clone(), "m", config, versions) })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        let repository = self.0.lock().unwrap();
        let versions = repository.versions.iter().map(|(version, (_, files))| (*version, *files)).collect();
        let config = repository.text.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        Ok(Fingerprint { whole: 0, config, versions })
    }
}

/// A decision: version, verdict, reason, and whether it was automatic.
type Heard = (u64, Verdict, String, bool);

struct World {
    server: Arc<Server>,
    source: Arc<Changing>,
    loads: Arc<AtomicUsize>,
    /// The decisions so far.
    decisions: Arc<Mutex<Vec<Heard>>>,
    runtime: Runtime,
}

fn parameters(parameters: &[(&str, &str)]) -> String {
    let parameter = |(key, value): &(&str, &str)| {
        format!("parameters {{ key: 'release_{key}' value {{ string_value: '{value}' }} }} ")
    };
    parameters.iter().map(parameter).collect()
}

fn world(text: &str, versions: &[Kind]) -> World {
    let source = Arc::<Changing>::default();
    let loads = Arc::<AtomicUsize>::default();
    let (kinds, counted) = (Arc::clone(&source), Arc::clone(&loads));
    let backend = ScriptedBackend::new(move |context| {
        counted.fetch_add(1, Ordering::Relaxed);
        let kind = kinds.0.lock().unwrap().versions[&context.version].0;
        Ok(ScriptedModel::new(move |batch: Batch| {
            let answer = |content: u8| {
                Ok(Response::new(vec![Tensor::new("Y", DataType::Uint8, [1, 1], vec![content])]))
            };
            let answers = batch.requests().iter().map(|request| {
                let content = request.input("X")?.contiguous()?[0];
                match kind {
                    Right => answer(content),
                    Wrong => answer(content.wrapping_add(1)),
                    Fails => Err(Error::internal("broken on purpose")),
                }
            });
            let answers: Vec<_> = answers.collect();
            batch.complete(answers);
        }))
    });
    let releases = Releases::default();
    let decisions = Arc::<Mutex<Vec<Heard>>>::default();
    let heard = Arc::clone(&decisions);
    releases.on_decision(move |it| {
        assert_eq!(it.id, &ModelId::plain("m"));
        heard.lock().unwrap().push((it.version, it.verdict, it.reason.to_owned(), it.is_automatic));
    });
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::new(releases.clone()));
    let options = ServerOptions {
        name: "test".into(),
        load_threads: 2,
        model_control: ModelControl::Explicit,
        releases: Some(Arc::new(releases)),
        interceptors,
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("b".to_owned(), Arc::new(backend) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, Arc::clone(&source) as _);
    server.start(Some(Vec::new())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let world = World { server, source, loads, decisions, runtime };
    world.put(text, versions);
    world.load().unwrap();
    world
}

impl World {
    /// Changes the configuration and the versions. Files of versions that do the same as before have not changed.
    fn put(&self, text: &str, versions: &[Kind]) {
        let mut repository = self.source.0.lock().unwrap();
        repository.text = format!("version_policy {{ all {{ }} }} {text}");
        let before = std::mem::take(&mut repository.versions);
        repository.versions = (1..)
            .zip(versions)
            .map(|(version, kind)| match before.get(&version) {
                Some((other, files)) if other == kind => (version, (*kind, *files)),
                Some((_, files)) => (version, (*kind, files + 1)),
                None => (version, (*kind, 0)),
            })
            .collect();
    }

    fn wait(&self, begin: impl FnOnce(Box<dyn FnOnce(Result<()>) + Send>) -> Result<()>) -> Result<()> {
        let (done, outcome) = mpsc::channel();
        begin(Box::new(move |it| done.send(it).unwrap()))?;
        outcome.recv().unwrap()
    }

    fn load(&self) -> Result<()> {
        self.wait(|done| self.server.load_model(ScopedName::everywhere("m"), Overrides::default(), done))
    }

    fn unload(&self) {
        self.wait(|done| self.server.unload_model(ScopedName::everywhere("m"), done)).unwrap();
    }

    /// Sends a request. Returns the version that executed it, and its answer.
    fn send(
        &self,
        version: Option<u64>,
        head: &[(&str, &str)],
        sequence: Option<(u64, bool)>,
    ) -> (u64, Result<u8>) {
        let (correlation_id, start) = match sequence {
            Some((id, start)) => (CorrelationId::Number(id), start),
            None => (CorrelationId::None, false),
        };
        let request = InferRequest {
            inputs: vec![Tensor::new("X", DataType::Uint8, [1, 1], vec![5])],
            correlation_id,
            sequence: SequenceFlags { start, end: false },
            ..InferRequest::default()
        };
        self.runtime.block_on(async {
            let head = || head.iter().copied().collect::<RequestHead>();
            let model = self.server.resolve_with(ScopedName::everywhere("m"), version, head).await.unwrap();
            let mut answers = self.server.infer(&model, request, Caller::default()).unwrap();
            let answer = answers.single().await.map(|it| it.output("Y").unwrap().contiguous().unwrap()[0]);
            (answers.model_version(), answer)
        })
    }

    fn versions_of(&self, requests: usize) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        (0..requests).for_each(|_| *counts.entry(self.send(None, &[], None).0).or_default() += 1);
        counts
    }

    fn status(&self) -> ReleaseStatus {
        self.server.model(ScopedName::everywhere("m"), None).unwrap().release().unwrap().status()
    }

    fn decide(&self, version: u64, verdict: Verdict) -> Result<()> {
        let model = self.server.model(ScopedName::everywhere("m"), None).unwrap();
        model.release().unwrap().decide(version, verdict, "by hand")
    }

    fn version(&self, version: u64) -> ReleasedVersion {
        self.status().versions.into_iter().find(|it| it.version == version).unwrap()
    }

    /// Sends requests until the release is in this state.
    fn until(&self, is_reached: impl Fn(&ReleaseStatus) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_reached(&self.status()) {
            assert!(Instant::now() < end, "{:?}", self.status());
            let _ = self.send(None, &[], None);
        }
    }

    fn notes(&self) -> Vec<String> {
        let table = self.server.models();
        table.index().map(|status| status.reason().unwrap_or_default()).collect()
    }
}

use Kind::{Fails, Right, Wrong};

#[test]
fn requests_are_split_by_weight_and_kept_by_header() {
    let world = world(&parameters(&[("versions", "1=75, 3=25"), ("sticky_header", "x-user")]), &[Right; 4]);
    let counts = world.versions_of(1_000);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert!(counts[&3].abs_diff(250) <= 5, "{counts:?}");
    assert_eq!(
        (world.version(1).requests, world.version(3).requests),
        (counts[&1] as u64, counts[&3] as u64)
    );
    for version in 1..=4 {
        assert_eq!(world.send(Some(version), &[("x-user", "a")], None).0, version);
    }
    let version_of = |user: usize| {
        let user = user.to_string();
        world.send(None, &[("X-User", &user)], None).0
    };
    let first: Vec<_> = (0..200).map(version_of).collect();
    let second: Vec<_> = (0..200).map(version_of).collect();
    assert_eq!(first, second);
    assert_eq!(first.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([1, 3]));
    // Requests for metadata get the established version.
    assert_eq!(world.server.model(ScopedName::everywhere("m"), None).unwrap().version(), 1);
    assert_eq!(
        world.notes(),
        [
            "established of a release, 75.0 % of the requests",
            "",
            "candidate of a release, 25.0 % of the requests",
            ""
        ]
    );
}

#[test]
fn a_version_that_fails_is_withdrawn() {
    let release = parameters(&[("versions", "1=50,2=50"), ("promote_after", "1000")]);
    let world = world(&release, &[Right, Fails]);
    world.until(|status| status.versions[1].part == "withdrawn");
    let withdrawn = world.version(2);
    assert!(withdrawn.results < 200 && withdrawn.errors == withdrawn.results, "{withdrawn:?}");
    let reason = withdrawn.reason.unwrap();
    assert!(reason.contains("requests failed, 0 of "), "{reason}");
    assert_eq!(world.notes()[1], format!("withdrawn of a release, 0.0 % of the requests: {reason}"));
    assert_eq!(*world.decisions.lock().unwrap(), [(2, Verdict::Withdrawn, reason, true)]);
    assert_eq!(world.versions_of(50), BTreeMap::from([(1, 50)]));
    assert!(world.send(Some(2), &[], None).1.is_err());
    // The decision outlives the model's stay in memory, and ends with new files.
    world.unload();
    world.load().unwrap();
    assert_eq!(world.versions_of(20), BTreeMap::from([(1, 20)]));
    world.put(&release, &[Right, Right]);
    world.load().unwrap();
    assert_eq!((world.version(2).part, world.version(2).results), ("candidate", 0));
    assert_eq!(world.versions_of(100).len(), 2);
}

#[test]
fn a_version_that_proves_itself_is_promoted() {
    let release =
        parameters(&[("versions", "1=90,2=10"), ("promote_after", "100"), ("latency_ratio", "1000")]);
    let world = world(&release, &[Right, Right]);
    world.until(|status| status.versions[1].part == "promoted");
    assert_eq!(world.version(1).part, "replaced");
    assert_eq!(world.versions_of(50), BTreeMap::from([(2, 50)]));
    assert_eq!(world.server.model(ScopedName::everywhere("m"), None).unwrap().version(), 2);
    assert_eq!(world.send(Some(1), &[], None).0, 1);
    let (results, notes) = (world.version(2).results, world.notes());
    assert!(results > 100 && notes[1].starts_with("promoted of a release, 100.0 %"), "{notes:?}");
}

#[test]
fn candidates_are_decided_by_hand_and_sequences_stay_with_their_version() {
    let sequences = "sequence_batching { oldest { max_candidate_sequences: 1000 } max_sequence_idle_microseconds: 60000000 }";
    let text = format!("{sequences} {}", parameters(&[("versions", "1=50,2=25,3=25")]));
    let world = world(&text, &[Right; 3]);
    let started: Vec<_> = (1..=60).map(|id| world.send(None, &[], Some((id, true))).0).collect();
    assert_eq!(started.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3]));
    world.decide(2, Verdict::Withdrawn).unwrap();
    world.decide(3, Verdict::Promoted).unwrap();
    world.decide(3, Verdict::Promoted).unwrap();
    let error = world.decide(2, Verdict::Promoted).unwrap_err();
    let expected = "model 'm': version 2 is withdrawn (by hand), and only a candidate can be promoted; load";
    assert!(error.message().starts_with(expected), "{error}");
    let error = world.decide(9, Verdict::Promoted).unwrap_err();
    assert!(error.message().contains("no part in the release (versions: 1, 2, 3)"), "{error}");
    for (id, version) in (1..=60).zip(started) {
        assert_eq!(world.send(None, &[], Some((id, false))).0, version);
    }
    let new: BTreeSet<_> = (100..120).map(|id| world.send(None, &[], Some((id, true))).0).collect();
    assert_eq!(new, BTreeSet::from([3]));
    let expected = [(2, Verdict::Withdrawn), (3, Verdict::Promoted)]
        .map(|(version, verdict)| (version, verdict, "by hand".to_owned(), false));
    assert_eq!(*world.decisions.lock().unwrap(), expected);
    assert!(world.notes()[2].ends_with("100.0 % of the requests: by hand"), "{:?}", world.notes());
}

#[test]
fn races_of_decisions_are_decided_once() {
    let release = parameters(&[("versions", "1=50,2=50"), ("promote_after", "1000")]);
    for _ in 0..20 {
        let world = world(&release, &[Right, Fails]);
        let operators = [Verdict::Promoted, Verdict::Withdrawn, Verdict::Promoted];
        let outcomes = std::thread::scope(|scope| {
            let operators = operators.map(|verdict| {
                let model = world.server.model(ScopedName::everywhere("m"), None).unwrap();
                scope.spawn(move || (verdict, model.release().unwrap().decide(2, verdict, "by hand")))
            });
            world.until(|status| ["withdrawn", "promoted"].contains(&status.versions[1].part));
            operators.map(|operator| operator.join().unwrap())
        });
        let decisions = world.decisions.lock().unwrap().clone();
        let [(2, decided, ..)] = *decisions else { panic!("{decisions:?}") };
        assert_eq!(world.version(2).part, decided.name());
        assert!(
            outcomes.iter().all(|(verdict, outcome)| outcome.is_ok() == (*verdict == decided)),
            "{outcomes:?}"
        );
    }
}

#[test]
fn copies_are_compared_and_never_answer() {
    for (kind, part) in [(Right, "candidate"), (Wrong, "withdrawn")] {
        let release = [("versions", "1=1,2=0"), ("shadow", "2=100"), ("difference_limit", "0.1")];
        let world = world(&parameters(&release), &[Right, kind]);
        world.until(|status| status.versions[1].equal + status.versions[1].different >= 20);
        for _ in 0..100 {
            assert_eq!(world.send(None, &[], None), (1, Ok(5)));
        }
        let candidate = world.version(2);
        assert_eq!((candidate.part, candidate.requests), (part, 0), "{candidate:?}");
        let differences = world.status().differences;
        match kind {
            Wrong => {
                assert_eq!(candidate.equal, 0);
                let first = &differences[0];
                assert_eq!((first.established, first.candidate, first.output.as_str()), (1, 2, "Y"));
                assert_eq!(first.difference, "element 0: 6 instead of 5");
            }
            _ => assert_eq!((candidate.different, differences.len()), (0, 0)),
        }
    }
}

#[test]
fn a_part_of_the_requests_is_copied_and_the_table_of_differences_is_bounded() {
    let world = world(&parameters(&[("versions", "1=1,2=0"), ("shadow", "2=50")]), &[Right, Wrong]);
    for _ in 0..400 {
        assert_eq!(world.send(None, &[], None), (1, Ok(5)));
    }
    let candidate = world.version(2);
    assert!((candidate.copies + candidate.skipped).abs_diff(200) <= 5, "{candidate:?}");
    world.until(|status| status.versions[1].different > 110);
    let status = world.status();
    assert_eq!(status.differences.len(), 100);
    assert_eq!(status.versions[1].part, "candidate");
    // Copies of requests that name the version are made, too: it is the established one that executes them.
    let before = world.version(2);
    (0..10).for_each(|_| assert_eq!(world.send(Some(1), &[], None).0, 1));
    let after = world.version(2);
    let copied = after.copies + after.skipped - before.copies - before.skipped;
    assert!((3..=7).contains(&copied), "{copied}");
}

#[test]
fn changes_of_a_release_load_nothing_and_sequences_stay_with_their_version() {
    let sequences = "sequence_batching { oldest { max_candidate_sequences: 1000 } max_sequence_idle_microseconds: 60000000 }";
    let text = |versions: &str| format!("{sequences} {}", parameters(&[("versions", versions)]));
    let world = world(&text("1=50,2=50"), &[Right, Right]);
    let started: Vec<_> = (1..=60).map(|id| world.send(None, &[], Some((id, true))).0).collect();
    assert_eq!(started.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
    let loads = world.loads.load(Ordering::Relaxed);
    for versions in ["1=100,2=0", "2=1,1=0", "1=10,2=90"] {
        world.put(&text(versions), &[Right, Right]);
        world.load().unwrap();
        let continued: Vec<_> = (1..=60).map(|id| world.send(None, &[], Some((id, false)))).collect();
        assert!(continued.iter().all(|(_, answer)| answer.is_ok()), "{continued:?}");
        let continued: Vec<_> = continued.into_iter().map(|(version, _)| version).collect();
        assert_eq!(continued, started, "{versions}");
    }
    assert_eq!(world.loads.load(Ordering::Relaxed), loads);
    // An ensemble continues a sequence in whichever version has it.
    let (table, id) = (world.server.models(), ModelId::plain("m"));
    for (sequence, version) in (1..).zip(&started) {
        let continues = |version| table.continues_sequence(&id, version, &CorrelationId::Number(sequence));
        assert!(continues(None) && continues(Some(*version)) && !continues(Some(3 - version)));
    }
    assert!(!table.continues_sequence(&id, None, &CorrelationId::Number(999)));
    drop(table);
    // Without a release, requests go to the latest version.
    world.put(sequences, &[Right, Right]);
    world.load().unwrap();
    assert!(world.server.model(ScopedName::everywhere("m"), None).unwrap().release().is_none());
    assert_eq!(world.send(None, &[], Some((1_000, true))).0, 2);
}

#[test]
fn invalid_releases_fail_the_load_and_leave_the_served_versions() {
    let world = world("", &[Right, Right]);
    world.put(&parameters(&[("versions", "1=x")]), &[Right, Right]);
    let error = world.load().unwrap_err();
    assert!(error.message().contains("parameter 'release_versions' is '1=x'"), "{error}");
    assert_eq!(world.send(None, &[], None), (2, Ok(5)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Under all changes, each request gets one answer, by a version that is served.
    #[test]
    fn requests_reach_served_versions_while_releases_change(
        changes in prop::collection::vec((1..4_usize, 0..4_usize, any::<bool>()), 1..12),
    ) {
        let releases = [
            String::new(),
            parameters(&[("versions", "1=1,2=1,3=1")]),
            parameters(&[("versions", "2=1,1=0"), ("shadow", "1=100")]),
            parameters(&[("versions", "3=0,2=1"), ("promote_after", "3"), ("latency_ratio", "1000")]),
        ];
        let world = world("", &[Right]);
        for (count, release, unloads) in changes {
            if unloads {
                world.unload();
            }
            world.put(&releases[release], &[Right; 3][..count]);
            world.load().unwrap();
            for _ in 0..10 {
                let (version, answer) = world.send(None, &[], None);
                prop_assert_eq!(answer, Ok(5));
                prop_assert!(world.server.models().ready_versions(ScopedName::everywhere("m")).any(|it| it == version));
            }
        }
    }
}

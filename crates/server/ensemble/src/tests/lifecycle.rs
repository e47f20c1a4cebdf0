//! Ensembles are loaded and unloaded with their members.

use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;
use nereid_core::{BlockingSource, Fingerprint, ModelControl, Overrides, ScopedName, VersionState};

/// A source whose models the test changes. Each change has a new fingerprint.
#[derive(Clone, Default)]
pub(super) struct Changing(Arc<Mutex<BTreeMap<String, (u64, ModelSpec)>>>);

impl Changing {
    pub fn set(&self, (name, spec): (String, ModelSpec)) {
        let mut models = self.0.lock().unwrap();
        let number = models.get(&name).map_or(0, |(number, _)| number + 1);
        models.insert(name, (number, spec));
    }

    fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
}

impl BlockingSource for Changing {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let models = self.0.lock().unwrap();
        let found = models.get(&id.name).ok_or_else(|| Error::not_found(format!("no '{id}'")))?;
        Ok(ModelSpec { fingerprint: fingerprint(found.0), ..found.1.clone() })
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        let models = self.0.lock().unwrap();
        models.get(&id.name).map(|found| fingerprint(found.0)).ok_or_else(|| Error::not_found("gone"))
    }
}

fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint { config: number, ..Fingerprint::default() }
}

pub(super) struct World {
    pub server: Arc<Server>,
    pub source: Changing,
    members: Members,
}

/// Nothing is loaded yet.
pub(super) fn world<const N: usize>(control: ModelControl, models: [(String, ModelSpec); N]) -> World {
    let (source, members) = (Changing::default(), Members::default());
    models.into_iter().for_each(|model| source.set(model));
    let options = ServerOptions { model_control: control, ..options() };
    let server = server_of(&members, options, Arc::new(source.clone()));
    World { server, source, members }
}

impl World {
    pub fn load(&self, name: &str) -> Result<()> {
        let (done, outcome) = channel();
        self.server.load_model(ScopedName::everywhere(name), Overrides::default(), move |result| {
            done.send(result).unwrap()
        })?;
        outcome.recv().unwrap()
    }

    fn unload(&self, name: &str) {
        let (done, outcome) = channel();
        self.server
            .unload_model(ScopedName::everywhere(name), move |result| done.send(result).unwrap())
            .unwrap();
        outcome.recv().unwrap().unwrap();
    }

    fn unload_with_dependents(&self, name: &str) {
        let (done, outcome) = channel();
        let done = move |result| done.send(result).unwrap();
        self.server.unload_model_and_dependents(ScopedName::everywhere(name), done).unwrap();
        outcome.recv().unwrap().unwrap();
    }

    /// Polls twice: the second poll loads the changes that the first one saw.
    fn look(&self) {
        for _ in 0..2 {
            self.server.poll(std::time::Duration::from_secs(60)).unwrap();
        }
    }

    /// The names of the ready models.
    fn ready(&self) -> String {
        let models = self.server.models();
        models.ready().map(|model| model.name()).collect::<Vec<_>>().join(" ")
    }

    /// The reason why a model is unavailable.
    fn reason(&self, name: &str) -> String {
        let index = self.server.blocking_index().unwrap();
        let states =
            index.into_iter().filter(|(known, _)| known.name == name).filter_map(|(_, status)| status);
        let reasons = states.filter_map(|status| match status.state {
            VersionState::Unavailable(error) => Some(error.message().to_owned()),
            _ => None,
        });
        reasons.collect()
    }
}

fn one() -> (String, ModelSpec) {
    member("one", "X", "add", 1)
}

fn inner() -> (String, ModelSpec) {
    ensemble("inner", "IN", "OUT", &["one: X=IN -> Y=a", "two: X=a -> Y=OUT"])
}

fn nested() -> [(String, ModelSpec); 4] {
    // By name, ensembles come before their members, and the outer one before the inner one.
    let outer = ensemble("all", "IN", "OUT", &["inner: IN=IN -> OUT=a", "one: X=a -> Y=OUT"]);
    [outer, inner(), one(), member("two", "X", "add", 10)]
}

#[tokio::test]
async fn at_the_start_ensembles_are_loaded_after_their_members() {
    for threads in [1, 4] {
        let World { source, members, .. } = world(ModelControl::None, nested());
        let options = ServerOptions { load_threads: threads, ..options() };
        let server = server_of(&members, options, Arc::new(source));
        assert!(server.start(None).unwrap().is_empty());
        let response = ask(&server, "all", request(&[("IN", 5)])).await.unwrap();
        assert_eq!(outputs(&response), [("OUT", 17)]);
    }
}

#[tokio::test]
async fn loading_an_ensemble_loads_its_members() {
    let world = world(ModelControl::Explicit, nested());
    assert!(world.server.start(Some(vec!["inner".into()])).unwrap().is_empty());
    assert_eq!(world.ready(), "inner one two");
    world.load("all").unwrap();
    assert_eq!(world.ready(), "all inner one two");
    // Changed members are reloaded, too.
    world.source.set(member("two", "X", "add", 100));
    world.load("all").unwrap();
    let response = ask(&world.server, "all", request(&[("IN", 5)])).await.unwrap();
    assert_eq!(outputs(&response), [("OUT", 107)]);
}

#[test]
fn unloaded_member_unloads_its_ensembles_and_reloading_it_restores_them() {
    let world = world(ModelControl::Explicit, nested());
    world.load("all").unwrap();
    world.unload("two");
    // Done when the ensembles are, too.
    assert_eq!(world.ready(), "one");
    assert!(world.reason("inner").contains("it depends on 'two', which has no loaded version"));
    assert!(world.reason("all").contains("it depends on 'inner', which has no loaded version"));
    world.server.start(Some(Vec::new())).unwrap();
    assert!(world.server.is_ready());
    world.load("two").unwrap();
    assert_eq!(world.ready(), "all inner one two");
    assert!(world.server.is_ready());
    // Ensembles that were unloaded by request stay so.
    world.unload("all");
    world.unload("two");
    world.load("two").unwrap();
    assert_eq!(world.ready(), "inner one two");
}

/// The outcomes of loads and unloads that are submitted together.
fn outcomes(world: &World, changes: &[(bool, &str)], meanwhile: impl FnOnce()) -> Vec<Result<()>> {
    let outcomes: Vec<_> = changes
        .iter()
        .map(|(is_load, name)| {
            let (done, outcome) = channel();
            let done = move |result| done.send(result).unwrap();
            match is_load {
                true => {
                    world.server.load_model(ScopedName::everywhere(name), Overrides::default(), done).unwrap()
                }
                false => world.server.unload_model(ScopedName::everywhere(name), done).unwrap(),
            }
            outcome
        })
        .collect();
    meanwhile();
    let limit = std::time::Duration::from_secs(60);
    outcomes.iter().map(|outcome| outcome.recv_timeout(limit).expect("it ends")).collect()
}

#[test]
fn member_unloaded_during_the_load_of_its_ensemble_is_unloaded_afterwards() {
    let slow = member("one", "X", "slow", 1);
    let world = world(ModelControl::Explicit, [inner(), slow, member("two", "X", "add", 10)]);
    let (loading, changed) = &*world.members.loading;
    let (done, outcome) = channel();
    let done = move |result| done.send(result).unwrap();
    world.server.load_model(ScopedName::everywhere("inner"), Overrides::default(), done).unwrap();
    drop(changed.wait_while(loading.lock().unwrap(), |loading| *loading == 0).unwrap());
    let ended = outcomes(&world, &[(false, "one"), (false, "two")], || {
        *loading.lock().unwrap() = 0;
        changed.notify_all();
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    outcome.recv().unwrap().unwrap();
    assert_eq!(world.ready(), "");
}

#[test]
fn member_unloaded_before_its_ensemble_is_read_is_loaded_with_it() {
    let world =
        world(ModelControl::Explicit, [inner(), member("one", "X", "add", 1), member("two", "X", "add", 10)]);
    // Nothing can be read.
    let held = world.source.0.lock().unwrap();
    let (done, outcome) = channel();
    let done = move |result| done.send(result).unwrap();
    world.server.load_model(ScopedName::everywhere("inner"), Overrides::default(), done).unwrap();
    world.unload("two");
    drop(held);
    outcome.recv().unwrap().unwrap();
    assert_eq!(world.ready(), "inner one two");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A concurrent unload fails no load, and all tasks end.
    #[test]
    fn loads_and_unloads_of_ensembles_and_members_at_once_all_succeed(
        changes in proptest::collection::vec(
            (any::<bool>(), prop::sample::select(vec!["all", "inner", "one", "two"])), 1..16),
        threads in 1..4_usize,
    ) {
        let World { source, members, .. } = world(ModelControl::Explicit, nested());
        let options = ServerOptions { load_threads: threads, model_control: ModelControl::Explicit, ..options() };
        let server = server_of(&members, options, Arc::new(source.clone()));
        let world = World { server, source, members };
        let ended = outcomes(&world, &changes, || {});
        prop_assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }
}

#[test]
fn members_loaded_for_an_ensemble_are_unloaded_with_it_on_request() {
    let world = world(ModelControl::Explicit, nested());
    world.load("all").unwrap();
    world.unload("all");
    assert_eq!(world.ready(), "inner one two");
    world.load("all").unwrap();
    world.unload_with_dependents("all");
    assert_eq!(world.ready(), "");
    // Models loaded by request stay, and so do members of other ensembles.
    world.load("two").unwrap();
    world.load("all").unwrap();
    world.unload_with_dependents("all");
    assert_eq!(world.ready(), "two");
    world.load("all").unwrap();
    world.load("inner").unwrap();
    world.unload_with_dependents("all");
    assert_eq!(world.ready(), "inner one two");
    world.unload_with_dependents("inner");
    assert_eq!(world.ready(), "two");
}

#[test]
fn member_that_no_longer_fits_unloads_its_ensemble() {
    let world = world(ModelControl::Poll, nested());
    assert!(world.server.start(None).unwrap().is_empty());
    let (name, mut changed) = member("two", "X", "add", 10);
    changed.config.max_batch_size = 2;
    world.source.set((name, changed));
    world.look();
    assert_eq!(world.ready(), "one two");
    let reason = world.reason("inner");
    assert!(reason.contains("'max_batch_size': is 4, but model 'two' accepts at most 2"), "{reason}");
    world.source.set(member("two", "X", "add", 10));
    world.look();
    assert_eq!(world.ready(), "all inner one two");
    world.source.remove("one");
    world.look();
    assert_eq!(world.ready(), "two");
    world.source.set(one());
    world.look();
    assert_eq!(world.ready(), "all inner one two");
}

#[test]
fn an_ensemble_follows_members_that_become_decoupled() {
    let world = world(ModelControl::Poll, nested());
    world.server.start(None).unwrap();
    let is_decoupled = || {
        ["all", "inner"]
            .map(|name| world.server.model(ScopedName::everywhere(name), None).unwrap().is_decoupled())
    };
    let before = world.server.model(ScopedName::everywhere("inner"), None).unwrap();
    world.source.set(member("two", "X", "add", 11));
    world.look();
    // The ensemble is unchanged, so the same load continues.
    assert!(Arc::ptr_eq(&before, &world.server.model(ScopedName::everywhere("inner"), None).unwrap()));
    world.source.set(member("two", "X", "repeat", 0));
    world.look();
    assert_eq!(is_decoupled(), [true, true]);
    world.source.set(member("two", "X", "add", 10));
    world.look();
    assert_eq!(is_decoupled(), [false, false]);
}

#[test]
fn ensemble_with_a_failed_member_is_served_once_the_member_loads() {
    let world = world(ModelControl::Explicit, [one(), member("two", "X", "breakable", 10), inner()]);
    *world.members.broken.lock().unwrap() = true;
    let error = world.load("inner").unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    let expected = "it depends on 'two', which has no loaded version (version 1: broken on purpose)";
    assert!(error.message().contains(expected), "{error}");
    assert_eq!(world.ready(), "one");
    *world.members.broken.lock().unwrap() = false;
    world.load("two").unwrap();
    assert_eq!(world.ready(), "inner one two");
    // A reload of the member that fails changes nothing.
    *world.members.broken.lock().unwrap() = true;
    world.source.set(member("two", "X", "breakable", 11));
    assert!(world.load("two").is_err());
    assert_eq!(world.ready(), "inner one two");
}

#[test]
fn everything_an_ensemble_lacks_is_reported_at_once() {
    let versions = "step { model_name: 'one' model_version: 7 input_map { key: 'X' value: 'IN' }
                    output_map { key: 'Y' value: 'OUT' } }";
    let lacking = ensemble("lacking", "IN", "OUT", &["nosuch: X=IN -> Y=a", "gone: X=a -> Y=OUT"]);
    let seventh = spec(
        "seventh",
        &format!("platform: 'ensemble' {} ensemble_scheduling {{ {versions} }}", io("IN", "OUT")),
    );
    let wrong = ensemble("wrong", "IN", "OUT", &["one: X=IN W=IN -> Y=a", "one: X=a -> Q=OUT"]);
    let world = world(ModelControl::Explicit, [one(), lacking, ("seventh".into(), seventh), wrong]);
    let refused = |name: &str, reasons: &[&str]| {
        let error = world.load(name).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(reasons.iter().all(|reason| error.message().contains(reason)), "{error}");
        assert!(!world.reason(name).is_empty());
    };
    refused("lacking", &["it depends on 'nosuch', which is not loaded", "it depends on 'gone'"]);
    refused("seventh", &["'one', whose required version 7 is not loaded; loaded are [1]"]);
    refused("wrong", &["model 'one' has no input 'W'", "step[1].output_map", "has no output 'Q'"]);
    assert_eq!(world.ready(), "one");
}

#[test]
fn ensembles_in_a_cycle_are_refused_and_served_once_it_is_broken() {
    let step = |name: &str, of: &str| ensemble(name, "IN", "OUT", &[&format!("{of}: IN=IN -> OUT=OUT")]);
    let models = [step("a", "b"), step("b", "c"), step("c", "a"), one()];
    let world = world(ModelControl::Explicit, models);
    assert_eq!(world.server.start(None).unwrap().len(), 3);
    assert_eq!(world.ready(), "one");
    let reasons = ["a", "b", "c"].map(|name| world.reason(name));
    assert!(
        reasons.iter().any(|reason| reason.contains("circular dependency between ensembles")),
        "{reasons:?}"
    );
    assert!(world.load("b").is_err());
    world.source.set(ensemble("c", "IN", "OUT", &["one: X=IN -> Y=OUT"]));
    world.load("c").unwrap();
    assert_eq!(world.ready(), "a b c one");
    // Closing it again leaves what is served as it is.
    world.source.set(step("c", "a"));
    let error = world.load("c").unwrap_err();
    assert!(error.message().contains("circular dependency between ensembles"), "{error}");
    assert_eq!(world.ready(), "a b c one");
}

#[test]
fn ensembles_in_a_cycle_do_not_wait_for_each_other_when_a_member_changes() {
    let step = |name: &str, of: &str| {
        let inner = format!("{of}: IN=a -> OUT=OUT");
        ensemble(name, "IN", "OUT", &["one: X=IN -> Y=a", &inner])
    };
    let world = world(ModelControl::Explicit, [step("a", "b"), step("b", "a"), one()]);
    assert_eq!(world.server.start(None).unwrap().len(), 2);
    world.source.set(member("one", "X", "add", 2));
    world.load("one").unwrap();
    assert_eq!(world.ready(), "one");
    for name in ["a", "b"] {
        assert!(world.reason(name).contains("circular dependency"), "{}", world.reason(name));
    }
}

#[test]
fn reasons_do_not_grow_with_every_ensemble_around_another() {
    // Each ensemble contains the previous one twice, so complete reasons would double each time.
    let mut models = BTreeMap::from([("one".to_owned(), member("one", "X", "breakable", 0).1)]);
    for index in 0..40 {
        let inner =
            if index == 0 { "one: X=IN -> Y=".into() } else { format!("e{}: IN=IN -> OUT=", index - 1) };
        let second =
            if index == 0 { "one: X=a -> Y=OUT".into() } else { format!("f{}: IN=a -> OUT=OUT", index - 1) };
        for name in ["e", "f"] {
            let (name, spec) =
                ensemble(&format!("{name}{index}"), "IN", "OUT", &[&format!("{inner}a"), &second]);
            models.insert(name, spec);
        }
    }
    let members = Members::default();
    *members.broken.lock().unwrap() = true;
    let models: BTreeMap<_, _> = models.into_iter().map(|(name, spec)| (name, Ok(spec))).collect();
    let server = server_of(&members, options(), Arc::new(models));
    let failures = server.start(None).unwrap();
    assert_eq!(failures.len(), 81);
    assert!(failures.iter().all(|(_, error)| error.message().len() < 2000));
}

#[test]
fn ensembles_end_before_their_members() {
    let steps = ["hold: X=IN -> Y=a", "hold: X=a -> Y=OUT"];
    let (server, members) = serving([member("hold", "X", "hold", 0), ensemble("e", "IN", "OUT", &steps)]);
    let mut answers = infer(&server, "e", request(&[("IN", 5)])).unwrap();
    let held = members.held(1).remove(0);
    let ensemble = server.model(ScopedName::everywhere("e"), None).unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| server.unload_all());
        // New requests are refused once unloading has begun.
        loop {
            let mut other = ensemble.infer_for(request(&[("IN", 1)]), &Arc::default()).unwrap();
            let mut context = Context::from_waker(Waker::noop());
            match other.poll_single(&mut context) {
                Poll::Ready(Err(error)) => {
                    assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
                    break;
                }
                _ => drop(other),
            }
        }
        // Requests in progress still have their members, the second step among them.
        assert!(!ending.is_finished());
        members.release(held);
        loop {
            std::mem::take(&mut *members.held.lock().unwrap())
                .into_iter()
                .for_each(|held| members.release(held));
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(answer) = answers.poll_single(&mut context) {
                assert_eq!(outputs(&answer.unwrap()), [("OUT", 5)]);
                break;
            }
            thread::yield_now();
        }
    });
}

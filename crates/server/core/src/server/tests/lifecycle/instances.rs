//! Instances that stay, come and go when the groups of a model change, and the end of those that are removed.

use std::sync::Condvar;

use nereid_backend_api::{Instance, Model as BackendModel, ModelContext};
use proptest::prelude::*;

use super::*;
use crate::scope::ScopedName;

/// A model whose instance groups the test changes, and the instances that it has.
#[derive(Default)]
struct Groups {
    text: Mutex<(u64, String)>,
    made: Mutex<Vec<String>>,
    ended: Mutex<Vec<String>>,
    /// The instances whose end has begun, and whether it has to wait.
    ending: Mutex<(usize, bool)>,
    changed: Condvar,
    gate: Gate,
}

struct Noted {
    name: String,
    of: Arc<Groups>,
}

impl Instance for Noted {
    fn execute(&mut self, batch: Batch) {
        self.of.gate.pass(&batch);
        echo(batch);
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut ending = self.of.ending.lock().unwrap();
        ending.0 += 1;
        self.of.changed.notify_all();
        drop(self.of.changed.wait_while(ending, |ending| ending.1).unwrap());
        self.of.ended.lock().unwrap().push(self.name.clone());
    }
}

struct NotedBackend(Arc<Groups>);

impl Backend for NotedBackend {
    fn load(&self, _: ModelContext) -> Result<Box<dyn BackendModel>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

impl BackendModel for NotedBackend {
    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        self.0.made.lock().unwrap().push(context.name.clone());
        Ok(Box::new(Noted { name: context.name, of: Arc::clone(&self.0) }))
    }
}

impl BlockingSource for Groups {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["m".to_owned()])
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let given = nereid_model_config::parse_text(&self.text.lock().unwrap().1).unwrap();
        let (groups, parameters) = (given.instance_group, given.parameters);
        let (_, spec) = spec(ModelConfig { instance_group: groups, parameters, ..config() }, &[1]);
        Ok(ModelSpec { fingerprint: self.fingerprint_of(id)?, ..spec? })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        let versions = BTreeMap::from([(1, 1)]);
        Ok(Fingerprint { config: self.text.lock().unwrap().0, versions, ..Fingerprint::default() })
    }
}

struct Changes {
    server: Arc<Server>,
    groups: Arc<Groups>,
}

impl Changes {
    fn new() -> Self {
        let groups = Arc::<Groups>::default();
        let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
        let backend = NotedBackend(Arc::clone(&groups));
        let server = Server::new(options, backends(backend), Arc::clone(&groups) as _);
        server.start(Some(Vec::new())).unwrap();
        groups.gate.open();
        Self { server, groups }
    }

    /// Loads the model with these groups. Returns the instances that were made and those that had ended when the load was done.
    fn load(&self, groups: &str) -> (Vec<String>, Vec<String>) {
        let mut text = self.groups.text.lock().unwrap();
        *text = (text.0 + 1, groups.to_owned());
        drop(text);
        let (done, outcome) = channel();
        self.server
            .load_model(ScopedName::everywhere("m"), Overrides::default(), move |result| {
                done.send(result).unwrap()
            })
            .unwrap();
        outcome.recv().unwrap().unwrap();
        let take = |names: &Mutex<Vec<String>>| {
            let mut names = std::mem::take(&mut *names.lock().unwrap());
            names.sort();
            names
        };
        (take(&self.groups.made), take(&self.groups.ended))
    }

    fn hold_ends(&self, is_held: bool) {
        self.groups.ending.lock().unwrap().1 = is_held;
        self.groups.changed.notify_all();
    }

    fn wait_for_ending(&self) {
        let ending = self.groups.ending.lock().unwrap();
        drop(self.groups.changed.wait_while(ending, |ending| ending.0 == 0).unwrap());
    }
}

#[test]
fn the_server_changes_the_number_of_instances_where_the_configuration_allows_it() {
    let resize_in = |changes: &Changes, count| {
        let (done, outcome) = channel();
        let id = ModelId::plain("m");
        changes.server.change_instances(&id, 1, count, move |result| done.send(result).unwrap());
        outcome.recv().unwrap()
    };
    let fixed = Changes::new();
    assert_eq!(resize_in(&fixed, 2).unwrap_err().code(), ErrorCode::NotFound);
    fixed.load("instance_group { count: 2 }");
    assert!(resize_in(&fixed, 3).unwrap_err().message().contains("is fixed"));
    let changes = Changes::new();
    let resize = |count| resize_in(&changes, count);
    let instances = || changes.server.model(ScopedName::everywhere("m"), None).unwrap().instances();
    let scaled =
        "parameters { key: 'instances_max' value { string_value: '9' } } instance_group { count: 2 }";
    let (made, _) = changes.load(scaled);
    let first = changes.server.model(ScopedName::everywhere("m"), None).unwrap();
    let loads = first.load_number();
    drop(first);
    assert_eq!(made, ["m_0_0", "m_0_1"]);
    for (count, made, ended) in
        [(4, &["m_0_2", "m_0_3"][..], &[][..]), (1, &[], &["m_0_1", "m_0_2", "m_0_3"]), (2, &["m_0_1"], &[])]
    {
        resize(count).unwrap();
        assert_eq!(instances(), Some(count));
        let take = |names: &Mutex<Vec<String>>| {
            let mut names = std::mem::take(&mut *names.lock().unwrap());
            names.sort();
            names
        };
        assert_eq!(take(&changes.groups.made), made);
        assert_eq!(take(&changes.groups.ended), ended);
        let model = changes.server.model(ScopedName::everywhere("m"), None).unwrap();
        assert_eq!(model.instances_at_load(), Some(2));
        assert!(model.load_number() > loads);
    }
    // A load of the same files changes nothing, and one of another number follows it.
    resize(3).unwrap();
    let (done, outcome) = channel();
    changes
        .server
        .load_model(ScopedName::everywhere("m"), Overrides::default(), move |result| {
            done.send(result).unwrap()
        })
        .unwrap();
    outcome.recv().unwrap().unwrap();
    assert_eq!(instances(), Some(3));
    changes.load(&scaled.replace("count: 2", "count: 5"));
    assert_eq!(instances(), Some(5));
    assert_eq!(changes.server.model(ScopedName::everywhere("m"), None).unwrap().instances_at_load(), Some(5));
    let (done, outcome) = channel();
    changes
        .server
        .unload_model(ScopedName::everywhere("m"), move |result| done.send(result).unwrap())
        .unwrap();
    outcome.recv().unwrap().unwrap();
    assert_eq!(resize(1).unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn instances_stay_as_far_as_the_new_groups_have_alike_ones() {
    let changes = Changes::new();
    // The new groups, the instances that are made for them, and those that end before the load does.
    let steps: &[(&str, &[&str], &[&str])] = &[
        ("instance_group { count: 2 }", &["m_0_0", "m_0_1"], &[]),
        ("instance_group { count: 1 }", &[], &["m_0_1"]),
        ("instance_group { count: 3 }", &["m_0_1", "m_0_2"], &[]),
        ("instance_group { count: 1 }", &[], &["m_0_1", "m_0_2"]),
        ("instance_group { count: 2 }", &["m_0_1"], &[]),
        // A new name, other groups of the same instances, and both.
        ("instance_group { name: 'g' count: 2 }", &[], &[]),
        ("instance_group [ { name: 'a' }, { name: 'b' } ]", &[], &[]),
        ("instance_group { name: 'c' count: 3 }", &["c_2"], &[]),
        ("instance_group { count: 2 }", &[], &["c_2"]),
        // Another property is another instance, wherever its group is.
        ("instance_group [ { count: 2 }, { profile: 'p' } ]", &["m_1_0"], &[]),
        ("instance_group [ { profile: 'p' }, { count: 2 } ]", &[], &[]),
        // The name that the configuration has for it is another instance's.
        ("instance_group [ { profile: 'p' count: 2 }, { count: 2 } ]", &["m_0_2"], &[]),
        ("instance_group [ { profile: 'q' }, { count: 2 } ]", &["m_0_2"], &["m_0_2", "m_1_0"]),
        ("instance_group [ { profile: 'q' passive: true }, { count: 2 } ]", &["m_0_2"], &["m_0_2"]),
    ];
    for (groups, made, ended) in steps {
        let (really_made, really_ended) = changes.load(groups);
        assert_eq!((really_made, really_ended), (to_owned(made), to_owned(ended)), "{groups}");
        ask(&changes.server, request()).await.unwrap();
    }
}

fn to_owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_change_of_groups_makes_and_ends_as_few_instances_as_it_can(
        loads in prop::collection::vec(prop::collection::vec((0..3_usize, 1..4_usize, 0..3_usize), 1..4), 1..6),
    ) {
        let changes = Changes::new();
        let mut before = [0; 3];
        let mut names = BTreeSet::new();
        for groups in loads {
            let mut now = [0; 3];
            let mut text = String::new();
            for (index, (profile, count, name)) in groups.iter().enumerate() {
                now[*profile] += count;
                let name = if *name == 0 { String::new() } else { format!("name: 'g{name}{index}'") };
                text += &format!("instance_group {{ {name} profile: 'p{profile}' count: {count} }}");
            }
            let sum = |of: &dyn Fn(usize, usize) -> usize| (0..3).map(|kind| of(before[kind], now[kind])).sum::<usize>();
            let (expected_made, expected_ended) =
                (sum(&|before, now| now.saturating_sub(before)), sum(&|before, now| before.saturating_sub(now)));
            let (made, ended) = changes.load(&text);
            prop_assert_eq!((made.len(), ended.len()), (expected_made, expected_ended));
            ended.iter().for_each(|name| assert!(names.remove(name), "{name} ended twice"));
            for name in made {
                prop_assert!(names.insert(name.clone()), "two instances are called {}", name);
            }
            before = now;
        }
    }
}

#[tokio::test]
async fn a_load_does_not_wait_without_end_for_requests_of_removed_instances() {
    let changes = Changes::new();
    changes.load("instance_group { count: 2 }");
    // A request whose client reads its answer late keeps the old instances.
    let unread = infer(&changes.server, request()).unwrap();
    let (made, ended) = changes.load("instance_group { count: 1 }");
    assert_eq!((made, ended), (Vec::new(), Vec::new()));
    drop(unread);
    while changes.groups.ended.lock().unwrap().is_empty() {
        thread::yield_now();
    }
    assert_eq!(*changes.groups.ended.lock().unwrap(), ["m_0_1"]);
}

#[test]
fn a_stop_waits_for_versions_that_are_being_unloaded() {
    for count in [1, 3] {
        for is_reload in [false, true] {
            let changes = Changes::new();
            changes.load(&format!("instance_group {{ count: {count} }}"));
            changes.hold_ends(true);
            let (done, outcome) = channel();
            let done = move |result: Result<()>| done.send(result).unwrap();
            if is_reload {
                let files = vec![("1/model".into(), "".into())];
                let overrides = Overrides { config: Some(String::new()), files };
                changes.groups.text.lock().unwrap().1 = "instance_group { profile: 'p' }".to_owned();
                changes.server.load_model(ScopedName::everywhere("m"), overrides, done).unwrap();
            } else {
                changes.server.unload_model(ScopedName::everywhere("m"), done).unwrap();
            }
            outcome.recv().unwrap().unwrap();
            changes.wait_for_ending();
            let ended = thread::scope(|scope| {
                let stopping = scope.spawn(|| {
                    changes.server.begin_shutdown();
                    changes.server.unload_all();
                    changes.groups.ended.lock().unwrap().len()
                });
                // Long enough for a stop that does not wait.
                while changes.server.models().index().next().is_some() {
                    thread::yield_now();
                }
                (0..10_000).for_each(|_| thread::yield_now());
                changes.hold_ends(false);
                stopping.join().unwrap()
            });
            assert_eq!(ended, count + usize::from(is_reload));
        }
    }
}

#[tokio::test]
async fn a_stop_executes_the_requests_of_versions_that_are_being_unloaded() {
    let groups = Arc::<Groups>::default();
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options() };
    let server = Server::new(options, backends(NotedBackend(Arc::clone(&groups))), Arc::clone(&groups) as _);
    server.start(Some(vec!["m".to_owned()])).unwrap();
    let mut answers = [0, 1, 2].map(|_| infer(&server, request()).unwrap());
    groups.gate.entered(1);
    let (done, outcome) = channel();
    server.unload_model(ScopedName::everywhere("m"), move |result| done.send(result).unwrap()).unwrap();
    outcome.recv().unwrap().unwrap();
    server.begin_shutdown();
    assert_eq!(server.work(), Work::Requests);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| server.unload_all());
        groups.gate.open();
        stopping.join().unwrap();
    });
    assert_eq!(server.work(), Work::Nothing);
    for answer in &mut answers {
        answer.single().await.unwrap();
    }
    drop(answers);
    assert_eq!(*groups.ended.lock().unwrap(), ["m_0"]);
}

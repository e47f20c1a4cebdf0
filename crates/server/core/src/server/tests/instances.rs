//! The instances that a backend has to create, and those of them that receive requests.

use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_backend_api::InstanceKind;

use super::*;
use crate::scope::ScopedName;

/// Notes the instances that a backend makes, and which of them execute.
#[derive(Clone, Default)]
struct Noted {
    loaded: Arc<AtomicUsize>,
    made: Arc<Mutex<Vec<InstanceContext>>>,
    executed: Arc<Mutex<BTreeSet<String>>>,
}

impl Noted {
    fn backend(&self) -> ScriptedBackend {
        let (loading, making, executing) = (self.clone(), self.clone(), self.clone());
        let model = ScriptedModel::by_instance(move |instance, batch| {
            executing.executed.lock().unwrap().insert(instance.name.clone());
            echo(batch);
        });
        let model = model.on_create(move |instance| {
            making.made.lock().unwrap().push(instance.clone());
            Ok(())
        });
        ScriptedBackend::new(move |_| {
            loading.loaded.fetch_add(1, Ordering::Relaxed);
            Ok(model.clone())
        })
    }
}

fn with_groups(groups: &str) -> ModelConfig {
    let warm_up = r#"model_warmup { name: "w" batch_size: 1
        inputs { key: "IN" value { data_type: TYPE_UINT8 dims: 2 zero_data: true } } }"#;
    let given = nereid_model_config::parse_text(&format!("{groups} {warm_up}")).unwrap();
    ModelConfig { instance_group: given.instance_group, model_warmup: given.model_warmup, ..config() }
}

#[tokio::test]
async fn passive_instances_are_made_and_given_no_requests() {
    let backend = Noted::default();
    let groups = "instance_group [ { name: 'a' count: 2 }, { name: 'p' count: 2 passive: true } ]";
    let server = server(backend.backend(), vec![spec(with_groups(groups), &[1])]);
    let made = backend.made.lock().unwrap().clone();
    let made: Vec<_> = made.iter().map(|it| (it.name.as_str(), it.passive)).collect();
    assert_eq!(made, [("a_0", false), ("a_1", false), ("p_0", true), ("p_1", true)]);
    for _ in 0..20 {
        ask(&server, request()).await.unwrap();
    }
    // The warm-up had each of the others execute.
    let executed: Vec<_> = backend.executed.lock().unwrap().iter().cloned().collect();
    assert_eq!(executed, ["a_0", "a_1"]);
}

#[tokio::test]
async fn a_model_of_passive_instances_alone_is_ready_and_refuses_requests() {
    let backend = Noted::default();
    let server =
        server(backend.backend(), vec![spec(with_groups("instance_group { passive: true count: 2 }"), &[1])]);
    assert!(server.is_ready());
    assert_eq!(backend.made.lock().unwrap().len(), 2);
    let error = ask(&server, request()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert!(error.message().contains("all of its instances are passive"), "{error}");
    server.unload_all();
}

/// An instance that ends only when all others are ending, too.
struct SlowEnd(Arc<(Mutex<usize>, Condvar)>);

impl Drop for SlowEnd {
    fn drop(&mut self) {
        let (ending, changed) = &*self.0;
        let mut ending = ending.lock().unwrap();
        *ending -= 1;
        changed.notify_all();
        let (ending, wait) =
            changed.wait_timeout_while(ending, Duration::from_secs(20), |ending| *ending > 0).unwrap();
        drop(ending);
        assert!(!wait.timed_out(), "the others do not end meanwhile");
    }
}

#[test]
fn models_end_side_by_side_when_the_server_stops() {
    for count in [1, 2, 7] {
        let ending = Arc::new((Mutex::new(count), Condvar::new()));
        let making = Arc::clone(&ending);
        let backend = ScriptedBackend::new(move |_| {
            let end = SlowEnd(Arc::clone(&making));
            Ok(ScriptedModel::new(move |batch| {
                let _ = &end;
                echo(batch);
            }))
        });
        let versions: Vec<_> = (1..=count as u64).collect();
        let policy = nereid_model_config::parse_text("version_policy { all {} }").unwrap().version_policy;
        let config = ModelConfig { version_policy: policy, ..config() };
        let server = server(backend, vec![spec(config, &versions)]);
        server.unload_all();
        assert_eq!(*ending.0.lock().unwrap(), 0);
    }
}

#[tokio::test]
async fn instances_are_made_on_the_gpus_of_the_machine() {
    let backend = Noted::default();
    let options = ServerOptions { gpus: vec![0, 1], ..options() };
    let groups =
        "instance_group [ { name: 'g' kind: KIND_GPU gpus: [ 1, 0 ] }, { name: 'c' kind: KIND_CPU } ]";
    let server = server_with(options, backend.backend(), vec![spec(with_groups(groups), &[1])]);
    ask(&server, request()).await.unwrap();
    let made: Vec<_> = backend.made.lock().unwrap().iter().map(|it| (it.name.clone(), it.kind)).collect();
    let expected = [("g_0", InstanceKind::Gpu(1)), ("g_0", InstanceKind::Gpu(0)), ("c_0", InstanceKind::Cpu)];
    assert_eq!(made, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn instances_get_the_settings_of_their_group() {
    let backend = Noted::default();
    let groups = "instance_group [ { name: 'a' kind: KIND_CPU profile: [ 'p', 'q' ] host_policy: 'left'
        secondary_devices { kind: KIND_NVDLA device_id: 3 } }, { name: 'b' kind: KIND_GPU },
        { name: 'c' kind: KIND_MODEL }, { name: 'd' kind: KIND_CPU } ]";
    let options = ServerOptions { gpus: vec![2], ..options() };
    let _server = server_with(options, backend.backend(), vec![spec(with_groups(groups), &[1])]);
    let made = backend.made.lock().unwrap();
    assert_eq!(made[0].profiles, ["p", "q"]);
    assert_eq!(made[0].secondary_devices[0].device_id, 3);
    assert!(made[1].profiles.is_empty() && made[1].secondary_devices.is_empty());
    let policies: Vec<_> = made.iter().map(|it| it.host_policy.name.as_str()).collect();
    assert_eq!(policies, ["left", "gpu_2", "model", "cpu"]);
}

/// The processors that this thread may run on.
fn processors() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// Notes where the instances of a backend are made and execute.
#[derive(Clone, Default)]
struct Placed(Arc<Mutex<Vec<Noticed>>>);

/// An event, and the processors it happened on.
type Noticed = (String, Vec<usize>);

impl Placed {
    fn note(&self, what: &str) {
        self.0.lock().unwrap().push((what.to_owned(), processors()));
    }
}

impl Placed {
    fn backend(&self) -> ScriptedBackend {
        let (loading, making, executing) = (self.clone(), self.clone(), self.clone());
        let model = ScriptedModel::new(move |batch| {
            executing.note("execution");
            echo(batch);
        });
        let model = model.at_once().on_create(move |instance| {
            making.note(&format!("{}: {:?}", instance.name, instance.host_policy.settings));
            Ok(())
        });
        ScriptedBackend::new(move |_| {
            loading.note("model");
            Ok(model.clone())
        })
    }
}

#[tokio::test]
async fn instances_are_made_warmed_up_and_run_where_their_policy_places_them() {
    let all = processors();
    let (first, backend) = (all[0], Placed::default());
    let cores = format!("{first}-{first}");
    let mut host_policies = HostPolicies::default();
    host_policies.set("left", "cpu-cores", &cores).unwrap();
    let options = ServerOptions { host_policies, ..options() };
    let groups = "instance_group { name: 'a' host_policy: 'left' }";
    let server = server_with(options, backend.backend(), vec![spec(with_groups(groups), &[1])]);
    // Never on the caller's thread, however short recent executions were.
    server.model(ScopedName::everywhere("m"), None).unwrap().pool().pretend_cost(Duration::from_nanos(1));
    ask(&server, request()).await.unwrap();
    let made = format!("a_0: {{\"cpu-cores\": \"{cores}\"}}");
    let there = |what: &str| (what.to_owned(), vec![first]);
    let expected = [("model".to_owned(), all.clone()), there(&made), there("execution"), there("execution")];
    assert_eq!(*backend.0.lock().unwrap(), expected);
    assert_eq!(processors(), all);
}

#[test]
fn an_instance_whose_place_is_not_there_fails_its_versions() {
    let mut host_policies = HostPolicies::default();
    host_policies.set("cpu", "numa-node", "63").unwrap();
    let options = ServerOptions { host_policies, ..options() };
    let groups = "instance_group { name: 'a' kind: KIND_CPU }";
    let server = server_with(options, Placed::default().backend(), vec![spec(with_groups(groups), &[1])]);
    let reason = index(&server).join("\n");
    assert!(reason.contains("cannot use the memory of NUMA node 63"), "{reason}");
}

#[test]
fn an_instance_on_a_gpu_that_is_not_there_fails_its_versions() {
    let reason = |gpus: Vec<i32>| {
        let options = ServerOptions { gpus, ..options() };
        let groups = "instance_group { name: 'g' kind: KIND_GPU gpus: 3 }";
        let backend = Noted::default();
        let server = server_with(options, backend.backend(), vec![spec(with_groups(groups), &[1])]);
        assert_eq!(backend.loaded.load(Ordering::Relaxed), 0, "the backend would have looked for the GPU");
        index(&server).join("\n")
    };
    let none = reason(Vec::new());
    assert!(none.starts_with("m/1 UNAVAILABLE: ") && none.contains("no GPU is available"), "{none}");
    let other = reason(vec![0, 1]);
    assert!(other.contains("GPU 3 is not available (GPUs: 0, 1)"), "{other}");
}

//! Which instances a backend is asked to make, and which of them are given requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_backend_api::InstanceKind;

use super::*;

/// Notes the instances that it is asked to make, and which of them execute.
#[derive(Clone, Default)]
struct Noted {
    loaded: Arc<AtomicUsize>,
    made: Arc<Mutex<Vec<InstanceContext>>>,
    executed: Arc<Mutex<BTreeSet<String>>>,
}

struct Named(String, Noted);

impl Backend for Noted {
    fn load(&self, _: ModelContext) -> Result<Box<dyn nereid_backend_api::Model>> {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(self.clone()))
    }
}

impl nereid_backend_api::Model for Noted {
    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let name = context.name.clone();
        self.made.lock().unwrap().push(context);
        Ok(Box::new(Named(name, self.clone())))
    }
}

impl Instance for Named {
    fn execute(&mut self, batch: Batch) {
        self.1.executed.lock().unwrap().insert(self.0.clone());
        echo(batch);
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
    let server = server(backend.clone(), vec![spec(with_groups(groups), &[1])]);
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
        server(backend.clone(), vec![spec(with_groups("instance_group { passive: true count: 2 }"), &[1])]);
    assert!(server.is_ready());
    assert_eq!(backend.made.lock().unwrap().len(), 2);
    let error = ask(&server, request()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert!(error.message().contains("all of its instances are passive"), "{error}");
    server.unload_all();
}

#[tokio::test]
async fn instances_are_made_on_the_gpus_of_the_machine() {
    let backend = Noted::default();
    let options = ServerOptions { gpus: vec![0, 1], ..options() };
    let groups =
        "instance_group [ { name: 'g' kind: KIND_GPU gpus: [ 1, 0 ] }, { name: 'c' kind: KIND_CPU } ]";
    let server = server_with(options, backend.clone(), vec![spec(with_groups(groups), &[1])]);
    ask(&server, request()).await.unwrap();
    let made: Vec<_> = backend.made.lock().unwrap().iter().map(|it| (it.name.clone(), it.kind)).collect();
    let expected = [("g_0", InstanceKind::Gpu(1)), ("g_0", InstanceKind::Gpu(0)), ("c_0", InstanceKind::Cpu)];
    assert_eq!(made, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn an_instance_on_a_gpu_that_is_not_there_fails_its_versions() {
    let reason = |gpus: Vec<i32>| {
        let options = ServerOptions { gpus, ..options() };
        let groups = "instance_group { name: 'g' kind: KIND_GPU gpus: 3 }";
        let backend = Noted::default();
        let server = server_with(options, backend.clone(), vec![spec(with_groups(groups), &[1])]);
        assert_eq!(backend.loaded.load(Ordering::Relaxed), 0, "the backend would have looked for the GPU");
        index(&server).join("\n")
    };
    let none = reason(Vec::new());
    assert!(none.starts_with("m/1 UNAVAILABLE: ") && none.contains("there is no GPU"), "{none}");
    let other = reason(vec![0, 1]);
    assert!(other.contains("asks for GPU 3, but the GPUs are 0, 1"), "{other}");
}

//! Instances of models in a whole server.

use std::collections::BTreeSet;
use std::sync::Condvar;
use std::sync::mpsc::channel;
use std::thread;

use nereid_core::backend_api::{Backend, Batch, InferRequest, Response};
use nereid_core::{Caller, Interceptors, ModelSpec, ScopedName, ServerOptions};
use nereid_testkit::{ScriptedBackend, ScriptedModel};

use super::*;

/// Executions that wait until the test lets them end, with the names of their instances.
#[derive(Default)]
struct Held {
    running: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Held {
    fn run(&self, instance: &str) {
        let mut running = self.running.lock().unwrap();
        running.0.push(instance.to_owned());
        self.changed.notify_all();
        drop(self.changed.wait_while(running, |(_, is_open)| !*is_open).unwrap());
    }

    fn open(&self) {
        self.running.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    /// Waits until this number of executions has begun, and returns their instances.
    fn begun(&self, count: usize) -> BTreeSet<String> {
        let limit = Duration::from_secs(30);
        let running = self.running.lock().unwrap();
        let (running, _) =
            self.changed.wait_timeout_while(running, limit, |(names, _)| names.len() < count).unwrap();
        running.0.iter().cloned().collect()
    }
}

fn serve(parameters: &str, processors: usize, held: &Arc<Held>) -> (Arc<Server>, Arc<Scaling>) {
    let held = Arc::clone(held);
    let model = ScriptedModel::by_instance(move |context, batch: Batch| {
        held.run(&context.name);
        let answers: Vec<_> = batch.requests().iter().map(|_| Ok(Response::default())).collect();
        batch.complete(answers);
    });
    let backend = ScriptedBackend::new(move |_| Ok(model.clone()));
    let scaling = Scaling::with_processors(processors);
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::clone(&scaling) as _);
    let text = format!("output {{ name: 'Y' data_type: TYPE_UINT8 dims: 1 }} {parameters}");
    let spec = ModelSpec::new(ModelId::plain("m"), "m", nereid_testkit::config("m", &text), [1]);
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))]));
    let options = ServerOptions { interceptors, load_threads: 2, ..ServerOptions::default() };
    let backends = BTreeMap::from([("scripted".to_owned(), Arc::new(backend) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, source);
    scaling.attach(&server);
    let failures = server.start(None).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    (server, scaling)
}

fn parameters(min: usize, max: usize) -> String {
    [("min", min), ("max", max)]
        .map(|(name, count)| {
            format!("parameters {{ key: 'instances_{name}' value {{ string_value: '{count}' }} }}")
        })
        .concat()
}

fn instances(server: &Server) -> usize {
    server.model(ScopedName::everywhere("m"), None).unwrap().instances().unwrap()
}

fn eventually(what: &str, is_met: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_met() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn instances_start_while_requests_wait_and_end_afterwards() {
    let held = Arc::<Held>::default();
    let (server, _scaling) = serve(&parameters(1, 3), 8, &held);
    assert_eq!(instances(&server), 1);
    let send = || {
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        server.infer(&model, InferRequest::default(), Caller::default()).unwrap()
    };
    // The first ones wait in the queue of the first instance, and the model grows for those that follow.
    let mut answers: Vec<_> = (0..4).map(|_| send()).collect();
    eventually("a second instance", || instances(&server) >= 2);
    answers.extend((0..4).map(|_| send()));
    eventually("a third instance", || instances(&server) == 3);
    answers.extend((0..4).map(|_| send()));
    assert_eq!(held.begun(3).len(), 3);
    assert_eq!(instances(&server), 3);
    held.open();
    for mut answer in answers {
        answer.single().await.unwrap();
    }
    eventually("one instance", || instances(&server) == 1);
    send().single().await.unwrap();
    server.unload_all();
}

#[test]
fn the_least_number_is_there_without_requests_and_processors_limit_the_most() {
    let held = Arc::<Held>::default();
    let (server, _scaling) = serve(&parameters(2, 8), 3, &held);
    eventually("the least number", || instances(&server) == 2);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let answers: Vec<_> =
        (0..20).map(|_| server.infer(&model, InferRequest::default(), Caller::default()).unwrap()).collect();
    drop(model);
    eventually("as many as processors", || instances(&server) == 3);
    thread::sleep(3 * INTERVAL);
    assert_eq!(instances(&server), 3);
    held.open();
    drop(answers);
    server.unload_all();
}

#[test]
fn instances_without_the_parameters_stay() {
    let held = Arc::<Held>::default();
    let (server, _scaling) = serve("", 8, &held);
    let (done, outcome) = channel();
    server.change_instances(&ModelId::plain("m"), 1, 2, move |it| done.send(it).unwrap());
    let error = outcome.recv().unwrap().unwrap_err();
    assert!(error.message().contains("the number of instances of 'm' version 1 is fixed"), "{error}");
    held.open();
    server.unload_all();
}

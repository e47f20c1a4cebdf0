//! Sends requests through one queue. `cargo xtask bench access` counts the instructions with Callgrind, for one client and for several.
//!
//! Usage: `shared_queue default|dynamic REQUESTS CLIENTS ROUNDS`. Each round enqueues REQUESTS while a gate holds the
//! instance, then opens the gate and reads the answers. The queue's length does not depend on the machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use nereid_core::backend_api::{
    Backend, Batch, DataType, Flow, InferRequest, Instance, InstanceContext, Model, ModelContext, Request,
    Response, Result, Tensor,
};
use nereid_core::{Admission, Caller, ModelId, ModelSpec, ScopedName, Server, ServerOptions};

/// Holds executions, and counts them.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Round>, Condvar)>);

#[derive(Default)]
struct Round {
    is_open: bool,
    executed: usize,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut Round)) {
        let (round, changed) = &*self.0;
        change(&mut round.lock().expect("nothing panics under the lock"));
        changed.notify_all();
    }

    fn wait_until(&self, condition: impl Fn(&Round) -> bool) {
        let (round, changed) = &*self.0;
        let round = round.lock().expect("nothing panics under the lock");
        drop(changed.wait_while(round, |round| !condition(round)).expect("nothing panics under the lock"));
    }
}

impl Backend for Gate {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.clone()))
    }
}

impl Model for Gate {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Gate {
    fn execute(&mut self, batch: Batch) {
        self.wait_until(|round| round.is_open);
        let given_back = |request: &Request| Tensor { name: "Y".into(), ..request.inputs[0].clone() };
        let answers: Vec<_> =
            batch.requests().iter().map(|request| Ok(Response::new(vec![given_back(request)]))).collect();
        let count = answers.len();
        batch.complete(answers);
        self.change(|round| round.executed += count);
    }
}

fn server(gate: &Gate, scheduling: &str) -> Arc<Server> {
    let text = format!(
        r#"name: "m" backend: "gate" max_batch_size: 64 {scheduling}
           input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}
           output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}"#
    );
    let mut config = nereid_core::model_config::parse_text(&text).expect("a configuration");
    nereid_core::model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), ".", config, [1]);
    let backends = BTreeMap::from([("gate".to_owned(), Arc::new(gate.clone()) as Arc<dyn Backend>)]);
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))]));
    let server = Server::new(ServerOptions { load_threads: 1, ..ServerOptions::default() }, backends, source);
    assert_eq!(server.start(None).expect("the models are given"), []);
    server
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scheduler, numbers @ ..] = &arguments[..] else { panic!("usage: see the head of this file") };
    let scheduling = match scheduler.as_str() {
        "default" => "",
        "dynamic" => "dynamic_batching { }",
        other => panic!("unknown scheduler '{other}'"),
    };
    let numbers: Vec<usize> = numbers.iter().map(|text| text.parse().expect("a number")).collect();
    let [requests, clients, rounds] = numbers[..] else { panic!("usage: see the head of this file") };
    let gate = Gate::default();
    let server = server(&gate, scheduling);
    let contents = bytes::Bytes::from_static(&[0; 16]);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..rounds {
        gate.change(|round| *round = Round::default());
        let mut answers: Vec<_> = (0..requests)
            .map(|number| {
                let inputs = vec![Tensor::new("X", DataType::Fp32, [1, 4], contents.clone())];
                let request = InferRequest { inputs, ..InferRequest::default() };
                let model = server.model(ScopedName::everywhere("m"), None).expect("it is loaded");
                let flow = Flow { id: (number % clients) as u64 + 1, ..Flow::default() };
                let admission = Admission { permit: None, usage: None, flow };
                let caller = Caller::default().with_admission(Some(admission));
                server.infer(&model, request, caller).expect("admitted")
            })
            .collect();
        assert!(answers.iter_mut().all(|answer| answer.poll_single(&mut context).is_pending()));
        gate.change(|round| round.is_open = true);
        gate.wait_until(|round| round.executed == requests);
        for mut answer in answers {
            assert!(
                matches!(answer.poll_single(&mut context), Poll::Ready(Ok(_))),
                "every request was answered"
            );
        }
    }
    server.unload_all();
}

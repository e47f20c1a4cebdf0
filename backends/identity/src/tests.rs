//! What the identity backend returns, and which configurations it accepts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nereid_backend_api::{
    Answer, BatchMonitor, Buffer, DataType, ExecutionTimes, InferRequest, InstanceKind, NoPeers, Phase,
    RequestedOutput, Responder, ResponseSink,
};

use super::*;

const PAIR: &str = r#"
input { name: "INPUT0" data_type: TYPE_INT8 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] }
"#;

fn load(config: &str) -> Result<Box<dyn Model>> {
    let config = nereid_model_config::parse_text(config).unwrap();
    IdentityBackend.load(ModelContext {
        name: "m".into(),
        version: 1,
        directory: "m".into(),
        config,
        complete: true,
        peers: Arc::new(NoPeers),
    })
}

#[derive(Default)]
struct Seen {
    answers: Mutex<Vec<Answer>>,
    executed: Mutex<Vec<(usize, Duration)>>,
}

impl ResponseSink for Seen {
    fn deliver(&self, answer: Option<Answer>, _last: bool) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).extend(answer);
    }
    fn mark(&self, _: Phase, _: Instant) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl BatchMonitor for Seen {
    fn executed(&self, size: usize, times: ExecutionTimes) {
        self.executed.lock().unwrap().push((size, times.outputs_ready - times.inputs_ready));
    }
}

fn instance(model: &dyn Model) -> Box<dyn Instance> {
    model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap()
}

fn execute(instance: &mut dyn Instance, requests: Vec<InferRequest>) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let requests = requests
        .into_iter()
        .map(|request| Request::new(request, 1, Responder::new(Arc::<Seen>::clone(&seen), None)))
        .collect();
    instance.execute(Batch::new(requests, Arc::<Seen>::clone(&seen)));
    seen
}

fn input(name: &str, contents: &'static [u8]) -> Tensor {
    Tensor::new(name, DataType::Int8, [contents.len() as i64], contents)
}

#[test]
fn inputs_come_back_as_outputs_without_a_copy() {
    let tensor = input("INPUT0", b"abc");
    let address = tensor.buffers[0].as_host().unwrap().as_ptr();
    let request = InferRequest { inputs: vec![tensor], ..InferRequest::default() };
    let seen = execute(&mut *instance(&*load(PAIR).unwrap()), vec![request]);
    let answer = seen.answers.lock().unwrap().pop().unwrap().unwrap();
    let [output] = answer.outputs.as_slice() else { panic!("{answer:?}") };
    assert_eq!((output.name.as_str(), &output.shape[..]), ("OUTPUT0", [3].as_slice()));
    assert_eq!(output.buffers[0].as_host().unwrap().as_ptr(), address);
    assert_eq!(output.buffers.iter().map(Buffer::len).sum::<usize>(), 3);
    let parameters: Vec<_> = answer.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(parameters, ["param0", "param1", "param2", "param3"]);
}

#[test]
fn only_wanted_outputs_come_back_and_each_request_of_a_batch_has_its_own() {
    let request = |wanted: &str| InferRequest {
        inputs: vec![input("INPUT0", b"a"), input("INPUT1", b"bc")],
        outputs: vec![RequestedOutput::new(wanted)],
        ..InferRequest::default()
    };
    let seen = execute(&mut *instance(&*load(PAIR).unwrap()), vec![request("OUTPUT1"), request("OUTPUT0")]);
    let names: Vec<_> = seen
        .answers
        .lock()
        .unwrap()
        .iter()
        .flat_map(|answer| answer.as_ref().unwrap().outputs.iter().map(|output| output.name.clone()))
        .collect();
    assert_eq!(names, ["OUTPUT1", "OUTPUT0"]);
    assert_eq!(seen.executed.lock().unwrap()[0].0, 2);
}

#[test]
fn the_delay_grows_with_the_instances_number() {
    let config = format!(
        r#"{PAIR}
        parameters {{ key: "execute_delay_ms" value {{ string_value: "5" }} }}
        parameters {{ key: "instance_wise_delay_multiplier" value {{ string_value: "2" }} }}"#
    );
    let model = load(&config).unwrap();
    for least in [5, 10, 20] {
        // Instances 0, 1 and 2; the third would be four times as slow as the first.
        let seen = execute(&mut *instance(&*model), vec![InferRequest::default()]);
        let took = seen.executed.lock().unwrap()[0].1;
        assert!(took >= Duration::from_millis(least), "{took:?}");
    }
}

#[test]
fn a_configuration_that_does_not_pair_is_refused_with_the_reason() {
    let output = r#"output { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] }"#;
    let delay =
        format!(r#"{PAIR} parameters {{ key: "execute_delay_ms" value {{ string_value: "soon" }} }}"#);
    for (config, expected) in [
        (output.to_owned(), "as many outputs as inputs"),
        (PAIR.replace("INPUT0", "IN"), "INPUT<suffix>"),
        (PAIR.replace("OUTPUT0", "OUTPUT1"), "no output 'OUTPUT0'"),
        (PAIR.replacen("TYPE_INT8", "TYPE_INT16", 1), "data_type"),
        (PAIR.replacen("[ -1 ]", "[ 2 ]", 1), "shape"),
        (delay, "execute_delay_ms"),
    ] {
        let error = load(&config).err().expect(&config);
        assert!(error.message().contains(expected), "{error}");
    }
}

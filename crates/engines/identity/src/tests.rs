//! The identity backend's answers, and the configurations that it accepts.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use nereid_backend_api::{Answer, Buffer, DataType, InferRequest, InstanceKind, RequestedOutput};
use nereid_testkit::{Executions, Recorder, conformance};

use super::*;

const PAIR: &str = r#"
input { name: "INPUT0" data_type: TYPE_INT8 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] }
"#;

fn load(config: &str) -> Result<Box<dyn Model>> {
    IdentityBackend.load(nereid_testkit::context("m", nereid_testkit::config("m", config)))
}

fn instance(model: &dyn Model) -> Box<dyn Instance> {
    model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap()
}

/// The answer to each request, and the executions.
fn execute(instance: &mut dyn Instance, requests: Vec<InferRequest>) -> (Vec<Answer>, Arc<Executions>) {
    let executions = Arc::<Executions>::default();
    let (requests, recorders): (Vec<_>, Vec<_>) =
        requests.into_iter().map(|request| Recorder::request(request, 1)).unzip();
    instance.execute(executions.batch(requests));
    (recorders.iter().map(|recorder| recorder.answer()).collect(), executions)
}

fn input(name: &str, contents: &'static [u8]) -> Tensor {
    Tensor::new(name, DataType::Int8, [contents.len() as i64], contents)
}

#[test]
fn inputs_are_returned_without_a_copy() {
    let tensor = input("INPUT0", b"abc");
    let address = tensor.buffers[0].as_host().unwrap().as_ptr();
    let request = InferRequest { inputs: vec![tensor], ..InferRequest::default() };
    let (mut answers, _) = execute(&mut *instance(&*load(PAIR).unwrap()), vec![request]);
    let answer = answers.remove(0).unwrap();
    let [output] = answer.outputs.as_slice() else { panic!("{answer:?}") };
    assert_eq!((output.name.as_str(), &output.shape[..]), ("OUTPUT0", [3].as_slice()));
    assert_eq!(output.buffers[0].as_host().unwrap().as_ptr(), address);
    assert_eq!(output.buffers.iter().map(Buffer::len).sum::<usize>(), 3);
    let parameters: Vec<_> = answer.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(parameters, ["param0", "param1", "param2", "param3"]);
}

#[test]
fn omitted_optional_input_returns_zeros_of_its_shape() {
    let types = [("TYPE_INT8", 1), ("TYPE_FP32", 4), ("TYPE_INT64", 8), ("TYPE_BOOL", 1), ("TYPE_STRING", 4)];
    for (name, element) in types {
        for (dims, reshaped, shape) in [
            ("2, 3", "", vec![2, 3]),
            ("-1, 3", "", vec![1, 3]),
            ("1", "reshape { shape: [ ] }", vec![]),
            ("0", "", vec![0]),
        ] {
            for max_batch_size in [0, 4] {
                let pair = format!("data_type: {name} dims: [ {dims} ] {reshaped}");
                let model = load(&format!(
                    r#"max_batch_size: {max_batch_size} {PAIR} input {{ name: "INPUT1" {pair} optional: true }}
                       output {{ name: "OUTPUT1" {pair} }}"#
                ))
                .unwrap();
                let request =
                    InferRequest { inputs: vec![input("INPUT0", b"abc")], ..InferRequest::default() };
                let (mut answers, _) = execute(&mut *instance(&*model), vec![request]);
                let answer = answers.remove(0).unwrap();
                let names: Vec<_> = answer.outputs.iter().map(|output| output.name.as_str()).collect();
                assert_eq!(names, ["OUTPUT0", "OUTPUT1"]);
                let batch = (max_batch_size > 0).then_some(1);
                let expected: Vec<i64> = batch.into_iter().chain(shape.iter().copied()).collect();
                assert_eq!(&answer.outputs[1].shape[..], expected, "{name} {dims}");
                let bytes = usize::try_from(expected.iter().product::<i64>()).unwrap() * element;
                assert_eq!(&*answer.outputs[1].contiguous().unwrap(), vec![0; bytes], "{name} {dims}");
                answer.outputs[1].check_contents().unwrap();
                let only = vec![RequestedOutput::new("OUTPUT0")];
                let request = InferRequest {
                    inputs: vec![input("INPUT0", b"abc")],
                    outputs: only,
                    ..InferRequest::default()
                };
                let (mut answers, _) = execute(&mut *instance(&*model), vec![request]);
                assert_eq!(answers.remove(0).unwrap().outputs.len(), 1);
            }
        }
    }
}

#[test]
fn backend_conforms() {
    let context = |text: &str| nereid_testkit::context("m", nereid_testkit::normalised("m", text));
    conformance::backend(conformance::Subject {
        backend: Arc::new(IdentityBackend),
        model: context(&format!("max_batch_size: 4 {PAIR}")),
        request: |number| InferRequest {
            inputs: vec![Tensor::new("INPUT0", DataType::Int8, [1, 2], vec![number; 2])],
            ..InferRequest::default()
        },
        outputs: |number| vec![Tensor::new("OUTPUT0", DataType::Int8, [1, 2], vec![number; 2])],
        max_batch: 4,
        reports_executions: true,
        refused: vec![(context(&PAIR.replace("OUTPUT0", "OUTPUT1")), "no output 'OUTPUT0'")],
        faulty: None,
    });
}

#[test]
fn each_request_gets_its_requested_outputs_only() {
    let request = |wanted: &str| InferRequest {
        inputs: vec![input("INPUT0", b"a"), input("INPUT1", b"bc")],
        outputs: vec![RequestedOutput::new(wanted)],
        ..InferRequest::default()
    };
    let (answers, executions) =
        execute(&mut *instance(&*load(PAIR).unwrap()), vec![request("OUTPUT1"), request("OUTPUT0")]);
    let names: Vec<_> = answers
        .iter()
        .flat_map(|answer| answer.as_ref().unwrap().outputs.iter().map(|output| output.name.clone()))
        .collect();
    assert_eq!(names, ["OUTPUT1", "OUTPUT0"]);
    assert_eq!(executions.all()[0].0, 2);
}

#[test]
fn delay_grows_with_the_instance_number() {
    let config = format!(
        r#"{PAIR}
        parameters {{ key: "execute_delay_ms" value {{ string_value: "5" }} }}
        parameters {{ key: "instance_wise_delay_multiplier" value {{ string_value: "2" }} }}"#
    );
    let model = load(&config).unwrap();
    for least in [5, 10, 20] {
        // Instances 0, 1 and 2; the third would be four times as slow as the first.
        let (_, executions) = execute(&mut *instance(&*model), vec![InferRequest::default()]);
        let times = executions.all()[0].1;
        let took = times.outputs_ready - times.inputs_ready;
        assert!(took >= Duration::from_millis(least), "{took:?}");
    }
}

#[test]
fn gates_hold_loads_and_executions_until_released() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["gate", "creation_gate"].map(|name| folder.path().join(name));
    let [gate, creation_gate] = paths.each_ref().map(|path| UnixListener::bind(path).unwrap());
    let config = format!(
        r#"{PAIR}
        parameters {{ key: "gate" value {{ string_value: "{}" }} }}
        parameters {{ key: "creation_gate" value {{ string_value: "{}" }} }}"#,
        paths[0].display(),
        paths[1].display()
    );
    let line = |listener: &UnixListener| {
        let connection = listener.accept().unwrap().0;
        let mut line = String::new();
        BufReader::new(&connection).read_line(&mut line).unwrap();
        (line, connection)
    };
    let load = {
        let config = config.clone();
        thread::spawn(move || load(&config))
    };
    let (loading, release) = line(&creation_gate);
    assert_eq!((loading.as_str(), load.is_finished()), ("m 1\n", false));
    drop(release);
    let model = load.join().unwrap().unwrap();
    let mut instance = instance(&*model);
    let execution = thread::spawn(move || execute(&mut *instance, vec![InferRequest::default()]).0.len());
    let (executing, release) = line(&gate);
    assert_eq!((executing.as_str(), execution.is_finished()), ("m_0 1\n", false));
    drop(release);
    assert_eq!(execution.join().unwrap(), 1);
}

#[test]
fn gate_without_listener_is_open() {
    let config = format!(r#"{PAIR} parameters {{ key: "gate" value {{ string_value: "/nowhere" }} }}"#);
    let model = load(&config).unwrap();
    let request = || Recorder::request(InferRequest::default(), 1).0;
    assert!(!model.runs_at_once(&request()));
    let (answers, _) = execute(&mut *instance(&*model), vec![InferRequest::default()]);
    assert!(answers[0].is_ok());
}

#[test]
fn unpaired_inputs_and_outputs_are_refused() {
    let output = r#"output { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] }"#;
    let delay =
        format!(r#"{PAIR} parameters {{ key: "execute_delay_ms" value {{ string_value: "soon" }} }}"#);
    for (config, expected) in [
        (output.to_owned(), "one output for each input"),
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

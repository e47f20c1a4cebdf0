//! The memory of an open sequence that waits for its next request, measured in a process of its own.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use nereid_core::backend_api::{
    Backend, CorrelationId, DataType, InferRequest, Request, Response, SequenceFlags, Tensor,
};
use nereid_core::{Caller, ModelId, ModelSpec, ScopedName, Server, ServerOptions};
use nereid_testkit::ScriptedBackend;

/// How many sequences are opened.
const SEQUENCES: usize = 10_000;

/// The most that one of them may take, in bytes.
const MOST: usize = 2048;

/// A server of a model with a slot for each sequence.
fn server(states: &str) -> Arc<Server> {
    let text = format!(
        r#"name: "m" backend: "scripted" max_batch_size: 8
           input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }} output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}
           sequence_batching {{ oldest {{ max_candidate_sequences: {SEQUENCES} }}
             max_sequence_idle_microseconds: 3600000000 {states} }}"#
    );
    let mut config = nereid_core::model_config::parse_text(&text).unwrap();
    nereid_core::model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), ".", config, [1]);
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))]));
    let backend = ScriptedBackend::answering(|request: Request| {
        let given_back = Tensor { name: "Y".into(), ..request.inputs[0].clone() };
        request.answer(Ok(Response::new(vec![given_back])));
    });
    let backends = BTreeMap::from([("scripted".to_owned(), Arc::new(backend) as Arc<dyn Backend>)]);
    let server = Server::new(ServerOptions { load_threads: 1, ..ServerOptions::default() }, backends, source);
    assert_eq!(server.start(None).unwrap(), []);
    server
}

/// The memory of the process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Which case this process measures, if it is one that the test started.
const CASE: &str = "NEREID_TEST_SEQUENCE_MEMORY";

/// The id of a sequence by its number.
type Id = fn(usize) -> CorrelationId;

const STATE: &str = r#"state { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: 1 }"#;

/// States, ids, and how many requests of each sequence are in progress at a time.
const CASES: [(&str, Id, usize); 5] = [
    ("", |number| CorrelationId::Number(number as u64 + 1), 1),
    ("", |number| CorrelationId::Text(format!("sequence-{number:020}")), 1),
    ("", |number| CorrelationId::Number(number as u64 + 1), 10),
    (STATE, |number| CorrelationId::Number(number as u64 + 1), 1),
    (STATE, |number| CorrelationId::Text(format!("sequence-{number:020}")), 3),
];

#[test]
fn an_open_sequence_takes_little_memory() {
    if let Ok(case) = env::var(CASE) {
        return measure(CASES[case.parse::<usize>().unwrap()]);
    }
    // Another case in the same process would reuse the memory that this one freed.
    for case in 0..CASES.len() {
        let mut itself = Command::new(env::current_exe().unwrap());
        let output = itself.args(["--nocapture"]).env(CASE, case.to_string()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        println!("case {case}: {}", String::from_utf8_lossy(&said));
        assert!(output.status.success(), "case {case}");
    }
}

fn measure((states, id, at_a_time): (&str, Id, usize)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let server = server(states);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let ask = |number: usize| {
        let request = |index: usize| {
            let input = Tensor::new("X", DataType::Fp32, [1, 4], vec![0; 16]);
            let sequence = SequenceFlags { start: index == 0, end: false };
            let request =
                InferRequest { inputs: vec![input], correlation_id: id(number), ..InferRequest::default() };
            server.infer(&model, InferRequest { sequence, ..request }, Caller::default()).unwrap()
        };
        let answers: Vec<_> = (0..at_a_time).map(request).collect();
        for mut answer in answers {
            runtime.block_on(answer.single()).unwrap();
        }
    };
    // What a few take for the first time is not theirs alone.
    (0..100).for_each(ask);
    let before = resident();
    (100..SEQUENCES).for_each(ask);
    let each = resident().saturating_sub(before) / (SEQUENCES - 100);
    println!("{each} bytes for each sequence");
    assert!((1..=MOST).contains(&each), "{each} bytes for each sequence");
}

//! The cost of a release: processor time from the name of a model to the answer, with a backend that answers at once with its input
//! of 64 bytes.
//!
//! Run with `cargo bench -p nereid-releases`. Two threads send requests. Each round measures all cases in turn, and the table shows
//! medians. Case names as arguments select cases.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nereid_core::backend_api::{
    Backend, Batch, DataType, InferRequest, Instance, InstanceContext, Model, ModelContext, Request,
    Response, Result, Tensor, block_on,
};
use nereid_core::{Caller, Interceptors, ModelId, ModelSpec, RequestHead, ScopedName, Server, ServerOptions};
use nereid_releases::Releases;
use rustix::time::{ClockId, clock_gettime};

/// Requests of a round, of each case and thread.
const REQUESTS: usize = 20_000;

const THREADS: usize = 2;

const ROUNDS: usize = 15;

/// The headers of a request.
const HEAD: [(&str, &str); 5] = [
    ("host", "localhost:8000"),
    ("user-agent", "benchmark"),
    ("accept", "*/*"),
    ("content-type", "application/json"),
    ("x-user", "somebody"),
];

/// Models and the parameters of their releases.
const CASES: [(&str, &[(&str, &str)]); 4] = [
    ("one version", &[]),
    ("95 % and 5 %", &[("release_versions", "1=95, 2=5")]),
    ("with decisions", &[("release_versions", "1=50, 2=50"), ("release_latency_ratio", "1000")]),
    ("a header decides", &[("release_versions", "1=95, 2=5"), ("release_sticky_header", "x-user")]),
];

/// Returns inputs.
#[derive(Clone)]
struct Echo;

impl Backend for Echo {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.clone()))
    }
}

impl Model for Echo {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.clone()))
    }

    fn runs_at_once(&self, _: &Request) -> bool {
        true
    }
}

impl Instance for Echo {
    fn execute(&mut self, mut batch: Batch) {
        batch.inputs_ready();
        batch.outputs_ready();
        let echo = |request: &Request| Tensor { name: "Y".into(), ..request.inputs[0].clone() };
        let answers: Vec<_> =
            batch.requests().iter().map(|request| Ok(Response::new(vec![echo(request)]))).collect();
        batch.complete(answers);
    }
}

fn server() -> Arc<Server> {
    let model = |(name, parameters): &(&str, &[(&str, &str)])| {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
        };
        let parameters: String = parameters.iter().map(parameter).collect();
        let text = format!(
            r#"name: "{name}" max_batch_size: 64 backend: "echo" {parameters} instance_group {{ count: {THREADS} }}
               input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
               output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}"#
        );
        let mut config = nereid_core::model_config::parse_text(&text).expect("a configuration");
        nereid_core::model_config::normalise(&mut config);
        ((*name).to_owned(), Ok(ModelSpec::new(ModelId::plain(*name), ".", config, [1, 2])))
    };
    let models: BTreeMap<String, Result<ModelSpec>> = CASES.iter().map(model).collect();
    let releases = Arc::<Releases>::default();
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::clone(&releases) as _);
    let releases = Some(releases as _);
    let options = ServerOptions { load_threads: 1, interceptors, releases, ..ServerOptions::default() };
    let backends = BTreeMap::from([("echo".to_owned(), Arc::new(Echo) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, Arc::new(models));
    server.start(None).expect("the models are given");
    server
}

fn send(server: &Server, name: &str) {
    for _ in 0..REQUESTS {
        let head = || RequestHead::from_iter(HEAD);
        let model = block_on(server.resolve_with(ScopedName::everywhere(name), None, head)).expect("loaded");
        let inputs = vec![Tensor::new("X", DataType::Fp32, [1, 16], vec![0; 64])];
        let request = InferRequest { inputs, ..InferRequest::default() };
        let mut answers = server.infer(&model, request, Caller::default()).expect("admitted");
        black_box(block_on(answers.single()).expect("answered"));
    }
}

fn round(server: &Server, name: &str) -> Duration {
    let begin = process_time();
    thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| send(server, name))));
    });
    process_time().saturating_sub(begin)
}

/// Processor time of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn main() {
    let selected: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_selected = |name: &str| selected.is_empty() || selected.iter().any(|it| it == name);
    let server = server();
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    // The first round is a warm-up.
    for number in 0..=ROUNDS {
        for (name, _) in CASES.iter().filter(|(name, _)| is_selected(name)) {
            let took = round(&server, name);
            if number > 0 {
                times.entry(name).or_default().push(took);
            }
        }
    }
    println!("| case | ns/request | of the first |");
    println!("|---|--:|--:|");
    let mut first = None;
    for (name, _) in CASES {
        let Some(times) = times.get_mut(name) else { continue };
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64();
        let ns = median * 1e9 / (REQUESTS * THREADS) as f64;
        println!("| {name} | {ns:.0} | {:.2} |", ns / *first.get_or_insert(ns));
    }
}

//! The cost and benefit of the cache in memory: processor time from `Server::infer` to the answer, with a backend that
//! answers at once with its input of 64 bytes.
//!
//! Run with `cargo bench -p nereid-response-cache`. Each round measures all cases in turn, and the table shows medians.
//! Case names as arguments select cases; `--rounds=1` is meant for valgrind.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::backend_api::{
    Backend, Batch, DataType, InferRequest, Instance, InstanceContext, Model, ModelContext, Request,
    Response, Result, Tensor, block_on,
};
use nereid_core::{Caller, Interceptors, ModelId, ModelSpec, ScopedName, Server, ServerOptions};
use nereid_response_cache::{LocalCache, ResponseCaching};
use rustix::time::{ClockId, clock_gettime};

/// Requests of a round, of each case.
const REQUESTS: u64 = 20_000;

const ROUNDS: usize = 15;

/// Sizes at which all requests fit, and at which few do.
const LARGE: u64 = 8 << 30;
const SMALL: u64 = 1 << 20;

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

/// Requests to measure.
struct Case {
    name: &'static str,
    server: Arc<Server>,
    model: &'static str,
    /// Number of requests per input before the next one; 0 for a single input.
    each: u64,
    asked: u64,
    times: Vec<Duration>,
}

impl Case {
    fn new(name: &'static str, server: &Arc<Server>, model: &'static str, each: u64) -> Self {
        Self { name, server: Arc::clone(server), model, each, asked: 0, times: Vec::new() }
    }

    fn round(&mut self) -> Duration {
        let begin = process_time();
        let model = self.server.model(ScopedName::everywhere(self.model), None).expect("it is loaded");
        for _ in 0..REQUESTS {
            self.asked += 1;
            let mut contents = vec![0; 64];
            contents[..8].copy_from_slice(&self.asked.checked_div(self.each).unwrap_or(0).to_le_bytes());
            let inputs = vec![Tensor::new("X", DataType::Fp32, [1, 16], contents)];
            let request = InferRequest { inputs, ..InferRequest::default() };
            let mut answers = self.server.infer(&model, request, Caller::default()).expect("admitted");
            black_box(block_on(answers.single()).expect("answered"));
        }
        process_time().saturating_sub(begin)
    }
}

fn server(cache: u64) -> Arc<Server> {
    let model = |name: &str, text: &str| {
        let text = format!(
            r#"name: "{name}" max_batch_size: 64 backend: "echo" {text}
               input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
               output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}"#
        );
        let mut config = nereid_core::model_config::parse_text(&text).expect("a configuration");
        nereid_core::model_config::normalise(&mut config);
        (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), ".", config, [1])))
    };
    let models: [(String, Result<ModelSpec>); 2] =
        [model("plain", ""), model("cached", "response_cache { enable: true }")];
    let caching = ResponseCaching::new(Arc::new(LocalCache::new(cache)));
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::new(caching));
    let options = ServerOptions { load_threads: 1, interceptors, ..ServerOptions::default() };
    let backends = BTreeMap::from([("echo".to_owned(), Arc::new(Echo) as Arc<dyn Backend>)]);
    let server = Server::new(options, backends, Arc::new(BTreeMap::from(models)));
    server.start(None).expect("the models are given");
    server
}

/// Processor time of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn main() {
    let (mut rounds, mut selected) = (ROUNDS, Vec::new());
    for argument in std::env::args().skip(1).filter(|argument| argument != "--bench") {
        match argument.strip_prefix("--rounds=").map(str::parse) {
            Some(number) => rounds = number.expect("a number of rounds"),
            None => selected.push(argument),
        }
    }
    let (large, small, other) = (server(LARGE), server(SMALL), server(SMALL));
    let mut cases = [
        Case::new("plain", &large, "plain", 1),
        Case::new("hit", &large, "cached", 0),
        Case::new("stored", &large, "cached", 1),
        Case::new("refused", &small, "cached", 1),
        // Every second request is refused, and the others replace an older entry.
        Case::new("looked up twice", &other, "cached", 2),
    ];
    // The first round is a warm-up that fills the small cache.
    for round in 0..=rounds {
        for case in
            cases.iter_mut().filter(|case| selected.is_empty() || selected.iter().any(|it| it == case.name))
        {
            let took = case.round();
            if round > 0 {
                case.times.push(took);
            }
        }
    }
    println!("| case | ns/request | more than plain |");
    println!("|---|--:|--:|");
    let median = |times: &[Duration]| {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e9 / REQUESTS as f64)
    };
    let plain = median(&cases[0].times);
    for case in cases.iter().filter(|case| !case.times.is_empty()) {
        let ns = median(&case.times);
        println!("| {} | {ns:.0} | {:+.0} |", case.name, ns - plain);
    }
}

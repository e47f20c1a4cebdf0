//! Latencies of a client whose requests share a model's queue with a flood: alone, and while 2,000 requests of another client wait.
//! Fails if the 99th percentile is over its target.
//!
//! Run it with `cargo xtask bench access`. The model takes no processor time, so the ratio is the queue's, not the machine's. A request
//! waits for the next instance that is free in any case; so there are 16, and their executions differ in length, or all of them would
//! be free at the same time.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nereid_core::backend_api::{
    Backend, Batch, DataType, Flow, InferRequest, Instance, InstanceContext, Model, ModelContext, Response,
    Result, Tensor,
};
use nereid_core::{Admission, Caller, ModelId, ModelSpec, ScopedName, Server, ServerOptions};
use tokio::runtime::Runtime;

/// The mean length of an execution. Each takes from half of it to one and a half.
const EXECUTION: Duration = Duration::from_millis(20);
const INSTANCES: usize = 16;
/// Waiting requests of the flood.
const WAITING: usize = 2000;
/// Requests whose latencies are measured, one after the other.
const MEASURED: usize = 300;
/// The most that the flood may lengthen the 99th percentile.
const TARGET: f64 = 1.5;

/// A backend that waits for a batch's time to be over.
struct Patient;

struct PatientInstance {
    /// The state of the generator of lengths: xorshift.
    state: u64,
}

impl Backend for Patient {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new(Patient))
    }
}

impl Model for Patient {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(PatientInstance { state: number.wrapping_mul(0x2545_f491_4f6c_dd1d) }))
    }
}

impl Instance for PatientInstance {
    fn execute(&mut self, batch: Batch) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let part = (self.state % 1024) as u32;
        std::thread::sleep(EXECUTION / 2 + EXECUTION * part / 1024);
        let answers: Vec<_> = batch.requests().iter().map(|_| Ok(Response::default())).collect();
        batch.complete(answers);
    }
}

fn server(scheduling: &str) -> Arc<Server> {
    let text = format!(
        r#"name: "m" backend: "patient" {scheduling}
           instance_group {{ count: {INSTANCES} kind: KIND_CPU }}
           input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}
           output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}"#
    );
    let mut config = nereid_core::model_config::parse_text(&text).expect("a configuration");
    nereid_core::model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), ".", config, [1]);
    let backends = BTreeMap::from([("patient".to_owned(), Arc::new(Patient) as Arc<dyn Backend>)]);
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))]));
    let server = Server::new(ServerOptions { load_threads: 1, ..ServerOptions::default() }, backends, source);
    assert_eq!(server.start(None).expect("the models are given"), []);
    server
}

/// Sends a request of a client and waits for its answer.
async fn ask(server: &Server, client: u64) {
    let model = server.resolve(ScopedName::everywhere("m"), None).await.expect("it is loaded");
    let contents = bytes::Bytes::from_static(&[0; 16]);
    let input = match model.config().max_batch_size {
        0 => Tensor::new("X", DataType::Fp32, [4], contents),
        _ => Tensor::new("X", DataType::Fp32, [1, 4], contents),
    };
    let request = InferRequest { inputs: vec![input], ..InferRequest::default() };
    let flow = Flow { id: client, weight: NonZeroU32::MIN };
    let caller = Caller::default().with_admission(Some(Admission { permit: None, usage: None, flow }));
    server.infer(&model, request, caller).expect("admitted").single().await.expect("answered");
}

/// The 99th percentile of the latencies of a client's requests, in milliseconds.
fn p99(runtime: &Runtime, server: &Arc<Server>) -> f64 {
    let server = Arc::clone(server);
    let measured = runtime.spawn(async move {
        let mut took = Vec::with_capacity(MEASURED);
        for _ in 0..MEASURED {
            let start = Instant::now();
            ask(&server, 1).await;
            took.push(start.elapsed());
        }
        took.sort_unstable();
        took[MEASURED * 99 / 100].as_secs_f64() * 1e3
    });
    runtime.block_on(measured).expect("every request was answered")
}

/// The latencies alone and during the flood, and the requests of the flood that were answered meanwhile.
fn measure(scheduling: &str) -> (f64, f64, usize) {
    let server = server(scheduling);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let alone = p99(&runtime, &server);
    let (stopped, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    // Each task has a request waiting or executed all the time.
    let flood = (0..WAITING + INSTANCES).map(|_| {
        let (server, stopped, answered) = (Arc::clone(&server), Arc::clone(&stopped), Arc::clone(&answered));
        runtime.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                ask(&server, 2).await;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let flood: Vec<_> = flood.collect();
    let model = server.model(ScopedName::everywhere("m"), None).expect("it is loaded");
    while model.pending() < WAITING - INSTANCES {
        std::thread::sleep(EXECUTION / 4);
    }
    let before = answered.load(Ordering::Relaxed);
    let beside = p99(&runtime, &server);
    let served = answered.load(Ordering::Relaxed) - before;
    stopped.store(true, Ordering::Relaxed);
    for task in flood {
        task.abort();
    }
    drop(model);
    server.unload_all();
    (alone, beside, served)
}

fn main() -> ExitCode {
    println!(
        "{MEASURED} requests of a client, while {WAITING} of another one wait for {INSTANCES} instances:\n"
    );
    println!(
        "| scheduler | p99 alone | p99 during the flood | ratio of {TARGET} | of the flood served meanwhile |"
    );
    println!("|---|---|---|---|---|");
    let mut outcome = ExitCode::SUCCESS;
    for (name, scheduling) in [("default", ""), ("dynamic", "max_batch_size: 1 dynamic_batching { }")] {
        let (alone, beside, served) = measure(scheduling);
        let ratio = beside / alone;
        println!("| {name} | {alone:.1} ms | {beside:.1} ms | {ratio:.2} | {served} |");
        if ratio > TARGET {
            println!("the ratio is over its target");
            outcome = ExitCode::FAILURE;
        }
    }
    outcome
}

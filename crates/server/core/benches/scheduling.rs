//! The cost of scheduling: CPU time of the whole process for each request, from `Server::infer` to its answer, with a
//! backend that does nothing; and how much of its time an instance executes, with one that takes a millisecond.
//!
//! Run it with `cargo xtask bench scheduling`. Clients are tasks on one I/O thread, each with one request at a time.
//!
//! The first table is for all processors. With few requests in flight it shows above all what it costs to wake an idle
//! processor, which depends on the machine. The second one is for one processor, where waking a thread is a switch. Then follow
//! the cost of an ensemble of two steps in addition to its two requests, and of queues that clients share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nereid_core::backend_api::{
    Backend, Batch, DataType, Flow, InferRequest, Instance, InstanceContext, Model, ModelContext, Request,
    Response, Result, Tensor,
};
use nereid_core::{
    Admission, Caller, ExecutorFactory, ModelId, ModelSpec, ScopedName, Server, ServerOptions,
};
use nereid_ensemble::EnsembleFactory;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// How long each measurement takes, after a tenth of it to get warm.
const DURATION: Duration = Duration::from_secs(2);

/// A backend that takes this long for a batch, and may let the caller execute.
#[derive(Clone, Default)]
struct Timed {
    takes: Duration,
    at_once: bool,
    /// All executions together, in nanoseconds.
    executing: Arc<AtomicU64>,
}

impl Backend for Timed {
    fn load(&self, _: ModelContext) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.clone()))
    }
}

impl Model for Timed {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.clone()))
    }

    fn runs_at_once(&self, _: &Request) -> bool {
        self.at_once
    }
}

impl Instance for Timed {
    fn execute(&mut self, mut batch: Batch) {
        let start = Instant::now();
        batch.inputs_ready();
        while start.elapsed() < self.takes {
            std::hint::spin_loop();
        }
        batch.outputs_ready();
        let given_back = |request: &Request| Tensor { name: "Y".into(), ..request.inputs[0].clone() };
        let answers: Vec<_> =
            batch.requests().iter().map(|request| Ok(Response::new(vec![given_back(request)]))).collect();
        batch.complete(answers);
        self.executing.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// One line of the table.
struct Row {
    /// Processor time of a request, in microseconds.
    cpu: f64,
    /// Requests a second.
    throughput: f64,
    /// Requests of an execution.
    batch: f64,
    /// The part of the time in which the instance executed.
    executing: f64,
}

/// A model of one input and one output.
fn model(name: &str, text: &str) -> (String, Result<ModelSpec>) {
    let text = format!(
        r#"name: "{name}" max_batch_size: 64 {text}
           input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}
           output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}"#
    );
    let mut config = nereid_core::model_config::parse_text(&text).expect("a configuration");
    nereid_core::model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain(name), ".", config, [1]);
    (name.to_owned(), Ok(spec))
}

/// Measures the named model with this number of requests in flight, which come from as many clients of an access policy, or from
/// unknown ones for 0.
fn measure(backend: &Timed, scheduling: &str, asked: &'static str, in_flight: usize, senders: usize) -> Row {
    let step = |read: &str, write: &str| {
        format!(
            r#"step {{ model_name: "m" model_version: -1 input_map {{ key: "X" value: "{read}" }}
               output_map {{ key: "Y" value: "{write}" }} }}"#
        )
    };
    let steps = step("X", "between") + &step("between", "Y");
    let backends = BTreeMap::from([("timed".to_owned(), Arc::new(backend.clone()) as Arc<dyn Backend>)]);
    let source = Arc::new(BTreeMap::from([
        model("m", &format!(r#"backend: "timed" {scheduling}"#)),
        model("ensemble", &format!(r#"platform: "ensemble" ensemble_scheduling {{ {steps} }}"#)),
    ]));
    let executors = [Arc::new(EnsembleFactory) as Arc<dyn ExecutorFactory>].into_iter().collect();
    let options = ServerOptions { load_threads: 1, executors, ..ServerOptions::default() };
    let server = Server::new(options, backends, source);
    server.start(None).expect("the models are given");
    let statistics =
        || server.model(ScopedName::everywhere(asked), None).expect("it is loaded").statistics().snapshot();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let stopped = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for number in 0..in_flight {
        let flow =
            Flow { id: number.checked_rem(senders).map_or(0, |sender| sender as u64 + 1), ..Flow::default() };
        let (server, stopped) = (Arc::clone(&server), Arc::clone(&stopped));
        clients.push(runtime.spawn(async move {
            let contents = bytes::Bytes::from_static(&[0; 16]);
            while !stopped.load(Ordering::Relaxed) {
                let input = Tensor::new("X", DataType::Fp32, [1, 4], contents.clone());
                let inputs = vec![input];
                let request = InferRequest { inputs, ..InferRequest::default() };
                let model = server.resolve(ScopedName::everywhere(asked), None).await.expect("it is loaded");
                let caller =
                    Caller::default().with_admission(Some(Admission { permit: None, usage: None, flow }));
                let mut answers = server.infer(&model, request, caller).expect("admitted");
                answers.single().await.expect("answered");
                tokio::task::yield_now().await;
            }
        }));
    }
    std::thread::sleep(DURATION / 10);
    let (before, cpu, executing) = (statistics(), process_time(), backend.executing.load(Ordering::Relaxed));
    let start = Instant::now();
    std::thread::sleep(DURATION);
    let (after, took) = (statistics(), start.elapsed());
    let cpu = process_time() - cpu;
    let executing = backend.executing.load(Ordering::Relaxed) - executing;
    stopped.store(true, Ordering::Relaxed);
    for client in clients {
        runtime.block_on(client).expect("every request was answered");
    }
    server.unload_all();

    let requests = (after.success.count - before.success.count) as f64;
    let executions = (after.execution_count - before.execution_count) as f64;
    Row {
        cpu: cpu.as_secs_f64() * 1e6 / requests,
        throughput: requests / took.as_secs_f64(),
        batch: requests / executions,
        executing: executing as f64 / took.as_nanos() as f64,
    }
}

/// Processor time of all threads of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn main() {
    let idle = Timed::default();
    let prompt = Timed { at_once: true, ..Timed::default() };
    let busy = Timed { takes: Duration::from_millis(1), ..Timed::default() };
    let dynamic = "dynamic_batching { }";
    let delayed = "dynamic_batching { max_queue_delay_microseconds: 100 }";
    let cases: [Case<'_>; 5] = [
        ("idle", &idle, "default", "", &[1, 8, 64, 512]),
        ("idle", &idle, "dynamic", dynamic, &[1, 8, 64, 512]),
        ("idle", &idle, "dynamic, delay 100 us", delayed, &[1, 8, 64, 512]),
        ("idle, executed by the caller", &prompt, "dynamic", dynamic, &[1, 8]),
        ("1 ms a batch", &busy, "dynamic", dynamic, &[8, 64]),
    ];
    println!("All processors:\n");
    table(&cases);
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    // Threads that are started from here on inherit it.
    sched_setaffinity(None, &one).expect("a process may run on the processor that it runs on");
    println!("\nOne processor:\n");
    table(&cases[..2]);
    println!("\nAn ensemble of two steps, on one processor:\n");
    println!("| backend | in flight | CPU us/request | of two requests | more |");
    println!("|---|---|---|---|---|");
    for (name, backend) in [("idle", &idle), ("idle, executed by the caller", &prompt)] {
        for in_flight in [1, 8, 64] {
            let [ensemble, two] =
                ["ensemble", "m"].map(|asked| measure(backend, "", asked, in_flight, 0).cpu);
            let two = 2.0 * two;
            println!("| {name} | {in_flight} | {ensemble:.2} | {two:.2} | {:.2} |", ensemble - two);
        }
    }
    println!("\nQueues that 8 clients share, on one processor:\n");
    println!("| scheduler | in flight | CPU us/request | of one client | more |");
    println!("|---|---|---|---|---|");
    for (name, scheduling) in [("default", ""), ("dynamic", dynamic)] {
        for in_flight in [8, 64, 512] {
            // The least of several, in turns, because the machine may do other work, too.
            let mut least = [f64::INFINITY; 2];
            for _ in 0..3 {
                for (least, senders) in least.iter_mut().zip([8, 0]) {
                    *least = least.min(measure(&idle, scheduling, "m", in_flight, senders).cpu);
                }
            }
            let [shared, one] = least;
            let more = (shared / one - 1.0) * 100.0;
            println!("| {name} | {in_flight} | {shared:.2} | {one:.2} | {more:.1} % |");
        }
    }
}

/// A name, a backend, the scheduler's name, its configuration, and numbers of requests in flight.
type Case<'a> = (&'a str, &'a Timed, &'a str, &'a str, &'a [usize]);

fn table(cases: &[Case<'_>]) {
    println!(
        "| backend | scheduler | in flight | CPU us/request | requests/s | requests/execution | executing |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, backend, scheduler, scheduling, loads) in cases {
        for &in_flight in *loads {
            let row = measure(backend, scheduling, "m", in_flight, 0);
            println!(
                "| {name} | {scheduler} | {in_flight} | {:.2} | {:.0} | {:.1} | {:.1} % |",
                row.cpu,
                row.throughput,
                row.batch,
                row.executing * 100.0
            );
        }
    }
}

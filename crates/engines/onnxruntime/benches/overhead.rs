//! The server's cost on top of ONNX Runtime: the time of a request from the server's door to its answer, compared with a
//! run of the same model, input and thread count through the `ort` crate alone; and how much of ONNX Runtime's
//! throughput with full batches remains when the server forms the batches.
//!
//! Run it with `cargo xtask bench onnxruntime`, which fetches the models and the library. Every session has one thread,
//! because pool threads keep spinning after a run and would disturb the next measurement. Single requests and runs
//! alternate one by one, batches in stretches, because the machine's speed varies; the tables show medians.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nereid_backend_api::{Backend, BackendSettings, DataType, InferRequest, Response, Tensor, block_on};
use nereid_core::{
    Caller, ModelId, ModelSource as _, Overrides, Progress, ScopedName, Server, ServerOptions,
};
use nereid_model_config::proto::ModelParameter;
use nereid_onnxruntime::{OnnxRuntime, OnnxRuntimeBackend, find};
use nereid_repository::{ReadOptions, Repositories};
use ort::session::{Session, SessionInputValue};
use ort::value::TensorRef;

/// How long single requests of a model are measured.
const DURATION: Duration = Duration::from_secs(6);
/// Stretches of batches, and how long one takes. The first is for getting warm.
const STRETCHES: usize = 6;
const STRETCH: Duration = Duration::from_secs(3);

const IN_FLIGHT: usize = 32;

/// An input of a model: name, shape, and contents with the type they are given in.
struct Input {
    name: &'static str,
    shape: Vec<i64>,
    values: Values,
}

enum Values {
    Fp32(Vec<f32>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
}

impl Input {
    fn fp32(name: &'static str, shape: &[i64]) -> Self {
        let count: i64 = shape.iter().product();
        let values = (0..count).map(|index| ((index * 37 % 201) as f32 - 100.0) / 100.0).collect();
        Self { name, shape: shape.to_vec(), values: Values::Fp32(values) }
    }

    fn direct(&self) -> SessionInputValue<'_> {
        let shape = self.shape.as_slice();
        match &self.values {
            Values::Fp32(values) => TensorRef::from_array_view((shape, &**values)).expect("a tensor").into(),
            Values::Int32(values) => TensorRef::from_array_view((shape, &**values)).expect("a tensor").into(),
            Values::Int64(values) => TensorRef::from_array_view((shape, &**values)).expect("a tensor").into(),
        }
    }

    fn tensor(&self) -> Tensor {
        let (data_type, bytes): (_, &[u8]) = match &self.values {
            Values::Fp32(values) => (DataType::Fp32, bytemuck::cast_slice(values)),
            Values::Int32(values) => (DataType::Int32, bytemuck::cast_slice(values)),
            Values::Int64(values) => (DataType::Int64, bytemuck::cast_slice(values)),
        };
        // A scalar travels as one element.
        let shape = if self.shape.is_empty() { &[1] } else { self.shape.as_slice() };
        Tensor::new(self.name, data_type, shape, Bytes::copy_from_slice(bytes))
    }
}

fn cases() -> Vec<(&'static str, Vec<Input>)> {
    let rate = Input { name: "sr", shape: vec![], values: Values::Int64(vec![16000]) };
    let looked_at = (0..2048).map(|index| index % 257).collect();
    let bytes = Input { name: "bytes", shape: vec![1, 2048], values: Values::Int32(looked_at) };
    vec![
        ("text_detector", vec![Input::fp32("x", &[1, 3, 320, 320])]),
        ("text_recogniser", vec![Input::fp32("x", &[1, 3, 48, 320])]),
        ("text_direction", vec![Input::fp32("x", &[1, 3, 48, 192])]),
        ("file_type", vec![bytes]),
        ("speech_detector", vec![Input::fp32("input", &[1, 576]), Input::fp32("state", &[2, 1, 128]), rate]),
    ]
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/fetched_repository")
}

fn session(model: &str) -> Session {
    let path = repository().join(model).join("1/model.onnx");
    let builder = Session::builder().expect("options").with_intra_threads(1).expect("a thread");
    builder.clone().commit_from_file(path).expect("cargo xtask fetch examples brings the models")
}

fn serve() -> Arc<Server> {
    let found = find(None, None);
    let settings = BackendSettings::default();
    let runtime = OnnxRuntime::open(&found.path, &settings).expect("ORT_DYLIB_PATH names a library");
    println!("ONNX Runtime {}, one thread\n", runtime.version());
    let backend: Arc<dyn Backend> = Arc::new(OnnxRuntimeBackend::new(runtime, settings));
    let reading = ReadOptions::default();
    let repositories = Repositories::new(vec![repository()], reading);
    let with_one_thread = |(name, _): (&'static str, Vec<Input>)| {
        let (id, overrides, progress) = (ModelId::plain(name), Overrides::default(), Progress::default());
        let fetched = block_on(repositories.fetch(&id, &overrides, &progress, Instant::now()));
        let spec = fetched.and_then(|fetched| fetched.read()).map(|mut spec| {
            let one = ModelParameter { string_value: "1".to_owned() };
            spec.config.parameters.insert("intra_op_thread_count".to_owned(), one);
            spec
        });
        (name.to_owned(), spec)
    };
    let source: BTreeMap<_, _> = cases().into_iter().map(with_one_thread).collect();
    let backends = BTreeMap::from([("onnxruntime".to_owned(), backend)]);
    let options = ServerOptions { load_threads: 1, ..ServerOptions::default() };
    let server = Server::new(options, backends, Arc::new(source));
    server.start(None).expect("the repository is there");
    server
}

async fn ask(server: &Server, model: &str, inputs: &[Tensor]) -> Response {
    let request = InferRequest { inputs: inputs.to_vec(), ..InferRequest::default() };
    let model = server.resolve(ScopedName::everywhere(model), None).await.expect("it is loaded");
    let mut answers = server.infer(&model, request, Caller::default()).expect("admitted");
    answers.single().await.expect("an answer")
}

/// The time of a call in microseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn batch_of_one(server: &Arc<Server>, runtime: &tokio::runtime::Runtime) {
    println!("| model, batch 1 | ort alone, us | through the server, us | overhead |\n|---|---|---|---|");
    for (model, inputs) in cases() {
        let mut session = session(model);
        let tensors: Vec<_> = inputs.iter().map(Input::tensor).collect();
        let mut direct = || {
            let feeds: Vec<_> = inputs.iter().map(|input| (input.name, input.direct())).collect();
            drop(session.run(feeds).expect("a run"));
        };
        let served = || {
            drop(runtime.block_on(ask(server, model, &tensors)));
        };
        for _ in 0..5 {
            direct();
            served();
        }
        let (mut alone, mut through, start) = (Vec::new(), Vec::new(), Instant::now());
        while start.elapsed() < DURATION {
            alone.push(timed(&mut direct));
            through.push(timed(served));
        }
        let (alone, through) = (median(alone), median(through));
        println!("| {model} | {alone:.0} | {through:.0} | {:.1} % |", (through / alone - 1.0) * 100.0);
    }
}

fn full_batches(server: &Arc<Server>, runtime: &tokio::runtime::Runtime) {
    let model = "text_recogniser";
    let mut session = session(model);
    let batch = Input::fp32("x", &[IN_FLIGHT as i64, 3, 48, 320]);
    let line = Input::fp32("x", &[1, 3, 48, 320]).tensor();
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for stretch in 0..STRETCHES {
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed() < STRETCH {
            drop(session.run([batch.direct()]).expect("a run"));
            runs += 1;
        }
        let direct = (runs * IN_FLIGHT) as f64 / start.elapsed().as_secs_f64();
        let served = throughput(server, runtime, model, &line);
        if stretch > 0 {
            alone.push(direct);
            through.push(served);
        }
    }
    let (alone, through) = (median(alone), median(through));
    println!(
        "\n| {model}, {IN_FLIGHT} at once | ort alone, full batches, lines/s | collected by the server, lines/s | ratio |"
    );
    println!("|---|---|---|---|\n| | {alone:.0} | {through:.0} | {:.3} |", through / alone);
}

/// Answers a second to clients with one request each.
fn throughput(
    server: &Arc<Server>,
    runtime: &tokio::runtime::Runtime,
    model: &'static str,
    input: &Tensor,
) -> f64 {
    let (stopped, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (server, stopped, answers) = (Arc::clone(server), Arc::clone(&stopped), Arc::clone(&answers));
            let input = input.clone();
            runtime.spawn(async move {
                while !stopped.load(Ordering::Relaxed) {
                    ask(&server, model, std::slice::from_ref(&input)).await;
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Counting begins and ends with an execution, since answers come a batch at a time.
    let next = |after: u64| {
        while answers.load(Ordering::Relaxed) <= after {
            sleep(Duration::from_micros(200));
        }
        (answers.load(Ordering::Relaxed), Instant::now())
    };
    let (first, start) = next(IN_FLIGHT as u64);
    sleep(STRETCH);
    let (last, end) = next(answers.load(Ordering::Relaxed));
    stopped.store(true, Ordering::Relaxed);
    for client in clients {
        runtime.block_on(client).expect("every request was answered");
    }
    (last - first) as f64 / (end - start).as_secs_f64()
}

fn main() {
    let server = serve();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    batch_of_one(&server, &runtime);
    full_batches(&server, &runtime);
    server.unload_all();
}

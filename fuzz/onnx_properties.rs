//! Properties of every ONNX file and every request to it in the embedded engine: checked on libFuzzer's inputs by the
//! fuzz target, and on the corpus and random changes of it by ordinary tests.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nereid_backend_api::{
    Answer, Backend, BackendSettings, Batch, BatchMonitor, DataType, ExecutionTimes, InferRequest,
    InstanceContext, InstanceKind, ModelContext, Phase, Request, Responder, ResponseSink, Tensor,
    push_bytes_element,
};
use nereid_model_config::ModelConfig;
use nereid_tract::TractBackend;

/// Sizes of open dimensions: none, one, a few, and more than any weight has.
const SIZES: [i64; 8] = [0, 1, 1, 2, 3, 4, 9, 257];
const MOST_ELEMENTS: i64 = 1 << 14;

/// A file is refused, or its model answers any request, and equal requests equally: uninitialised memory would rarely
/// have equal contents twice. No panic passes the backend or ends the process.
pub fn model(data: &[u8]) {
    // Threads may try the same file at the same time.
    static TRIED: AtomicU64 = AtomicU64::new(0);
    let number = TRIED.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("nereid-onnx-{}-{number}", std::process::id()));
    fs::create_dir_all(folder.join("1")).expect("the folder is made");
    fs::write(folder.join("1/model.onnx"), data).expect("the file is written");
    serve(&folder, hash(data));
    let _ = fs::remove_dir_all(&folder);
}

fn serve(folder: &Path, seed: u64) {
    let mut config = ModelConfig::default();
    for (name, value) in [
        ("planning_timeout_seconds", "5"),
        ("execution_timeout_seconds", "5"),
        ("tensor_memory_bytes", "33554432"),
    ] {
        config.parameters.entry(name.into()).or_default().string_value = value.into();
    }
    let context =
        ModelContext { name: "m".into(), complete: true, ..nereid_testkit::context(folder, config) };
    let Ok(model) = TractBackend::new(BackendSettings::default(), "it is under test").load(context) else {
        return;
    };
    let config = model.completed_config().expect("it was to be completed");
    let mut instance = model
        .create_instance(InstanceContext::new("m_0", InstanceKind::Cpu))
        .expect("it runs on the processor");
    let mut random = Random(seed | 1);
    for _ in 0..4 {
        let Some(inputs) = inputs(config, &mut random) else { continue };
        let batch_size =
            if config.max_batch_size > 0 { inputs.first().map_or(1, |it| it.shape[0] as usize) } else { 1 };
        let mut answers = [0, 1].map(|_| {
            let sink = Arc::new(Sink::default());
            let request = InferRequest { inputs: inputs.clone(), ..InferRequest::default() };
            let request = Request::new(request, batch_size.max(1), Responder::new(sink.clone(), None));
            instance.execute(Batch::new([request].into_iter().collect(), Arc::new(Silent)));
            let answer = sink.0.lock().expect("nothing panics").pop();
            answer.expect("each request is answered")
        });
        let [Ok(one), Ok(other)] = &mut answers else { continue };
        for (one, other) in one.outputs.iter().zip(&other.outputs) {
            assert_eq!((&one.name, &one.shape), (&other.name, &other.shape));
            let contents = [one, other].map(|output| output.contiguous().expect("it is in host memory"));
            assert_eq!(contents[0], contents[1], "output '{}' of {inputs:?} differs", one.name);
        }
    }
}

/// Inputs of random shapes and values; none if they would be large.
fn inputs(config: &ModelConfig, random: &mut Random) -> Option<Vec<Tensor>> {
    let batch =
        (config.max_batch_size > 0).then(|| 1 + (random.next() % config.max_batch_size as u64) as i64);
    let tensor = |input: &nereid_model_config::proto::ModelInput| {
        let dims = input
            .dims
            .iter()
            .map(|&dim| if dim < 0 { SIZES[random.next() as usize % SIZES.len()] } else { dim });
        let shape: Vec<i64> = batch.into_iter().chain(dims).collect();
        let count = shape
            .iter()
            .try_fold(1_i64, |count, dim| count.checked_mul(*dim))
            .filter(|&it| it <= MOST_ELEMENTS)?;
        let data_type = input.data_type().element_type()?;
        let mut contents = Vec::new();
        for _ in 0..count {
            match data_type {
                DataType::Bytes => push_bytes_element(&mut contents, b"text").ok()?,
                DataType::Fp32 => contents.extend((random.next() as i8 as f32 / 16.0).to_le_bytes()),
                // Small numbers, so that indices are in range as often as not.
                _ => {
                    contents.extend(&((random.next() % 7) as i64 - 2).to_le_bytes()[..data_type.byte_size()?])
                }
            }
        }
        Some(Tensor::new(input.name.as_str(), data_type, shape.as_slice(), contents))
    };
    config.input.iter().map(tensor).collect()
}

#[derive(Default)]
struct Sink(Mutex<Vec<Answer>>);

impl ResponseSink for Sink {
    fn deliver(&self, answer: Option<Answer>, _last: bool) {
        self.0.lock().expect("nothing panics").extend(answer);
    }

    fn mark(&self, _phase: Phase, _at: Instant) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

struct Silent;

impl BatchMonitor for Silent {
    fn executed(&self, _size: usize, _times: ExecutionTimes) {}
}

/// Marsaglia's xorshift: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// FNV-1a.
pub fn hash(data: &[u8]) -> u64 {
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

//! Runs a model's warm-up requests on each of its instances before it is ready.
//!
//! The samples bypass the scheduler. As in the reference, they are counted like requests of clients.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nereid_backend_api::{
    Answer, Buffer, DataType, Error, ExecutionTimes, InferRequest, ModelConfig, Phase, Request, Responder,
    ResponseSink, Result, Shape, Tensor,
};
use nereid_model_config::proto;
use nereid_model_config::proto::ModelWarmup;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_warmup::Input;
use nereid_model_config::proto::model_warmup::input::InputDataType;

use crate::admission::admit;
use crate::instance::Pool;
use crate::signature::Signature;
use nereid_statistics::{ComputeTimes, ModelStatistics, RequestOutcome};

/// Warms the new instances up, one after the other.
///
/// # Errors
/// Which sample failed, and why.
pub(crate) fn warm_up(
    pool: &Pool,
    config: &ModelConfig,
    signature: &Signature,
    files: &BTreeMap<String, Bytes>,
    statistics: &Arc<ModelStatistics>,
) -> Result<()> {
    for sample in config.model_warmup.iter().filter(|sample| sample.batch_size > 0) {
        let failed = |error: Error| {
            error.context(format_args!("warm-up '{}' of model '{}'", sample.name, config.name))
        };
        let inputs = inputs(sample, signature, files).map_err(failed)?;
        for instance in (0..pool.len()).filter(|instance| !pool.is_kept(*instance)) {
            for _ in 0..sample.count.max(1) {
                let sample = Sample { inputs: &inputs, batch_size: sample.batch_size };
                run(pool, instance, config, signature, &sample, statistics).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// The inputs of each request of a warm-up, and the number of requests in one execution.
struct Sample<'a> {
    inputs: &'a [Tensor],
    batch_size: u32,
}

/// One execution of the sample's batch: a request for each item.
fn run(
    pool: &Pool,
    instance: usize,
    config: &ModelConfig,
    signature: &Signature,
    sample: &Sample<'_>,
    statistics: &Arc<ModelStatistics>,
) -> Result<()> {
    let &Sample { inputs, batch_size } = sample;
    let (answers, received) = channel();
    let of_clients = |input: &&Tensor| !servers_own(config, &input.name);
    let requests = (0..batch_size).map(|_| {
        let mut request = InferRequest {
            inputs: inputs.iter().filter(of_clients).cloned().collect(),
            ..InferRequest::default()
        };
        let size = admit(&mut request, signature, &config.name)?;
        let responder = Responder::new(Arc::new(Listener::new(answers.clone(), size, statistics)), None);
        let mut request = Request::new(request, size, responder);
        let own = inputs.iter().filter(|input| !of_clients(input)).cloned();
        own.for_each(|input| request.set_input(input));
        Ok(request)
    });
    let requests = requests.collect::<Result<_>>()?;
    drop(answers);
    pool.execute_in_place(instance, requests, Arc::<ModelStatistics>::clone(statistics))?;
    // Ends when every request has had its last answer, or was dropped, which is an answer too.
    received.iter().find_map(Answer::err).map_or(Ok(()), Err)
}

/// Whether the server adds this input to requests of sequences: a control or a state.
fn servers_own(config: &ModelConfig, name: &str) -> bool {
    let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else { return false };
    batching.control_input.iter().any(|control| control.name == name)
        || batching.state.iter().any(|state| state.input_name == name)
}

fn inputs(
    sample: &ModelWarmup,
    signature: &Signature,
    files: &BTreeMap<String, Bytes>,
) -> Result<Vec<Tensor>> {
    let tensor = |(name, input): (&String, &Input)| {
        let wrong = |reason: String| Error::invalid_arg(format!("input '{name}' {reason}"));
        let data_type =
            proto::DataType::try_from(input.data_type).ok().and_then(proto::DataType::element_type);
        let data_type = data_type.ok_or_else(|| wrong("has no data_type".into()))?;
        let mut shape = Shape::from(&input.dims[..]);
        let count = shape.element_count().ok_or_else(|| wrong(format!("has an open shape {shape}")))?;
        // A string of no bytes takes the four bytes of its length.
        let size = count.saturating_mul(data_type.byte_size().unwrap_or(4));
        let contents = match &input.input_data_type {
            Some(InputDataType::ZeroData(_)) => Bytes::from(vec![0; size]),
            Some(InputDataType::RandomData(_)) => Bytes::from(random(data_type, size)),
            Some(InputDataType::InputDataFile(file)) => {
                let contents = files.get(file).ok_or_else(|| wrong(format!("has no file '{file}'")))?;
                match data_type.byte_size() {
                    Some(_) if contents.len() < size => {
                        let has = contents.len();
                        return Err(wrong(format!("takes {size} bytes, but file '{file}' has {has}")));
                    }
                    Some(_) => contents.slice(..size),
                    None => contents.clone(),
                }
            }
            None => return Err(wrong("says neither zero_data nor random_data nor input_data_file".into())),
        };
        if signature.max_batch_size > 0 {
            shape.push_front(1);
        }
        let buffers = [Buffer::host(contents)].into_iter().collect();
        Ok(Tensor { name: name.clone(), data_type, shape, buffers })
    };
    sample.inputs.iter().map(tensor).collect()
}

/// Contents that differ from each other and are harmless: numbers from 0 to 1 for floats, true and false, empty
/// strings.
fn random(data_type: DataType, size: usize) -> Vec<u8> {
    // Each hash of a counter is as good as any number.
    let hashes = RandomState::new();
    let numbers = (0_u64..).map(|counter| hashes.hash_one(counter));
    let bytes: Vec<u8> = match data_type {
        DataType::Bytes => vec![0; size],
        DataType::Bool => numbers.take(size).map(|number| u8::from(number & 1 == 1)).collect(),
        DataType::Fp16 => {
            numbers.take(size / 2).flat_map(|it| half::f16::from_f32(unit(it)).to_le_bytes()).collect()
        }
        DataType::Bf16 => {
            numbers.take(size / 2).flat_map(|it| half::bf16::from_f32(unit(it)).to_le_bytes()).collect()
        }
        DataType::Fp32 => numbers.take(size / 4).flat_map(|it| unit(it).to_le_bytes()).collect(),
        DataType::Fp64 => numbers.take(size / 8).flat_map(|it| f64::from(unit(it)).to_le_bytes()).collect(),
        _ => numbers.take(size.div_ceil(8)).flat_map(u64::to_le_bytes).take(size).collect(),
    };
    bytes
}

/// A number from 0 to 1.
fn unit(number: u64) -> f32 {
    (number >> 40) as f32 / (1 << 24) as f32
}

/// Hears the answers to one request, and counts it if it succeeds.
struct Listener {
    answers: Sender<Answer>,
    statistics: Arc<ModelStatistics>,
    batch_size: usize,
    arrived: Instant,
    /// Nanoseconds from `arrived` to the beginning of each phase; 0 if it was not reached.
    phases: [AtomicU64; 3],
    /// Whether the backend reports how long the execution took.
    awaits_report: AtomicBool,
    state: Mutex<ListenerState>,
}

#[derive(Default)]
struct ListenerState {
    has_failed: bool,
    is_counted: bool,
    reported: Option<ComputeTimes>,
}

impl Listener {
    fn new(answers: Sender<Answer>, batch_size: usize, statistics: &Arc<ModelStatistics>) -> Self {
        Self {
            answers,
            statistics: Arc::clone(statistics),
            batch_size,
            arrived: Instant::now(),
            phases: Default::default(),
            awaits_report: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Counts the request as a success.
    fn count(&self, reported: Option<ComputeTimes>) {
        let ended = self.arrived.elapsed();
        let mut begins = [ended; 3];
        let mut next = ended;
        for (begin, phase) in begins.iter_mut().zip(&self.phases).rev() {
            let nanos = phase.load(Ordering::Relaxed);
            next = if nanos == 0 { next } else { Duration::from_nanos(nanos) };
            *begin = next;
        }
        let [started, inputs_ready, outputs_ready] = begins;
        self.statistics.record_start();
        self.statistics.record(RequestOutcome::Success, self.batch_size, ended, started);
        let measured = || ComputeTimes {
            input: inputs_ready.saturating_sub(started),
            infer: outputs_ready.saturating_sub(inputs_ready),
            output: ended.saturating_sub(outputs_ready),
        };
        let measures = !self.awaits_report.load(Ordering::Acquire);
        if let Some(times) = reported.or_else(|| measures.then(measured)) {
            self.statistics.record_compute(times);
        }
    }
}

impl ResponseSink for Listener {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        let mut heard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        heard.has_failed |= matches!(answer, Some(Err(_)));
        let counts = last && !heard.has_failed && !std::mem::replace(&mut heard.is_counted, last);
        let reported = heard.reported;
        drop(heard);
        if counts {
            self.count(reported);
        }
        if let Some(answer) = answer {
            // Nobody listens any more once one answer was an error.
            let _ = self.answers.send(answer);
        }
    }

    #[expect(clippy::indexing_slicing, reason = "one place for each phase")]
    fn mark(&self, phase: Phase, at: Instant) {
        let since = at.saturating_duration_since(self.arrived).as_nanos();
        self.phases[phase as usize].store(u64::try_from(since).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn await_report(&self) {
        self.awaits_report.store(true, Ordering::Release);
    }

    fn report(&self, times: ExecutionTimes) {
        let times = ComputeTimes::from(times);
        let mut heard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = heard.is_counted && heard.reported.is_none() && !heard.has_failed;
        heard.reported = Some(times);
        drop(heard);
        if is_late {
            self.statistics.record_compute(times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(text: &str) -> ModelWarmup {
        let config = nereid_model_config::parse_text(&format!("model_warmup {{ batch_size: 1 {text} }}"));
        config.unwrap().model_warmup.remove(0)
    }

    fn made(value: &str, files: &BTreeMap<String, Bytes>) -> Result<Tensor> {
        let signature = Signature { max_batch_size: 4, inputs: Vec::new(), outputs: Vec::new() };
        let text = format!("inputs {{ key: 'X' value {{ {value} }} }}");
        Ok(inputs(&sample(&text), &signature, files)?.remove(0))
    }

    #[test]
    fn contents_are_zeros_random_or_a_files() {
        let files = BTreeMap::from([("f".to_owned(), Bytes::from_static(b"0123456789"))]);
        let zero = made("data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true", &files).unwrap();
        assert_eq!((zero.shape, zero.buffers[0].len()), ([1, 2, 3].into(), 24));
        let file = made("data_type: TYPE_INT16 dims: [ 4 ] input_data_file: 'f'", &files).unwrap();
        assert_eq!(&*file.contiguous().unwrap(), b"01234567");
        for (wrong, reason) in [
            ("data_type: TYPE_INT16 dims: [ 6 ] input_data_file: 'f'", "takes 12 bytes, but file 'f' has 10"),
            ("data_type: TYPE_INT16 dims: [ 4 ] input_data_file: 'g'", "has no file 'g'"),
            ("data_type: TYPE_INT16 dims: [ -1 ] zero_data: true", "open shape"),
            ("data_type: TYPE_INT16 dims: [ 1 ]", "says neither"),
            ("dims: [ 1 ] zero_data: true", "no data_type"),
        ] {
            let error = made(wrong, &files).unwrap_err();
            assert!(error.message().contains(reason), "{error}");
        }
    }

    #[test]
    fn random_contents_fit_every_type() {
        for data_type in DataType::ALL {
            let name = data_type.config_name();
            let tensor =
                made(&format!("data_type: {name} dims: [ 3, 5 ] random_data: true"), &BTreeMap::new());
            tensor.unwrap().check_contents().unwrap();
        }
        let floats = random(DataType::Fp32, 400);
        let floats = floats.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(floats.clone().all(|number| (0.0..1.0).contains(&number)));
        assert!(floats.clone().max_by(f32::total_cmp) > floats.min_by(f32::total_cmp));
    }
}

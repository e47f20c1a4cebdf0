//! Counters of a model: how often, how long, in batches of which size (Triton's statistics extension).
//!
//! Counters only grow and are read without stopping writers, so a snapshot taken under load may be off by a request
//! between two of its fields.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nereid_backend_api::{BatchMonitor, ExecutionTimes, ResponseKind};

mod latencies;
mod totals;

pub use self::latencies::{Latencies, LatencyOptions, LatencySummary, Phase as LatencyPhase};
use self::totals::Earlier;
pub use self::totals::{FailureReason, Totals};

/// How often something happened, and how long it took all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStatistics {
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
}

impl DurationStatistics {
    fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.ns += nanos(duration);
    }
}

/// A model's counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct InferStatistics {
    /// When the model was executed last, in milliseconds since the Unix epoch; 0 if it was not.
    pub last_inference_ms: u64,
    /// Items of successful requests: a request of batch size n counts n times.
    pub inference_count: u64,
    /// Executions of the model: a batch counts once.
    pub execution_count: u64,
    /// Successful requests, from arrival to answer.
    pub success: DurationStatistics,
    /// Failed requests, those refused in the queue and those cancelled among them, from arrival to answer.
    pub fail: DurationStatistics,
    /// Cancelled requests, from arrival to the end.
    pub cancel: DurationStatistics,
    /// Successful requests: waiting for an instance.
    pub queue: DurationStatistics,
    /// Successful requests: gathering of inputs.
    pub compute_input: DurationStatistics,
    /// Successful requests: running the model.
    pub compute_infer: DurationStatistics,
    /// Successful requests: handing on outputs.
    pub compute_output: DurationStatistics,
    /// Executions by batch size.
    pub batches: BTreeMap<usize, BatchStatistics>,
    /// Responses of a decoupled model, by their place among the responses to their request.
    pub responses: Vec<ResponseStatistics>,
}

/// Responses of a decoupled model that have the same place among the responses to their request.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseStatistics {
    /// From the response before, or else from the beginning of the execution.
    pub compute_infer: DurationStatistics,
    /// Handing on outputs.
    pub compute_output: DurationStatistics,
    /// Responses that hold an answer.
    pub success: DurationStatistics,
    /// Responses that hold an error.
    pub fail: DurationStatistics,
    /// Responses that only say that there are no more.
    pub empty_response: DurationStatistics,
    /// Responses that say that the request was cancelled.
    pub cancel: DurationStatistics,
}

/// Responses after this many to one request are not counted by their place.
const RESPONSES: usize = 1024;

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchStatistics {
    /// Gathering of inputs.
    pub compute_input: DurationStatistics,
    /// Running the model.
    pub compute_infer: DurationStatistics,
    /// Handing on outputs.
    pub compute_output: DurationStatistics,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure(FailureReason),
    Cancelled(FailureReason),
}

/// How long a request was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ComputeTimes {
    pub input: Duration,
    pub infer: Duration,
    pub output: Duration,
}

/// The live counters of one version of a model.
#[derive(Debug, Default)]
pub struct ModelStatistics {
    last_inference_ms: AtomicU64,
    inference_count: AtomicU64,
    execution_count: AtomicU64,
    success: Counter,
    fail: Counter,
    cancel: Counter,
    queue: Counter,
    compute_input: Counter,
    compute_infer: Counter,
    compute_output: Counter,
    batches: Mutex<BTreeMap<usize, BatchStatistics>>,
    responses: Mutex<Vec<ResponseStatistics>>,
    /// Failed requests, by their reason's number.
    failures: [AtomicU64; FailureReason::ALL.len()],
    /// How long loading took, in nanoseconds.
    load_ns: AtomicU64,
    earlier: Earlier,
    latencies: Option<Arc<Latencies>>,
}

impl ModelStatistics {
    /// The counters now.
    pub fn snapshot(&self) -> InferStatistics {
        InferStatistics {
            last_inference_ms: self.last_inference_ms.load(Relaxed),
            inference_count: self.inference_count.load(Relaxed),
            execution_count: self.execution_count.load(Relaxed),
            success: self.success.snapshot(),
            fail: self.fail.snapshot(),
            cancel: self.cancel.snapshot(),
            queue: self.queue.snapshot(),
            compute_input: self.compute_input.snapshot(),
            compute_infer: self.compute_infer.snapshot(),
            compute_output: self.compute_output.snapshot(),
            batches: self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            responses: self.responses.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Counts the end of a request. How long it was computed may follow, with [`record_compute`](Self::record_compute).
    pub(crate) fn record(&self, ending: Ending, batch_size: usize, total: Duration, queue: Duration) {
        match ending {
            Ending::Success => {
                self.inference_count.fetch_add(batch_size as u64, Relaxed);
                self.success.add(total);
                self.queue.add(queue);
                if let Some(latencies) = &self.latencies {
                    latencies.succeeded(total, queue);
                }
            }
            Ending::Failure(reason) => self.fail(total, reason),
            Ending::Cancelled(reason) => {
                self.fail(total, reason);
                self.cancel.add(total);
            }
        }
    }

    fn fail(&self, total: Duration, reason: FailureReason) {
        self.fail.add(total);
        self.failures[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts how long a successful request was computed.
    pub(crate) fn record_compute(&self, times: ComputeTimes) {
        self.compute_input.add(times.input);
        self.compute_infer.add(times.infer);
        self.compute_output.add(times.output);
        if let Some(latencies) = &self.latencies {
            latencies.computed(times);
        }
    }

    /// Counts one response to a request of a decoupled model, which took `duration` and is the `place`-th. `output` of
    /// that time were its outputs handed on.
    pub(crate) fn record_response(
        &self,
        place: usize,
        kind: ResponseKind,
        duration: Duration,
        output: Duration,
    ) {
        if place >= RESPONSES {
            return;
        }
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        if responses.len() <= place {
            responses.resize_with(place + 1, ResponseStatistics::default);
        }
        let response = &mut responses[place];
        response.compute_infer.add(duration.saturating_sub(output));
        let counted = match kind {
            ResponseKind::Answer => {
                response.compute_output.add(output);
                &mut response.success
            }
            ResponseKind::Error => &mut response.fail,
            ResponseKind::Nothing => &mut response.empty_response,
            ResponseKind::Cancelled => &mut response.cancel,
        };
        counted.add(duration);
    }
}

impl BatchMonitor for ModelStatistics {
    fn executed(&self, size: usize, times: ExecutionTimes) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_inference_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.execution_count.fetch_add(1, Relaxed);
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = batches.entry(size).or_default();
        batch.compute_input.add(times.inputs_ready.saturating_duration_since(times.started));
        batch.compute_infer.add(times.outputs_ready.saturating_duration_since(times.inputs_ready));
        batch.compute_output.add(times.ended.saturating_duration_since(times.outputs_ready));
    }
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Counter {
    fn add(&self, duration: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(nanos(duration), Relaxed);
    }

    fn snapshot(&self) -> DurationStatistics {
        DurationStatistics { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

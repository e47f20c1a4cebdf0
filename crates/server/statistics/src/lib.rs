//! Counters of a model: how often, how long, in batches of which size (Triton's statistics extension).
//!
//! Counters only grow and are read without stopping writers, so a snapshot taken under load may be off by a request
//! between two of its fields. Each instance writes its own (`counters`).
//!
//! Knows no model and no server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nereid_backend_api::{BatchMonitor, ExecutionTimes, ResponseKind};

mod counters;
mod latencies;
mod totals;

use self::counters::Sets;
pub use self::counters::on_instance;
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

impl AddAssign for DurationStatistics {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// A model's counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct InferStatistics {
    /// When the model was executed last, in milliseconds since the Unix epoch; 0 if it was not.
    pub last_inference_ms: u64,
    /// Items of successful requests that were executed: a request of batch size n counts n times.
    pub inference_count: u64,
    /// Executions of the model: a batch counts once.
    pub execution_count: u64,
    /// Failed steps of an ensemble that another step or a value replaced.
    pub fallback_count: u64,
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
    /// Requests that were answered from the response cache: looking them up.
    pub cache_hit: DurationStatistics,
    /// Requests that were looked up there in vain: that, and storing their answers.
    pub cache_miss: DurationStatistics,
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
    /// Empty responses that mark the end.
    pub empty_response: DurationStatistics,
    /// Responses that report a cancellation.
    pub cancel: DurationStatistics,
}

impl AddAssign for ResponseStatistics {
    fn add_assign(&mut self, other: Self) {
        self.compute_infer += other.compute_infer;
        self.compute_output += other.compute_output;
        self.success += other.success;
        self.fail += other.fail;
        self.empty_response += other.empty_response;
        self.cancel += other.cancel;
    }
}

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

impl BatchStatistics {
    fn add(&mut self, times: ComputeTimes) {
        self.compute_input.add(times.input);
        self.compute_infer.add(times.infer);
        self.compute_output.add(times.output);
    }
}

impl AddAssign for BatchStatistics {
    fn add_assign(&mut self, other: Self) {
        self.compute_input += other.compute_input;
        self.compute_infer += other.compute_infer;
        self.compute_output += other.compute_output;
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// With a response.
    Success,
    /// With an error.
    Failure(FailureReason),
    /// Cancelled by its client, and why that counts as a failure.
    Cancelled(FailureReason),
}

/// How long a request was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeTimes {
    /// Preparing the inputs.
    pub input: Duration,
    /// Running the model.
    pub infer: Duration,
    /// Producing the outputs.
    pub output: Duration,
}

impl From<ExecutionTimes> for ComputeTimes {
    fn from(times: ExecutionTimes) -> Self {
        Self {
            input: times.inputs_ready.saturating_duration_since(times.started),
            infer: times.outputs_ready.saturating_duration_since(times.inputs_ready),
            output: times.ended.saturating_duration_since(times.outputs_ready),
        }
    }
}

/// The live counters of one version of a model.
#[derive(Debug, Default)]
pub struct ModelStatistics {
    counters: Sets,
    /// How long loading took, in nanoseconds.
    load_ns: AtomicU64,
    earlier: Earlier,
    latencies: Option<Arc<Latencies>>,
}

impl ModelStatistics {
    /// The counters now.
    pub fn snapshot(&self) -> InferStatistics {
        self.counters.snapshot()
    }

    /// Counts a request that was taken in, and whose end is going to be recorded or was already.
    pub fn record_start(&self) {
        self.counters.own().record_start();
    }

    /// How many requests were taken in and have not ended.
    pub fn in_flight(&self) -> u64 {
        self.counters.in_flight()
    }

    /// Counts the end of a request. How long it was computed may follow, with [`record_compute`](Self::record_compute).
    pub fn record(&self, ending: RequestOutcome, batch_size: usize, total: Duration, queue: Duration) {
        self.counters.own().ended(ending, batch_size, total, queue);
        if let (RequestOutcome::Success, Some(latencies)) = (ending, &self.latencies) {
            latencies.succeeded(total, queue);
        }
    }

    /// Counts how long a successful request was computed.
    pub fn record_compute(&self, times: ComputeTimes) {
        self.counters.own().computed(times);
        if let Some(latencies) = &self.latencies {
            latencies.computed(times);
        }
    }

    /// Counts a request that is answered from the response cache.
    pub fn record_cache_hit(&self, took: Duration) {
        self.counters.own().cache_hit(took);
        if let Some(latencies) = &self.latencies {
            latencies.hit(took);
        }
    }

    /// Counts a request that was not found in the response cache.
    pub fn record_cache_miss(&self, took: Duration) {
        self.counters.own().cache_miss(took);
        if let Some(latencies) = &self.latencies {
            latencies.missed(took);
        }
    }

    /// Counts a failed step of an ensemble that another step or a value replaced.
    pub fn record_fallback(&self) {
        self.counters.own().fallback();
    }

    /// Counts one response to a request of a decoupled model, by its index among the responses. It took `duration`, of
    /// which its outputs, or its error, were handed on for `output`.
    pub fn record_response(
        &self,
        index: usize,
        kind: ResponseKind,
        duration: Duration,
        output: Option<Duration>,
    ) {
        self.counters.own().responded(index, kind, duration, output);
    }
}

impl BatchMonitor for ModelStatistics {
    fn executed(&self, size: usize, times: ExecutionTimes) {
        self.counters.own().executed(size, times);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

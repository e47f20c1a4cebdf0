//! The last hour of the server and of its models, in bounded memory.
//!
//! A tick turns counters into rates and averages. The server as a whole has a sample of each tick. A model has one only where
//! it had requests, and all models share a fixed number of samples: the more of them are active, the rarer are the samples
//! of each, so that the hour always fits. No clock is read here: the time of a tick is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nereid_core::{ModelId, Totals};

use crate::details::{BatchCounts, BatchShares, Quantiles};
use crate::process::Usage;

/// The time between two ticks.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// The number of ticks in the history: an hour.
pub(crate) const MAX_TICKS: usize = 720;
/// Samples of all models together: an hour of 20 versions, 1.4 MB.
pub(crate) const MAX_SAMPLES: usize = 20 * MAX_TICKS;

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionKey {
    pub id: ModelId,
    pub version: u64,
}

/// The counters of a version at a tick.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub key: VersionKey,
    pub totals: Totals,
    /// Requests that wait for an instance.
    pub pending: usize,
    /// The processes of the version, apart from the server's.
    pub processes: Usage,
    /// Read for versions of which [`History::needs_details`] is true.
    pub details: Details,
}

/// Readings that take longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Details {
    pub batches: BatchCounts,
    pub quantiles: Quantiles,
}

/// Activity over some time. Rates are per second. Latencies are averages of a successful request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Activity {
    pub requests: f32,
    pub failures: f32,
    pub latency: f32,
    pub queue: f32,
    pub input: f32,
    pub infer: f32,
    pub output: f32,
    /// Inferences in an execution.
    pub batch: f32,
    /// Requests that waited at the end of the time.
    pub pending: f32,
    /// Requests that the response cache answered, and those that it did not.
    pub hits: f32,
    pub misses: f32,
    /// Processors that processes of models kept busy, and their resident memory in bytes.
    pub processors: f32,
    pub memory: f32,
}

/// A sample of the server as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ServerSample {
    /// Seconds since the first tick.
    pub at: u32,
    pub activity: Activity,
    /// Processors that this process kept busy.
    pub processors: f32,
    /// Resident memory in bytes.
    pub memory: u64,
}

/// A sample of a version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelSample {
    /// Seconds since the first tick, and the number of seconds before it that the sample covers.
    pub at: u32,
    pub span: u32,
    pub key: Arc<VersionKey>,
    pub activity: Activity,
    pub batches: BatchShares,
    pub quantiles: Quantiles,
}

/// The samples.
#[derive(Default)]
pub(crate) struct History {
    ticks: u64,
    server: VecDeque<ServerSample>,
    models: VecDeque<ModelSample>,
    known: BTreeMap<VersionKey, Known>,
    last: Option<(u32, Usage)>,
}

/// A version with its counters at the last tick and at its last sample.
struct Known {
    key: Arc<VersionKey>,
    at_tick: Counters,
    at_sample: Counters,
    batches: BatchCounts,
    /// The time of `at_sample`, and the number of that tick.
    sampled: (u32, u64),
    /// The number of the last tick with this version.
    seen: u64,
}

impl Known {
    /// Whether the version did anything since its last sample.
    fn is_active(&self, reading: &Reading) -> bool {
        reading.pending > 0 || !Counters::from(reading).since(&self.at_sample).is_zero()
    }
}

impl History {
    /// Whether the next tick needs the details of a version. Idle versions keep theirs.
    pub(crate) fn needs_details(&self, reading: &Reading) -> bool {
        self.known.get(&reading.key).is_none_or(|known| known.is_active(reading))
    }

    /// Adds a tick at this many seconds since the first one.
    pub(crate) fn tick(&mut self, at: u32, readings: &[Reading], usage: Usage) {
        self.ticks += 1;
        let mut sum = Counters::default();
        let mut active = Vec::new();
        for reading in readings {
            let now = Counters::from(reading);
            let Some(known) = self.known.get_mut(&reading.key) else {
                // Counts before the first tick of a version, such as its warm-up, have no known time.
                let key = Arc::new(reading.key.clone());
                let sampled = (at, self.ticks);
                let batches = reading.details.batches;
                let known = Known { key, at_tick: now, at_sample: now, batches, sampled, seen: self.ticks };
                self.known.insert(reading.key.clone(), known);
                continue;
            };
            sum.add(&now.since(&known.at_tick));
            (known.at_tick, known.seen) = (now, self.ticks);
            if known.is_active(reading) {
                active.push(reading);
            } else {
                (known.at_sample, known.sampled) = (now, (at, self.ticks));
            }
        }
        // A version has one sample for this many ticks.
        let stride = (active.len() * MAX_TICKS).div_ceil(MAX_SAMPLES).max(1) as u64;
        for reading in active {
            let Some(known) = self.known.get_mut(&reading.key) else { continue };
            if self.ticks - known.sampled.1 < stride {
                continue;
            }
            let counted = known.at_tick.since(&known.at_sample);
            let span = at.saturating_sub(known.sampled.0);
            let activity = counted.activity(span, reading.pending, reading.processes.memory);
            let Details { batches, quantiles } = reading.details;
            let shares = BatchShares::between(&known.batches, &batches);
            (known.at_sample, known.batches) = (known.at_tick, batches);
            known.sampled = (at, self.ticks);
            let key = Arc::clone(&known.key);
            let sample = ModelSample { at, span, key, activity, batches: shares, quantiles };
            push(&mut self.models, MAX_SAMPLES, sample);
        }
        let ticks = self.ticks;
        self.known.retain(|_, known| known.seen == ticks);
        if let Some((before, used)) = self.last.replace((at, usage)) {
            let seconds = at.saturating_sub(before);
            let pending = readings.iter().map(|reading| reading.pending).sum();
            let busy = usage.processor.saturating_sub(used.processor).as_secs_f32();
            let processors = busy / seconds.max(1) as f32;
            let memory = readings.iter().map(|reading| reading.processes.memory).sum();
            let activity = sum.activity(seconds, pending, memory);
            let sample = ServerSample { at, activity, processors, memory: usage.memory };
            push(&mut self.server, MAX_TICKS, sample);
        }
        forget(&mut self.server, at, |sample| sample.at);
        forget(&mut self.models, at, |sample| sample.at);
    }

    /// The samples of the server after a time, oldest first.
    pub(crate) fn server_after(&self, at: u32) -> impl Iterator<Item = &ServerSample> {
        self.server.iter().filter(move |sample| sample.at > at)
    }

    /// The samples of versions after a time, oldest first.
    pub(crate) fn models_after(&self, at: u32) -> impl Iterator<Item = &ModelSample> {
        self.models.iter().filter(move |sample| sample.at > at)
    }

    /// The time of the last tick.
    pub(crate) fn last_tick(&self) -> u32 {
        self.last.map_or(0, |(at, _)| at)
    }
}

/// Adds a sample, in place of the oldest one if there are `max`. Grows in small steps: doubling could take twice the memory
/// that the samples need.
pub(crate) fn push<T>(samples: &mut VecDeque<T>, max: usize, sample: T) {
    const STEP: usize = 512;
    if samples.len() >= max {
        samples.pop_front();
    }
    if samples.len() == samples.capacity() {
        samples.reserve_exact(STEP.min(max - samples.len()));
    }
    samples.push_back(sample);
}

/// Drops samples that are older than an hour.
pub(crate) fn forget<T>(samples: &mut VecDeque<T>, at: u32, time: impl Fn(&T) -> u32) {
    let oldest = at.saturating_sub(MAX_TICKS as u32 * INTERVAL.as_secs() as u32);
    while samples.front().is_some_and(|sample| time(sample) < oldest) {
        samples.pop_front();
    }
}

/// The counters that samples are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    success: u64,
    failures: u64,
    inferences: u64,
    executions: u64,
    latency: u64,
    queue: u64,
    input: u64,
    infer: u64,
    output: u64,
    hits: u64,
    misses: u64,
    /// Processor time of processes, in nanoseconds.
    processor: u64,
}

impl From<&Reading> for Counters {
    fn from(reading: &Reading) -> Self {
        let totals = &reading.totals;
        Self {
            success: totals.success,
            failures: totals.failures.iter().sum(),
            inferences: totals.inferences,
            executions: totals.executions,
            latency: totals.request_ns,
            queue: totals.queue_ns,
            input: totals.compute_input_ns,
            infer: totals.compute_infer_ns,
            output: totals.compute_output_ns,
            hits: totals.cache_hit.count,
            misses: totals.cache_miss.count,
            processor: u64::try_from(reading.processes.processor.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Counters {
    fn fields(&mut self) -> [&mut u64; 12] {
        let Self { success, failures, inferences, executions, latency, queue, .. } = self;
        let Self { input, infer, output, hits, misses, processor, .. } = self;
        [
            success, failures, inferences, executions, latency, queue, input, infer, output, hits, misses,
            processor,
        ]
    }

    /// The counts since an earlier time. The counters of a version that was unloaded in between begin at zero again.
    fn since(mut self, earlier: &Self) -> Self {
        let mut earlier = *earlier;
        let restarted = self.success < earlier.success || self.failures < earlier.failures;
        for (now, before) in self.fields().into_iter().zip(earlier.fields()) {
            *now = if restarted { *now } else { now.saturating_sub(*before) };
        }
        self
    }

    fn add(&mut self, other: &Self) {
        let mut other = *other;
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, count)| *sum += *count);
    }

    fn is_zero(&self) -> bool {
        self.success == 0 && self.failures == 0 && self.executions == 0
    }

    /// The activity that these counts of some seconds are.
    fn activity(&self, seconds: u32, pending: usize, memory: u64) -> Activity {
        let rate = |count: u64| count as f32 / seconds.max(1) as f32;
        let mean = |ns: u64| if self.success == 0 { 0.0 } else { ns as f32 / self.success as f32 / 1e3 };
        Activity {
            requests: rate(self.success + self.failures),
            failures: rate(self.failures),
            latency: mean(self.latency),
            queue: mean(self.queue),
            input: mean(self.input),
            infer: mean(self.infer),
            output: mean(self.output),
            batch: if self.executions == 0 { 0.0 } else { self.inferences as f32 / self.executions as f32 },
            pending: pending as f32,
            hits: rate(self.hits),
            misses: rate(self.misses),
            processors: rate(self.processor) / 1e9,
            memory: memory as f32,
        }
    }
}

#[cfg(test)]
mod tests;

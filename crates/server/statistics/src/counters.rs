//! The counters that requests and executions write: one set for each instance, so that no two instances write to the same
//! memory. They are summed when they are read.
//!
//! An instance's thread counts in that instance's set ([`on_instance`]), any other in one that it shares with few threads, also
//! while it executes with an instance. Which one it is matters for speed alone: every count goes to exactly one set.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nereid_backend_api::{ExecutionTimes, ResponseKind};

use super::{
    BatchStatistics, ComputeTimes, DurationStatistics, FailureReason, InferStatistics, RequestOutcome,
    ResponseStatistics, Totals, nanos,
};

/// How many sets of counters a model has at most. More instances than that share them.
const SETS: usize = 32;

/// Executions of batches up to this size are counted without a lock.
const SMALL_BATCHES: usize = 32;

/// Responses to one request are counted by their index up to this many.
const MAX_RESPONSES: usize = 1024;

thread_local! {
    /// The set that this thread counts in, once it is known.
    static SET: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Lets this thread count in the set of an instance, until the guard is dropped.
pub fn on_instance(instance: usize) -> OnInstance {
    OnInstance(SET.replace(Some(instance % SETS)))
}

/// See [`on_instance`].
pub struct OnInstance(Option<usize>);

impl Drop for OnInstance {
    fn drop(&mut self) {
        SET.set(self.0);
    }
}

/// The set of this thread.
fn set() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    SET.get().unwrap_or_else(|| {
        // Once for each thread.
        let set = THREADS.fetch_add(1, Relaxed) % SETS;
        SET.set(Some(set));
        set
    })
}

/// All sets of a model, each made when something is counted in it first. The places are only read then, so nothing that is
/// written, like a count of references, shares their cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Sets([OnceLock<Box<Counters>>; SETS]);

impl Sets {
    /// The counters that this thread writes to.
    pub(super) fn own(&self) -> &Counters {
        self.0[set()].get_or_init(Box::default)
    }

    fn all(&self) -> impl Iterator<Item = &Counters> {
        self.0.iter().filter_map(OnceLock::get).map(AsRef::as_ref)
    }

    /// The sum, for the statistics extension.
    pub(super) fn snapshot(&self) -> InferStatistics {
        let mut sum = InferStatistics::default();
        self.all().for_each(|counters| counters.add_to(&mut sum));
        sum
    }

    /// How many requests were taken in and have not ended.
    pub(super) fn in_flight(&self) -> u64 {
        // A request may end before it is counted as begun.
        let ended =
            |counters: &Counters| counters.success.count.load(Relaxed) + counters.fail.count.load(Relaxed);
        let ended: u64 = self.all().map(ended).sum();
        self.all().map(|counters| counters.begun.load(Relaxed)).sum::<u64>().saturating_sub(ended)
    }

    /// The sum, for metrics.
    pub(super) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for counters in self.all() {
            sum += counters.totals();
        }
        sum
    }
}

/// The counters of one instance. They begin at a cache line of their own, and so does what lies behind them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    last_inference_ms: AtomicU64,
    inference_count: AtomicU64,
    execution_count: AtomicU64,
    /// Requests that were taken in; each of them ends as a success or as a failure.
    begun: AtomicU64,
    fallbacks: AtomicU64,
    success: Counter,
    fail: Counter,
    cancel: Counter,
    queue: Counter,
    compute_input: Counter,
    compute_infer: Counter,
    compute_output: Counter,
    cache_hit: Counter,
    cache_miss: Counter,
    /// Failed requests, by their reason's number.
    failures: [AtomicU64; FailureReason::ALL.len()],
    /// Executions of the sizes from 1 on.
    small_batches: [BatchCounter; SMALL_BATCHES],
    /// Executions of all other sizes.
    other_batches: Mutex<BTreeMap<usize, BatchStatistics>>,
    responses: Mutex<Vec<ResponseStatistics>>,
}

impl Counters {
    /// Counts a request that was taken in.
    pub(super) fn record_start(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// Counts a failed step of an ensemble that was replaced.
    pub(super) fn fallback(&self) {
        self.fallbacks.fetch_add(1, Relaxed);
    }

    /// Counts the end of a request.
    pub(super) fn ended(&self, ending: RequestOutcome, batch_size: usize, total: Duration, queue: Duration) {
        match ending {
            RequestOutcome::Success => {
                self.inference_count.fetch_add(batch_size as u64, Relaxed);
                self.success.add(total);
                self.queue.add(queue);
            }
            RequestOutcome::Failure(reason) => self.failed(total, reason),
            RequestOutcome::Cancelled(reason) => {
                self.failed(total, reason);
                self.cancel.add(total);
            }
        }
    }

    fn failed(&self, total: Duration, reason: FailureReason) {
        self.fail.add(total);
        self.failures[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts how long a successful request was computed.
    pub(super) fn computed(&self, times: ComputeTimes) {
        self.compute_input.add(times.input);
        self.compute_infer.add(times.infer);
        self.compute_output.add(times.output);
    }

    /// Counts a request that is answered from the response cache.
    pub(super) fn cache_hit(&self, took: Duration) {
        self.cache_hit.add(took);
    }

    /// Counts a request that was not found in the response cache.
    pub(super) fn cache_miss(&self, took: Duration) {
        self.cache_miss.add(took);
    }

    /// Counts one response to a request of a decoupled model, see
    /// [`ModelStatistics::record_response`](super::ModelStatistics::record_response).
    pub(super) fn responded(
        &self,
        index: usize,
        kind: ResponseKind,
        duration: Duration,
        output: Option<Duration>,
    ) {
        if index >= MAX_RESPONSES {
            return;
        }
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        if responses.len() <= index {
            responses.resize_with(index + 1, ResponseStatistics::default);
        }
        let response = &mut responses[index];
        if kind != ResponseKind::Cancelled {
            response.compute_infer.add(duration.saturating_sub(output.unwrap_or_default()));
        }
        if matches!(kind, ResponseKind::Answer | ResponseKind::Error)
            && let Some(output) = output
        {
            response.compute_output.add(output);
        }
        let counted = match kind {
            ResponseKind::Answer => &mut response.success,
            ResponseKind::Error => &mut response.fail,
            ResponseKind::Nothing => &mut response.empty_response,
            ResponseKind::Cancelled => &mut response.cancel,
        };
        counted.add(duration);
    }

    /// Counts the execution of a batch.
    pub(super) fn executed(&self, size: usize, times: ExecutionTimes) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_inference_ms.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.execution_count.fetch_add(1, Relaxed);
        let times = ComputeTimes::from(times);
        match size.checked_sub(1).and_then(|index| self.small_batches.get(index)) {
            Some(batch) => batch.add(times),
            None => {
                let mut batches = self.other_batches.lock().unwrap_or_else(PoisonError::into_inner);
                batches.entry(size).or_default().add(times);
            }
        }
    }

    fn add_to(&self, sum: &mut InferStatistics) {
        sum.last_inference_ms = sum.last_inference_ms.max(self.last_inference_ms.load(Relaxed));
        sum.inference_count += self.inference_count.load(Relaxed);
        sum.execution_count += self.execution_count.load(Relaxed);
        sum.fallback_count += self.fallbacks.load(Relaxed);
        sum.success += self.success.snapshot();
        sum.fail += self.fail.snapshot();
        sum.cancel += self.cancel.snapshot();
        sum.queue += self.queue.snapshot();
        sum.compute_input += self.compute_input.snapshot();
        sum.compute_infer += self.compute_infer.snapshot();
        sum.compute_output += self.compute_output.snapshot();
        sum.cache_hit += self.cache_hit.snapshot();
        sum.cache_miss += self.cache_miss.snapshot();
        let small = self.small_batches.iter().map(BatchCounter::snapshot);
        for (size, batch) in (1..).zip(small).filter(|(_, batch)| batch.compute_infer.count > 0) {
            *sum.batches.entry(size).or_default() += batch;
        }
        for (size, batch) in self.other_batches.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            *sum.batches.entry(*size).or_default() += *batch;
        }
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        if sum.responses.len() < responses.len() {
            sum.responses.resize_with(responses.len(), ResponseStatistics::default);
        }
        sum.responses.iter_mut().zip(responses.iter()).for_each(|(sum, response)| *sum += *response);
    }

    fn totals(&self) -> Totals {
        let success = self.success.snapshot();
        Totals {
            success: success.count,
            failures: self.failures.each_ref().map(|count| count.load(Relaxed)),
            inferences: self.inference_count.load(Relaxed),
            executions: self.execution_count.load(Relaxed),
            fallbacks: self.fallbacks.load(Relaxed),
            request_ns: success.ns,
            queue_ns: self.queue.snapshot().ns,
            compute_input_ns: self.compute_input.snapshot().ns,
            compute_infer_ns: self.compute_infer.snapshot().ns,
            compute_output_ns: self.compute_output.snapshot().ns,
            cache_hit: self.cache_hit.snapshot(),
            cache_miss: self.cache_miss.snapshot(),
        }
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

/// Executions of one batch size. Each has all three phases, so one count does for them.
#[derive(Debug, Default)]
struct BatchCounter {
    count: AtomicU64,
    input_ns: AtomicU64,
    infer_ns: AtomicU64,
    output_ns: AtomicU64,
}

impl BatchCounter {
    fn add(&self, times: ComputeTimes) {
        self.count.fetch_add(1, Relaxed);
        self.input_ns.fetch_add(nanos(times.input), Relaxed);
        self.infer_ns.fetch_add(nanos(times.infer), Relaxed);
        self.output_ns.fetch_add(nanos(times.output), Relaxed);
    }

    fn snapshot(&self) -> BatchStatistics {
        let count = self.count.load(Relaxed);
        let phase = |ns: &AtomicU64| DurationStatistics { count, ns: ns.load(Relaxed) };
        BatchStatistics {
            compute_input: phase(&self.input_ns),
            compute_infer: phase(&self.infer_ns),
            compute_output: phase(&self.output_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    fn executed(counters: &Counters, size: usize) {
        let started = Instant::now();
        let after = |nanos| started + Duration::from_nanos(nanos);
        let times =
            ExecutionTimes { started, inputs_ready: after(1), outputs_ready: after(3), ended: after(6) };
        counters.executed(size, times);
    }

    #[test]
    fn instances_count_apart_and_are_read_as_one() {
        let sets = Sets::default();
        thread::scope(|scope| {
            for instance in 0..4 {
                let sets = &sets;
                scope.spawn(move || {
                    let _guard = on_instance(instance);
                    for _ in 0..1000 {
                        sets.own().ended(
                            RequestOutcome::Success,
                            2,
                            Duration::from_nanos(7),
                            Duration::from_nanos(3),
                        );
                        executed(sets.own(), 2);
                        sets.own().responded(1, ResponseKind::Error, Duration::from_nanos(5), None);
                    }
                });
            }
        });
        assert_eq!(sets.all().count(), 4);
        let sum = sets.snapshot();
        assert_eq!((sum.success.count, sum.success.ns, sum.queue.ns), (4000, 28_000, 12_000));
        assert_eq!((sum.inference_count, sum.execution_count), (8000, 4000));
        let batch = sum.batches[&2];
        assert_eq!(batch.compute_input, DurationStatistics { count: 4000, ns: 4000 });
        assert_eq!(batch.compute_output, DurationStatistics { count: 4000, ns: 12_000 });
        let failed: Vec<_> = sum.responses.iter().map(|response| response.fail.count).collect();
        assert_eq!(failed, [0, 4000]);
        let totals = sets.totals();
        assert_eq!((totals.success, totals.executions, totals.queue_ns), (4000, 4000, 12_000));
    }

    #[test]
    fn each_kind_of_response_counts_what_was_done_for_it() {
        use ResponseKind::{Answer, Cancelled, Error, Nothing};
        // Without a time at which handing on began, nothing was handed on.
        for (kind, handed_on, infer, output) in [
            (Answer, Some(3), (1, 7), 1),
            (Error, Some(3), (1, 7), 1),
            (Error, None, (1, 10), 0),
            (Nothing, Some(3), (1, 7), 0),
            (Nothing, None, (1, 10), 0),
            (Cancelled, Some(3), (0, 0), 0),
        ] {
            for times in 1..4 {
                let counters = Counters::default();
                for _ in 0..times {
                    let handed_on = handed_on.map(Duration::from_nanos);
                    counters.responded(0, kind, Duration::from_nanos(10), handed_on);
                }
                let mut sum = InferStatistics::default();
                counters.add_to(&mut sum);
                let response = sum.responses[0];
                let of = |done: u64, ns| DurationStatistics { count: done * times, ns: done * times * ns };
                assert_eq!(response.compute_infer, of(infer.0, infer.1), "{kind:?}");
                assert_eq!(response.compute_output, of(output, 3), "{kind:?}");
                let ends = [response.success, response.fail, response.empty_response, response.cancel];
                assert_eq!(ends.map(|end| end.count).iter().sum::<u64>(), times, "{kind:?}");
            }
        }
    }

    #[test]
    fn batches_of_every_size_are_counted() {
        let counters = Counters::default();
        let sizes = [0, 1, SMALL_BATCHES, SMALL_BATCHES + 1, usize::MAX];
        for size in sizes {
            executed(&counters, size);
        }
        let mut sum = InferStatistics::default();
        counters.add_to(&mut sum);
        assert!(sum.batches.keys().eq(&sizes));
        assert!(sum.batches.values().all(|batch| batch.compute_infer.count == 1));
    }

    #[test]
    fn a_thread_goes_back_to_its_own_counters_after_an_instance_within_another() {
        let before = set();
        {
            let _outer = on_instance(before + 1);
            {
                let _inner = on_instance(before + 2);
                assert_eq!(set(), (before + 2) % SETS);
            }
            assert_eq!(set(), (before + 1) % SETS);
        }
        assert_eq!(set(), before);
    }

    #[test]
    fn sets_share_no_cache_line() {
        assert_eq!(align_of::<Counters>(), 128);
        assert_eq!(size_of::<Counters>() % 128, 0);
    }
}

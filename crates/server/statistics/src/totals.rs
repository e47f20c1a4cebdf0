//! The counters of a version for metrics: its statistics, continued across reloads.
//!
//! Nothing is counted twice: a version that replaces another keeps its counters, and adds them when read. Requests that
//! the older version still answers are counted too.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{DurationStatistics, Latencies, ModelStatistics, nanos};

/// Why a request failed. The numbers are places in [`Totals::failures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The backend failed, or did not answer.
    Backend,
    /// The request was cancelled before it was executed.
    Cancelled,
    /// Anything else.
    Other,
    /// The scheduler did not take it, or had to let it go: a full queue, a timeout.
    Rejected,
    /// The scheduler did not take it, because it would have waited for longer than it may.
    Shed,
}

impl FailureReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Backend, Self::Cancelled, Self::Other, Self::Rejected, Self::Shed];
}

/// Counters of a version over all that was loaded in its place without a gap. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Successful requests.
    pub success: u64,
    /// Failed requests, by the numbers of [`FailureReason`].
    pub failures: [u64; FailureReason::ALL.len()],
    /// Items of successful requests.
    pub inferences: u64,
    /// Executions.
    pub executions: u64,
    /// Failed steps of an ensemble that another step or a value replaced.
    pub fallbacks: u64,
    /// Successful requests, from arrival to answer.
    pub request_ns: u64,
    /// Successful requests: waiting for an instance.
    pub queue_ns: u64,
    /// Successful requests: gathering of inputs.
    pub compute_input_ns: u64,
    /// Successful requests: running the model.
    pub compute_infer_ns: u64,
    /// Successful requests: handing on outputs.
    pub compute_output_ns: u64,
    /// Requests that were answered from the response cache.
    pub cache_hit: DurationStatistics,
    /// Requests that were not found in the response cache.
    pub cache_miss: DurationStatistics,
}

impl Totals {
    /// The requests that failed for a reason.
    pub fn failures_by(&self, reason: FailureReason) -> u64 {
        self.failures[reason as usize]
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.success += other.success;
        self.failures.iter_mut().zip(other.failures).for_each(|(one, other)| *one += other);
        self.inferences += other.inferences;
        self.executions += other.executions;
        self.fallbacks += other.fallbacks;
        self.request_ns += other.request_ns;
        self.queue_ns += other.queue_ns;
        self.compute_input_ns += other.compute_input_ns;
        self.compute_infer_ns += other.compute_infer_ns;
        self.compute_output_ns += other.compute_output_ns;
        self.cache_hit += other.cache_hit;
        self.cache_miss += other.cache_miss;
    }
}

/// The counters of earlier versions that this one replaced.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// The sum of versions that have ended.
    sum: Totals,
    /// Versions that may still answer requests.
    counting: Vec<Arc<ModelStatistics>>,
}

impl ModelStatistics {
    /// New counters, for what takes the place of what counts in `before`, if there is anything.
    pub fn new(before: Option<&Arc<Self>>, latencies: Option<Latencies>) -> Self {
        let counters = before.map(Self::succeeding).unwrap_or_default();
        let of_before = before.and_then(|before| before.latencies.as_ref());
        let latencies = latencies.map(|new| match of_before {
            Some(old) if new.fits(old) => Arc::clone(old),
            _ => Arc::new(new),
        });
        Self { latencies, ..counters }
    }

    fn succeeding(before: &Arc<Self>) -> Self {
        let mut earlier = Earlier { sum: before.earlier.sum, counting: vec![Arc::clone(before)] };
        for older in &before.earlier.counting {
            // Only `before` refers to it: its version has ended, so the counters are final.
            if Arc::strong_count(older) == 1 {
                earlier.sum += older.counters.totals();
            } else {
                earlier.counting.push(Arc::clone(older));
            }
        }
        Self { earlier, ..Self::default() }
    }

    /// The counters for metrics.
    pub fn totals(&self) -> Totals {
        let mut totals = self.earlier.sum;
        let counting = self.earlier.counting.iter().map(Arc::as_ref);
        counting.chain([self]).for_each(|statistics| totals += statistics.counters.totals());
        totals
    }

    /// The distributions of latencies, if any are kept.
    pub fn latencies(&self) -> Option<&Latencies> {
        self.latencies.as_deref()
    }

    /// How long loading took the last time.
    pub fn load_duration(&self) -> Duration {
        Duration::from_nanos(self.load_ns.load(Relaxed))
    }

    /// Counts a load that took this long.
    pub fn loaded_in(&self, duration: Duration) {
        self.load_ns.store(nanos(duration), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::RequestOutcome;
    use super::*;

    fn success(statistics: &ModelStatistics) {
        statistics.record(RequestOutcome::Success, 2, Duration::from_nanos(7), Duration::from_nanos(3));
    }

    #[test]
    fn successor_continues_the_counters_and_its_predecessor_may_still_count() {
        let first = Arc::new(ModelStatistics::default());
        success(&first);
        let second = Arc::new(ModelStatistics::succeeding(&first));
        success(&second);
        success(&first);
        let expected = Totals { success: 3, inferences: 6, request_ns: 21, queue_ns: 9, ..Totals::default() };
        assert_eq!(second.totals(), expected);
        assert_eq!(second.snapshot().success.count, 1);
    }

    #[test]
    fn those_that_are_gone_are_summed_up_and_those_that_are_not_are_kept() {
        let mut kept = Vec::new();
        let mut last = Arc::new(ModelStatistics::default());
        for number in 0..10 {
            success(&last);
            let next = Arc::new(ModelStatistics::succeeding(&last));
            if number == 3 {
                kept.push(Arc::clone(&last));
            }
            last = next;
        }
        assert_eq!(last.earlier.counting.len(), 2);
        success(&kept[0]);
        assert_eq!(last.totals().success, 11);
    }

    #[test]
    fn failures_are_counted_by_their_reason() {
        let statistics = ModelStatistics::default();
        let fail = |ending| statistics.record(ending, 1, Duration::ZERO, Duration::ZERO);
        fail(RequestOutcome::Failure(FailureReason::Rejected));
        fail(RequestOutcome::Failure(FailureReason::Backend));
        fail(RequestOutcome::Failure(FailureReason::Backend));
        fail(RequestOutcome::Cancelled(FailureReason::Cancelled));
        (0..3).for_each(|_| fail(RequestOutcome::Failure(FailureReason::Shed)));
        assert_eq!(statistics.totals().failures, [2, 1, 0, 1, 3]);
        assert_eq!(statistics.totals().failures_by(FailureReason::Shed), 3);
        assert_eq!(statistics.snapshot().fail.count, 7);
    }
}

//! Refuses requests at once that would wait in the queue for longer than they may.
//!
//! The estimate of the wait is low on purpose: requests in front fill their batches, executions in progress are about to end, and
//! only two thirds of the average execution time count. So a request that could be executed in time is not refused
//! while execution times stay within a fifth of their average.
//!
//! A sequence ends with a refused request, as it does with a cancelled one: the model must not miss a request in the middle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Item;

/// The moving average of a model's execution times.
#[derive(Debug, Default)]
pub struct ServiceTime {
    /// In nanoseconds.
    mean: AtomicU64,
    executions: AtomicU64,
}

impl ServiceTime {
    /// The first executions are not counted: libraries allocate, compile and warm up in them.
    const COLD: u64 = 16;

    /// The executions that make an average.
    const ENOUGH: u64 = 16;

    /// A new sample weighs one part in this many.
    const WEIGHT: u64 = 16;

    /// Counts an execution.
    pub fn add(&self, sample: Duration) {
        // Samples taken at the same moment may overwrite each other, which an average tolerates.
        let executions = self.executions.load(Ordering::Relaxed).saturating_add(1);
        self.executions.store(executions, Ordering::Relaxed);
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        let mean = match executions.checked_sub(Self::COLD + 1) {
            None => return,
            Some(0) => sample,
            Some(_) => {
                let mean = self.mean.load(Ordering::Relaxed);
                mean - mean / Self::WEIGHT + sample / Self::WEIGHT
            }
        };
        self.mean.store(mean, Ordering::Relaxed);
    }

    /// The average; `None` before there were enough executions.
    pub fn mean(&self) -> Option<Duration> {
        let is_warm = self.executions.load(Ordering::Relaxed) >= Self::COLD + Self::ENOUGH;
        is_warm.then(|| Duration::from_nanos(self.mean.load(Ordering::Relaxed)))
    }

    /// A lower bound of a request's wait behind batches that these instances execute.
    pub(crate) fn least_wait(&self, batches: usize, instances: usize) -> Option<Duration> {
        let rounds = u32::try_from(batches / instances.max(1)).unwrap_or(u32::MAX);
        Some((self.mean()? * 2 / 3).saturating_mul(rounds))
    }
}

/// Whether requests are refused that would wait in a queue for longer than they may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadShedding {
    /// They are refused at once.
    #[default]
    On,
    /// They wait.
    Off,
}

/// Whether a request with this patience that would wait this long has to be refused.
pub(crate) fn exceeds_patience(
    item: &impl Item,
    patience: Option<Duration>,
    wait: Duration,
    now: Instant,
) -> bool {
    let expiry = patience.and_then(|patience| now.checked_add(patience));
    let latest = item.deadline().into_iter().chain(expiry).min();
    latest.is_some_and(|latest| is_too_late(now, wait, latest))
}

/// Whether a request that may not wait beyond `latest` has to be refused.
fn is_too_late(now: Instant, wait: Duration, latest: Instant) -> bool {
    !wait.is_zero() && now.checked_add(wait).is_none_or(|leaves| leaves > latest)
}

#[cfg(test)]
mod tests;

//! When a model gets another instance, and when one ends.
//!
//! Starting an instance costs the time that it takes, so it pays once requests have waited that long in sum: a start too many then
//! costs at most as much as the waiting did. In the same way, an instance ends once the others would have sufficed for a multiple of
//! that time.
//!
//! Knows neither a clock nor a server: time and load are arguments.

use std::time::Duration;

/// The least number of instances, and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub min: usize,
    pub max: usize,
}

/// The times by which the number of instances changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The time that an instance needs to start.
    pub start: Duration,
    /// The least time that an instance is kept without need.
    pub least_kept: Duration,
}

/// The load of a model since the last observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// The instances.
    pub instances: usize,
    /// Executions that wait for an instance.
    pub waiting: f64,
    /// How many instances executed on average.
    pub busy: f64,
}

/// The least time that an instance is taken to need to start.
const LEAST_START: Duration = Duration::from_millis(50);

/// An instance is kept without need for the time that this number of starts takes.
const KEPT_STARTS: u32 = 10;

/// The share of this time over which the need is averaged.
const AVERAGED: f64 = 1.0 / 3.0;

/// How much of the remaining instances may be in use for one to end: a queue grows long before all are always busy.
const FULL: f64 = 0.6;

/// The share of the instances in use from which on waiting requests wait for an instance, not for others of their batch.
const SATURATED: f64 = 0.9;

/// Decides about the number of instances of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controller {
    /// How long requests have waited in sum, in seconds, since the last start.
    waited: f64,
    /// A moving average of the instances in need: a single request now and then keeps no instance.
    need: f64,
    /// How long one instance less would have sufficed.
    spare: Duration,
}

impl Controller {
    /// The number of instances that the model should have, after `elapsed` with this load.
    pub(crate) fn observe(&mut self, load: Load, limits: Limits, elapsed: Duration, pace: Pace) -> usize {
        let start = pace.start.max(LEAST_START);
        let Load { instances, waiting, busy } = load;
        if instances < limits.min || instances > limits.max {
            *self = Self::default();
            return instances.clamp(limits.min, limits.max);
        }
        let count = instances as f64;
        if waiting > 0.0 && busy >= SATURATED * count {
            self.waited += waiting * elapsed.as_secs_f64();
        } else {
            self.waited *= (-elapsed.as_secs_f64() / start.as_secs_f64()).exp2();
        }
        let kept = start.saturating_mul(KEPT_STARTS).max(pace.least_kept);
        let weight = 1.0 - (-elapsed.as_secs_f64() / (kept.as_secs_f64() * AVERAGED)).exp();
        self.need += (busy + waiting - self.need) * weight;
        if self.need <= FULL * (count - 1.0) {
            self.spare += elapsed;
        } else {
            self.spare = Duration::ZERO;
        }
        let starts = (self.waited / start.as_secs_f64()) as usize;
        if starts > 0 {
            (self.waited, self.spare) = (0.0, Duration::ZERO);
            // At most twice as many at once, so that the effect of the new ones is seen first.
            return (instances + starts.min(instances)).min(limits.max);
        }
        if self.spare >= kept && instances > limits.min {
            // The next one ends sooner if the others are still too many.
            self.spare = kept / 2;
            return instances - 1;
        }
        instances
    }
}

#[cfg(test)]
mod tests;

//! The time of a search: how long measurements take, and how many of them fit.
//!
//! The overhead of a window is a load of the model, a warm-up and the end of the previous server. Each measurement refines the estimates
//! of the overhead and of the answers per second.

use std::time::Duration;

use super::{Slot, later_sizes};

/// The shortest and the longest window, in time and in answers of the fastest candidate; the larger one counts.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(15);
const FEWEST: f64 = 4.0;
const ENOUGH: f64 = 40.0;
/// The share of the search's time that the first window takes, as a divisor.
const PROBE: u32 = 200;
/// The share of the search's time for curves, at most, as a divisor.
const CURVES: u32 = 4;
/// The time for a point of a curve.
const SHORTEST_POINT: Duration = Duration::from_millis(150);
const POINT: Duration = Duration::from_millis(600);

/// The durations of measurements, as far as they are known.
#[derive(Debug)]
pub(super) struct Pace {
    measurements: u32,
    overheads: Duration,
    /// The highest rate.
    rate: f64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { measurements: 0, overheads: Duration::ZERO, rate: 0.0 }
    }

    pub(super) fn add(&mut self, took: Duration, window: Duration, rate: f64) {
        self.measurements += 1;
        self.overheads += took.saturating_sub(window);
        self.rate = self.rate.max(rate);
    }

    /// The mean overhead of a window.
    pub(super) fn overhead(&self) -> Duration {
        self.overheads.checked_div(self.measurements).unwrap_or_default()
    }

    /// The time for some answers.
    fn answers(&self, count: f64) -> Duration {
        Duration::try_from_secs_f64(count / self.rate).unwrap_or_default()
    }

    /// The shortest window that shows a difference.
    pub(super) fn shortest(&self) -> Duration {
        SHORTEST.max(self.answers(FEWEST))
    }

    pub(super) fn longest(&self) -> Duration {
        LONGEST.max(self.answers(ENOUGH))
    }

    /// The first measurement, of the present configuration.
    pub(super) fn probe(&self, time: Duration) -> Slot {
        Self::slot((time / PROBE).clamp(SHORTEST, LONGEST))
    }

    /// A measurement with a window. A constant warm-up keeps overheads comparable.
    pub(super) fn slot(window: Duration) -> Slot {
        Slot { warm_up: SHORTEST, window }
    }

    /// The window for the next of `count` measurements in some time. None if the time is too short for one with the window `shortest`.
    pub(super) fn window(&self, time: Duration, count: usize, shortest: Duration) -> Option<Duration> {
        let each = time / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let least = self.overhead() + shortest;
        match each >= least {
            true => Some((each - self.overhead()).min(self.longest().max(shortest))),
            false => (time >= least).then_some(shortest),
        }
    }

    /// The time for measurements with a window.
    pub(super) fn all(&self, count: usize, window: Duration) -> Duration {
        (self.overhead() + window).saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// The part of the time for the first measurements of `count` candidates, of which `untried` are left after `elapsed`.
    pub(super) fn first_round(
        &self,
        time: Duration,
        count: usize,
        elapsed: Duration,
        untried: usize,
    ) -> Duration {
        let later = later_sizes(count + 1);
        let measurements = count + later.iter().sum::<usize>();
        // Rounds take equal times, but none of them has shorter windows than the one before.
        let share = (1.0 / (1 + later.len()) as f64).min(count as f64 / measurements as f64);
        let all = elapsed + self.all(untried, self.shortest());
        let share = time.mul_f64(share).max(all.min(time / 3 * 2));
        let is_over = share < all && time - share < self.all(2, self.shortest());
        // Too little time remains for a second round.
        if is_over { time } else { share }
    }

    /// The sizes of the later rounds, of those planned, that fit into some time. Each has two candidates or more.
    pub(super) fn later_rounds(&self, planned: &[usize], time: Duration, shortest: Duration) -> Vec<usize> {
        let slot = (self.overhead() + shortest).as_nanos().max(1);
        (0..planned.len())
            .find_map(|skipped| {
                let sizes = planned.get(skipped..)?;
                let each =
                    usize::try_from(time.as_nanos() / sizes.len() as u128 / slot).unwrap_or(usize::MAX);
                let mut sizes: Vec<_> = sizes.iter().map(|&size| size.min(each)).collect();
                // Two rounds of the same candidates are one with longer windows.
                sizes.dedup();
                (each >= 2).then_some(sizes)
            })
            .unwrap_or_default()
    }

    /// The time for the points of two curves, and each of them, if the search has enough time for them.
    pub(super) fn curves(&self, points: usize, budget: Duration) -> Option<(Duration, Duration)> {
        let points = 2 * u32::try_from(points).unwrap_or(u32::MAX);
        let loads = self.overhead() * 2;
        let most = POINT.max(self.answers(2.0 * FEWEST));
        let point = ((budget / CURVES).saturating_sub(loads) / points).min(most);
        let is_enough = point >= SHORTEST_POINT.max(self.answers(FEWEST));
        is_enough.then(|| (loads + point * points, point))
    }

    /// A sufficient budget for `count` candidates.
    pub(super) fn enough(&self, budget: Duration, count: usize) -> Duration {
        let probe = self.overhead() + self.shortest();
        // One sample of the overhead is not much to go by.
        let window = if self.measurements > 1 { self.shortest() } else { self.shortest() * 2 };
        // The shares of the first measurement, of the first round and of the curves.
        let all = (probe + self.all(count, window).mul_f64(1.5)).mul_f64(1.1 / 0.7);
        let least = if self.measurements > 0 { budget.mul_f64(1.5) } else { budget * 4 };
        let seconds = all.max(least).as_secs() + 1;
        let step = if seconds > 100 { 30 } else { 5 };
        Duration::from_secs(seconds.next_multiple_of(step))
    }
}

//! Batch sizes and latencies of a version in the few bytes of a sample.

use nereid_core::{LatencyPhase, LatencySummary, ModelStatistics};

/// Executions by batch size: 1, 2, up to 4, and so on; the last has all above 64.
pub(crate) type BatchCounts = [u64; 8];

/// The place of a batch size among the counts.
fn place(size: usize) -> usize {
    let doublings = size.max(1).next_power_of_two().trailing_zeros() as usize;
    doublings.min(BatchCounts::default().len() - 1)
}

/// The executions of a version by batch size, since it was loaded.
pub(crate) fn batches(statistics: &ModelStatistics) -> BatchCounts {
    let mut counts = BatchCounts::default();
    for (size, batch) in statistics.snapshot().batches {
        if let Some(count) = counts.get_mut(place(size)) {
            *count += batch.compute_infer.count;
        }
    }
    counts
}

/// The shares of executions by batch size, in 255ths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchShares([u8; 8]);

impl BatchShares {
    /// The shares since an earlier time. The counts of a version that was loaded again in between begin at zero.
    pub(crate) fn between(earlier: &BatchCounts, now: &BatchCounts) -> Self {
        let restarted = now.iter().zip(earlier).any(|(now, before)| now < before);
        let mut counts = *now;
        if !restarted {
            counts.iter_mut().zip(earlier).for_each(|(now, before)| *now -= before);
        }
        let most = counts.iter().sum::<u64>().max(1) as f64;
        Self(counts.map(|count| (255.0 * count as f64 / most).round() as u8))
    }

    /// From 0 to 1.
    pub(crate) fn shares(self) -> [f64; 8] {
        self.0.map(|share| f64::from(share) / 255.0)
    }
}

/// The phases of latencies, in the order of samples.
const PHASES: [LatencyPhase; 5] = [
    LatencyPhase::Request,
    LatencyPhase::Queue,
    LatencyPhase::ComputeInput,
    LatencyPhase::ComputeInfer,
    LatencyPhase::ComputeOutput,
];
/// The quantiles of latencies.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// The quantiles of latencies of the last minute: of half of the requests in each phase, then of 99 %. All are 0 if the server keeps
/// none. Values are exact to a thousandth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantiles([u16; 10]);

/// Steps of a doubling: the largest value that fits is more than an hour.
const STEPS: f64 = 2000.0;

impl Quantiles {
    pub(crate) fn of(statistics: &ModelStatistics) -> Self {
        let Some(summaries) = statistics.latencies().and_then(|latencies| latencies.summaries()) else {
            return Self::default();
        };
        let micros = |phase: LatencyPhase, quantile| {
            let summary = LatencyPhase::ALL.iter().zip(&summaries).find(|(one, _)| **one == phase);
            summary.and_then(|(_, summary): (_, &LatencySummary)| summary.quantile(quantile)).unwrap_or(0.0)
        };
        let mut all = QUANTILES.into_iter().flat_map(|quantile| PHASES.map(|phase| micros(phase, quantile)));
        Self::from_micros(std::array::from_fn(|_| all.next().unwrap_or(0.0)))
    }

    fn from_micros(values: [f64; 10]) -> Self {
        Self(values.map(|micros| (STEPS * (1.0 + micros.max(0.0)).log2()).round() as u16))
    }

    /// The values in microseconds; `None` without any.
    pub(crate) fn micros(self) -> Option<[f64; 10]> {
        let micros = |steps: u16| (f64::from(steps) / STEPS).exp2() - 1.0;
        (self != Self::default()).then(|| self.0.map(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_share_places_by_their_doublings() {
        for (size, expected) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (64, 6), (65, 7), (10_000, 7)]
        {
            assert_eq!(place(size), expected, "{size}");
        }
    }

    #[test]
    fn shares_are_those_of_the_executions_since_the_earlier_time() {
        let counts = |one, two| [one, two, 0, 0, 0, 0, 0, 0];
        for (earlier, now, shares) in [
            (counts(0, 0), counts(0, 0), [0.0, 0.0]),
            (counts(5, 5), counts(6, 8), [0.25, 0.75]),
            (counts(0, 0), counts(u64::MAX / 4, 0), [1.0, 0.0]),
            // Loaded again.
            (counts(5, 5), counts(1, 1), [0.5, 0.5]),
        ] {
            let found = BatchShares::between(&earlier, &now).shares();
            assert!(
                found.iter().zip(shares).all(|(found, share)| (found - share).abs() < 0.003),
                "{found:?}"
            );
        }
    }

    #[test]
    fn quantiles_keep_their_values_but_for_a_thousandth() {
        let values = [0.0, 0.4, 1.0, 17.3, 250.0, 1e3, 12_345.6, 1e6, 6e7, 3.6e9];
        let kept = Quantiles::from_micros(values).micros().unwrap();
        for (value, kept) in values.into_iter().zip(kept) {
            assert!((value - kept).abs() <= 0.001 * (value + 1.0), "{value}: {kept}");
        }
        assert_eq!(Quantiles::from_micros([0.0; 10]).micros(), None);
        assert!(Quantiles::from_micros([f64::MAX; 10]).micros().unwrap()[0] > 4e9);
    }
}

//! The results of a version: errors, latencies and comparisons, and the bounds within which its true rates are likely to be.

use std::time::Duration;

/// Sub-divisions of each power of two: values of one bucket differ by an eighth at most.
const STEPS: u32 = 8;

/// How many standard deviations a difference must have before a few results are enough for a decision. They are looked at after
/// every result, so that three would be reached by chance too often.
const SURE: f64 = 4.0;

/// The results of a version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trial {
    /// Requests that were answered or failed.
    pub results: u64,
    /// Failed requests among the results.
    pub errors: u64,
    /// The latencies of the answered ones.
    pub latencies: LatencyCounts,
    /// Copies of requests whose answers were compared with the established version's.
    pub compared: u64,
    /// Compared answers that differed.
    pub different: u64,
}

impl Trial {
    /// Counts a result: the latency of an answer, `None` for an error.
    pub(crate) fn add(&mut self, latency: Option<Duration>) {
        self.results += 1;
        match latency {
            Some(latency) => self.latencies.add(latency),
            None => self.errors += 1,
        }
    }

    /// The share of requests that failed.
    pub(crate) fn error_rate(&self) -> f64 {
        rate(self.errors, self.results)
    }

    /// The share of compared answers that differed.
    pub(crate) fn difference_rate(&self) -> f64 {
        rate(self.different, self.compared)
    }
}

fn rate(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The least and the greatest rate that such counts are likely to come from (Wilson's interval).
pub(crate) fn likely_rates(part: u64, whole: u64) -> (f64, f64) {
    if whole == 0 {
        return (0.0, 1.0);
    }
    let (count, rate, square) = (whole as f64, rate(part, whole), SURE * SURE);
    let middle = rate + square / (2.0 * count);
    let spread = SURE * (rate * (1.0 - rate) / count + square / (4.0 * count * count)).sqrt();
    let scale = 1.0 + square / count;
    (((middle - spread) / scale).max(0.0), ((middle + spread) / scale).min(1.0))
}

/// Counts of latencies in buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LatencyCounts {
    buckets: Vec<u64>,
    count: u64,
}

impl LatencyCounts {
    fn add(&mut self, latency: Duration) {
        let bucket = bucket(latency);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The latency that this share of them does not exceed, to an eighth; zero if there are none.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        self.at_rank((share * self.count as f64).ceil())
    }

    /// The least and the greatest latency that are likely for this share.
    pub(crate) fn likely_quantiles(&self, share: f64) -> (Duration, Duration) {
        let count = self.count as f64;
        let (rank, spread) = (share * count, SURE * (count * share * (1.0 - share)).sqrt());
        let least = (rank - spread).floor();
        let greatest = (rank + spread).ceil();
        let low = if least < 1.0 { Duration::ZERO } else { self.at_rank(least) };
        let high = if greatest > count { Duration::MAX } else { self.at_rank(greatest) };
        (low, high)
    }

    fn at_rank(&self, rank: f64) -> Duration {
        let rank = rank.max(1.0) as u64;
        let mut below = 0;
        let reached = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        reached.map_or(Duration::ZERO, least_of)
    }
}

fn bucket(latency: Duration) -> usize {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(u64::from(STEPS));
    let exponent = nanos.ilog2();
    let step = (nanos >> (exponent - STEPS.ilog2())) as u32 % STEPS;
    ((exponent - STEPS.ilog2()) * STEPS + step) as usize
}

/// The least latency of a bucket.
fn least_of(bucket: usize) -> Duration {
    let (exponent, step) = (bucket as u32 / STEPS, bucket as u32 % STEPS);
    Duration::from_nanos(u64::from(STEPS + step) << exponent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_exact_to_an_eighth(
            nanos in prop::collection::vec(8..u64::MAX, 1..300),
            share in 0.01..1.0_f64,
        ) {
            let mut counts = LatencyCounts::default();
            nanos.iter().for_each(|nanos| counts.add(Duration::from_nanos(*nanos)));
            let mut sorted = nanos;
            sorted.sort_unstable();
            let exact = sorted[((share * sorted.len() as f64).ceil() as usize).max(1) - 1] as f64;
            let found = counts.quantile(share).as_nanos() as f64;
            prop_assert!(found <= exact && exact <= found * 1.126, "{found} for {exact}");
            let (low, high) = counts.likely_quantiles(share);
            prop_assert!(low <= counts.quantile(share) && counts.quantile(share) <= high);
        }

        #[test]
        fn likely_rates_enclose_the_rate(part in 0..1000_u64, more in 0..1000_u64) {
            let (low, high) = likely_rates(part, part + more);
            prop_assert!(low <= rate(part, part + more).max(low) && (0.0..=1.0).contains(&low));
            prop_assert!(part + more == 0 || rate(part, part + more) <= high + 1e-12);
            let (tighter, wider) = likely_rates(part * 100, (part + more) * 100);
            prop_assert!(tighter >= low - 1e-12 && wider <= high + 1e-12);
        }
    }

    #[test]
    fn times_below_and_above_the_buckets_are_counted() {
        let mut counts = LatencyCounts::default();
        assert_eq!(counts.quantile(0.5), Duration::ZERO);
        counts.add(Duration::ZERO);
        counts.add(Duration::MAX);
        assert_eq!((counts.count(), counts.quantile(0.1)), (2, Duration::from_nanos(8)));
        assert!(counts.quantile(1.0) > Duration::from_secs(1 << 33));
    }
}

//! When a batch that a collector did not accept is sent again: after growing pauses, for a limited time (OTLP 1.x,
//! "Failures" and "OTLP/HTTP Throttling").

use std::time::Duration;

/// The pauses between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryRules {
    /// The first pause, which doubles with each attempt.
    pub first: Duration,
    /// The longest pause, unless the collector names a longer one.
    pub longest: Duration,
    /// The sum of all pauses of a batch.
    pub limit: Duration,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(16),
            limit: Duration::from_secs(60),
        }
    }
}

/// The pauses of one batch.
#[derive(Debug)]
pub(super) struct Backoff {
    rules: RetryRules,
    next: Duration,
    spent: Duration,
}

impl Backoff {
    pub(super) fn new(rules: RetryRules) -> Self {
        Self { rules, next: rules.first, spent: Duration::ZERO }
    }

    /// The next pause, at least as long as the collector's `retry_after`; `None` if that exceeds the limit. `random` is
    /// from 0 to 1: clients that failed together do not return together.
    pub(super) fn pause(&mut self, retry_after: Option<Duration>, random: f64) -> Option<Duration> {
        let pause = self.next.mul_f64(0.5 + random / 2.0).max(retry_after.unwrap_or_default());
        self.spent = self.spent.saturating_add(pause);
        self.next = self.next.saturating_mul(2).min(self.rules.longest);
        (self.spent <= self.rules.limit).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn pauses_double_up_to_the_longest_within_the_limit() {
        for (random, expected) in [
            (1.0, &[1.0, 2.0, 4.0, 8.0, 16.0, 16.0][..]),
            (0.0, &[0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        ] {
            let mut backoff = Backoff::new(RetryRules::default());
            let pauses: Vec<_> = std::iter::from_fn(|| backoff.pause(None, random)).collect();
            assert_eq!(pauses, expected.iter().copied().map(secs).collect::<Vec<_>>(), "{random}");
        }
    }

    #[test]
    fn collector_may_ask_for_longer_pauses_within_the_limit() {
        for (retry_after, expected) in [
            (0.0, Some(1.0)),
            (1.0, Some(1.0)),
            (30.0, Some(30.0)),
            (60.0, Some(60.0)),
            (61.0, None),
            (1e9, None),
        ] {
            let pause = Backoff::new(RetryRules::default()).pause(Some(secs(retry_after)), 1.0);
            assert_eq!(pause, expected.map(secs), "{retry_after}");
        }
    }

    #[test]
    fn pauses_stay_within_the_limit_whatever_chance_and_collectors_do() {
        proptest::proptest!(|(
            steps in proptest::collection::vec((0.0..=1.0_f64, proptest::option::of(0..100_u64)), 1..50)
        )| {
            let rules = RetryRules::default();
            let mut backoff = Backoff::new(rules);
            let mut sum = Duration::ZERO;
            for (random, retry_after) in steps {
                let retry_after = retry_after.map(Duration::from_secs);
                let Some(pause) = backoff.pause(retry_after, random) else { break };
                assert!(pause >= retry_after.unwrap_or_default().max(rules.first / 2));
                sum += pause;
            }
            assert!(sum <= rules.limit);
        });
    }
}

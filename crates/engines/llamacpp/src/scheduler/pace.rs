//! How many prompt tokens a batch may have without delaying requests that already generate, or cancellations.

use std::time::{Duration, Instant};

/// How long the prompt tokens of a batch may take while other requests wait for their next token.
const BUDGET: Duration = Duration::from_millis(100);

/// How long the prompt tokens of a batch may take while no other request waits. Requests end only between two batches.
const BUDGET_ALONE: Duration = Duration::from_secs(5);

/// The prompt tokens of a batch before any was measured.
const UNMEASURED: usize = 128;

/// The fewest prompt tokens of a batch: with fewer, long prompts would take much longer.
const FEWEST: usize = 16;

/// Measures the time of prompt tokens.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time of one token, as a moving average.
    per_token: Option<Duration>,
    /// Begin and length of the last batch with prompt tokens, until the next step.
    running: Option<(Instant, usize)>,
}

impl Pace {
    /// A step begins now.
    pub(super) fn begin_step(&mut self, now: Instant) {
        let Some((started, tokens)) = self.running.take() else { return };
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
        let measured = now.saturating_duration_since(started) / tokens;
        if !measured.is_zero() {
            self.per_token = Some(self.per_token.map_or(measured, |known| (known * 3 + measured) / 4));
        }
    }

    /// A batch of `tokens` begins now, of which `of_prompts` belong to prompts.
    pub(super) fn begin_batch(&mut self, now: Instant, tokens: usize, of_prompts: usize) {
        // Batches without prompts have other costs.
        self.running = (of_prompts >= FEWEST).then_some((now, tokens));
    }

    /// The engine pauses: the time until the next step is not a batch's.
    pub(super) fn pause(&mut self) {
        self.running = None;
    }

    /// How many prompt tokens a batch may have, `alone` or while other requests generate.
    pub(super) fn prompt_tokens(&self, alone: bool) -> usize {
        let Some(per_token) = self.per_token else { return UNMEASURED };
        let budget = if alone { BUDGET_ALONE } else { BUDGET };
        let tokens = budget.as_nanos() / per_token.as_nanos().max(1);
        usize::try_from(tokens).unwrap_or(usize::MAX).max(FEWEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_engines_read_more_of_a_prompt_at_once() {
        for (micros, expected) in
            [(0, UNMEASURED), (1, 100_000), (100, 1000), (1000, 100), (5000, 20), (40_000, FEWEST)]
        {
            let (mut pace, mut now) = (Pace::default(), Instant::now());
            for _ in 0..5 {
                pace.begin_step(now);
                pace.begin_batch(now, 100, 96);
                now += Duration::from_micros(micros * 100);
            }
            assert_eq!(pace.prompt_tokens(false), expected, "{micros} µs");
            let alone =
                if expected == UNMEASURED { expected } else { (5_000_000 / micros).try_into().unwrap() };
            assert_eq!(pace.prompt_tokens(true), alone, "{micros} µs");
        }
    }

    #[test]
    fn only_batches_with_prompts_are_measured() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        pace.begin_batch(now, 8, 0);
        now += Duration::from_secs(1);
        pace.begin_step(now);
        assert_eq!(pace.prompt_tokens(false), UNMEASURED);
        pace.begin_batch(now, 100, 100);
        pace.pause();
        now += Duration::from_secs(60);
        pace.begin_step(now);
        assert_eq!(pace.prompt_tokens(false), UNMEASURED);
    }

    #[test]
    fn one_slow_batch_counts_for_a_quarter() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for millis in [100, 500] {
            pace.begin_batch(now, 100, 100);
            now += Duration::from_millis(millis);
            pace.begin_step(now);
        }
        // From 1 ms to (3 * 1 + 5) / 4 ms for a token.
        assert_eq!(pace.prompt_tokens(false), 50);
    }
}

//! Logs the progress of fetches.

use std::pin::pin;
use std::time::{Duration, Instant};

use nereid_core::Progress;
use tokio::time::interval_at;

/// A fetch whose progress is logged.
pub(crate) struct Logged<'a> {
    /// The source's address.
    what: String,
    progress: &'a Progress,
    /// The time between two lines.
    every: Duration,
    began: Instant,
    /// The bytes present when it began.
    before: u64,
}

impl<'a> Logged<'a> {
    pub(crate) fn new(what: String, progress: &'a Progress, every: Duration) -> Self {
        Self { what, progress, every, began: Instant::now(), before: progress.bytes().0 }
    }

    /// Runs a future, and logs the progress every few seconds.
    pub(crate) async fn during<T>(&self, act: impl Future<Output = T>) -> T {
        let mut act = pin!(act);
        let mut ticks = interval_at(tokio::time::Instant::now() + self.every, self.every);
        loop {
            tokio::select! {
                biased;
                outcome = &mut act => return outcome,
                _ = ticks.tick() => self.log(),
            }
        }
    }

    /// Logs the received bytes and the total, unless everything was already present.
    pub(crate) fn finish(&self, bytes: u64, files: usize) {
        let fetched = self.progress.bytes().0 - self.before;
        if fetched == 0 {
            return;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        tracing::info!(
            "fetched {} of {} ({files} files) of '{}' in {seconds:.1} s, {}/s",
            in_units(fetched),
            in_units(bytes),
            self.what,
            in_units(per_second(fetched, seconds))
        );
    }

    fn log(&self) {
        let (fetched, total) = self.progress.bytes();
        let rate = per_second(fetched - self.before, self.began.elapsed().as_secs_f64());
        let left = total.saturating_sub(fetched).checked_div(rate);
        let left = left.map_or_else(|| "nothing arrives".to_owned(), |seconds| format!("{seconds} s left"));
        tracing::info!(
            "fetching '{}': {} of {}, {}/s, {left}",
            self.what,
            in_units(fetched),
            in_units(total),
            in_units(rate)
        );
    }
}

/// Formats a number of bytes for people.
fn in_units(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        None => format!("{bytes} bytes"),
    }
}

fn per_second(bytes: u64, seconds: f64) -> u64 {
    // Rounding errors do not matter here.
    (bytes as f64 / seconds.max(0.001)) as u64
}

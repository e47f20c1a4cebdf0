//! Logs the progress of fetches.

use std::pin::pin;
use std::time::Duration;

use nereid_core::Progress;
use tokio::time::{Instant, interval_at};

/// Progress is reported after this many bytes: each report wakes all waiting tasks.
pub(crate) const REPORTED: u64 = 1 << 20;

/// A fetch whose progress is logged.
pub(crate) struct LoggedFetch<'a> {
    /// The source's address.
    what: String,
    progress: &'a Progress,
    /// The time between two lines.
    every: Duration,
    began: Instant,
    /// The bytes present when it began.
    before: u64,
}

impl<'a> LoggedFetch<'a> {
    pub(crate) fn new(what: String, progress: &'a Progress, every: Duration) -> Self {
        Self { what, progress, every, began: Instant::now(), before: progress.bytes().0 }
    }

    /// Runs a future, and logs the progress every few seconds.
    pub(crate) async fn during<T>(&self, act: impl Future<Output = T>) -> T {
        let mut act = pin!(act);
        let mut ticks = interval_at(Instant::now() + self.every, self.every);
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

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tokio::time::sleep;

    use super::*;

    /// The log's output.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs a future that fetches, and returns the lines logged during it and at its end.
    async fn logged(before: u64, total: u64, act: impl AsyncFnOnce(&Progress)) -> Vec<String> {
        let (lines, progress) = (Lines::default(), Progress::default());
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_level(false)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        progress.expect(total);
        progress.advance(before);
        let logged = LoggedFetch::new("s3://b/m".into(), &progress, Duration::from_secs(10));
        logged.during(act(&progress)).await;
        logged.finish(total, 3);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_fetch_says_every_few_seconds_how_far_it_is() {
        let lines = logged(1_000_000, 10_000_000, async |progress| {
            sleep(Duration::from_secs(15)).await;
            progress.advance(3_000_000);
            sleep(Duration::from_secs(15)).await;
            progress.advance(6_000_000);
        });
        let expected = [
            "fetching 's3://b/m': 1.0 MB of 10.0 MB, 0 bytes/s, nothing arrives",
            "fetching 's3://b/m': 4.0 MB of 10.0 MB, 150.0 kB/s, 40 s left",
            "fetched 9.0 MB of 10.0 MB (3 files) of 's3://b/m' in 30.0 s, 300.0 kB/s",
        ];
        assert_eq!(lines.await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_fetch_is_one_line_and_one_of_nothing_none() {
        let lines = logged(0, 5_300_000_000, async |progress| {
            sleep(Duration::from_secs(2)).await;
            progress.advance(5_300_000_000);
        });
        assert_eq!(lines.await, ["fetched 5.3 GB of 5.3 GB (3 files) of 's3://b/m' in 2.0 s, 2.6 GB/s"]);
        let lines = logged(700, 700, async |_| sleep(Duration::from_secs(9)).await);
        assert_eq!(lines.await, Vec::<String>::new());
    }
}

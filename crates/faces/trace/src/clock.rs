//! Time stamps of traces: nanoseconds of the monotonic clock, or since the Unix epoch.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Number of paired readings of the two clocks.
const READINGS: usize = 8;

/// One moment on both clocks: `Instant`, and the monotonic clock, which is the same clock on Linux but with a readable
/// value. Taken from the reading with the shortest time between the two.
static MOMENT: LazyLock<(Instant, Duration)> = LazyLock::new(|| {
    let read = |_| {
        let before = Instant::now();
        let now = clock_gettime(ClockId::Monotonic);
        let took = before.elapsed();
        let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
        let now = seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or_default());
        (took, before + took / 2, now)
    };
    let (_, instant, now) = (0..READINGS).map(read).min().unwrap_or_else(|| read(0));
    (instant, now)
});

/// Nanoseconds of the monotonic clock, as `std::chrono::steady_clock` has them in Triton.
pub(crate) fn monotonic(at: Instant) -> u64 {
    let (instant, now) = *MOMENT;
    let since = match at.checked_duration_since(instant) {
        Some(after) => now + after,
        None => now.saturating_sub(instant.saturating_duration_since(at)),
    };
    nanos(since)
}

/// Converts moments to nanoseconds since the Unix epoch. All of them use one reading of the system's clock, so that
/// intervals stay correct even if that clock is set in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    instant: Instant,
    since: Duration,
}

impl Epoch {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), since }
    }

    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        nanos(match at.checked_duration_since(self.instant) {
            Some(after) => self.since + after,
            None => self.since.saturating_sub(self.instant.saturating_duration_since(at)),
        })
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_moments_keep_their_intervals() {
        let (now, step) = (Instant::now(), Duration::from_nanos(17));
        assert_eq!(monotonic(now + step) - monotonic(now), 17);
        let clock = clock_gettime(ClockId::Monotonic);
        let clock =
            u64::try_from(clock.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(clock.tv_nsec).unwrap();
        assert!(clock >= monotonic(now) && clock - monotonic(now) < 1_000_000_000);
    }

    #[test]
    fn epoch_matches_the_system_clock() {
        let epoch = Epoch::now();
        let now = Instant::now();
        assert_eq!(epoch.nanos(now + Duration::from_nanos(5)) - epoch.nanos(now), 5);
        assert!(epoch.nanos(now - Duration::from_micros(1)) < epoch.nanos(now));
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        assert!(system.abs_diff(epoch.nanos(Instant::now()).into()) < 1_000_000_000);
    }
}

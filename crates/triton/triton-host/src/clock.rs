//! Times as backends report them: nanoseconds of the monotonic clock.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// One moment, on both clocks.
static MOMENT: LazyLock<(Instant, u64)> = LazyLock::new(|| {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an existing clock, and a place for its time. `rustix` reads the time in a way that memory checkers
    // cannot follow.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    (Instant::now(), seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default())
});

/// Converts a backend's time. Times before the machine was started count as now.
pub(crate) fn instant(nanos: u64) -> Instant {
    let (instant, then) = *MOMENT;
    let moment = match nanos.checked_sub(then) {
        Some(later) => instant.checked_add(Duration::from_nanos(later)),
        None => instant.checked_sub(Duration::from_nanos(then - nanos)),
    };
    moment.unwrap_or_else(Instant::now)
}

/// Converts a time for backends.
pub(crate) fn nanos(at: Instant) -> u64 {
    let (instant, then) = *MOMENT;
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match at.checked_duration_since(instant) {
        Some(later) => then.saturating_add(nanos(later)),
        None => then.saturating_sub(nanos(instant.saturating_duration_since(at))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_preserves_time_differences() {
        let base = MOMENT.1;
        assert_eq!(instant(base + 5) - instant(base), Duration::from_nanos(5));
        assert_eq!(instant(base) - instant(base - 7), Duration::from_nanos(7));
        assert!(instant(base) <= Instant::now());
        assert_eq!([base - 9, base, base + 9].map(|then| nanos(instant(then))), [base - 9, base, base + 9]);
    }
}

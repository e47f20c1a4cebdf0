//! The clock of statistics: nanoseconds of the monotonic clock, which the server reads too.

/// The time now.
pub(crate) fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the address may be written. The call fails for no clock that exists, and leaves zero if it did.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_monotonic() {
        let first = now();
        assert!(first > 0);
        assert!(now() >= first);
    }
}

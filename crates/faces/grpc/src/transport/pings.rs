//! Limits on client pings: gRPC's rules for ping strikes.

use std::time::Duration;

use tokio::time::Instant;

/// The interval between pings of a client without calls, unless it may ping as others do.
const WITHOUT_CALLS: Duration = Duration::from_secs(2 * 3600);

/// Limits on client pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingRules {
    /// Minimum time between two pings while the server sends nothing.
    pub interval: Duration,
    /// The connection is closed when more pings than this come too soon; 0 for no limit.
    pub max_strikes: u32,
    /// Whether a client without calls in progress may ping as often as others; otherwise every two hours.
    pub without_calls: bool,
}

impl Default for PingRules {
    fn default() -> Self {
        Self { interval: Duration::from_secs(300), max_strikes: 2, without_calls: false }
    }
}

/// The pings of a connection, and their limits.
#[derive(Debug)]
pub(super) struct PingLimits {
    rules: PingRules,
    pings: Pings,
}

impl PingLimits {
    pub(super) fn new(rules: PingRules) -> Self {
        Self { rules, pings: Pings::default() }
    }
}

impl nereid_http2::Pings for PingLimits {
    fn arrived(&mut self, has_requests: bool) -> bool {
        self.pings.came(&self.rules, Instant::now(), has_requests)
    }

    fn replied(&mut self) {
        self.pings.forgive();
    }
}

/// The pings of one client.
#[derive(Debug, Default)]
struct Pings {
    last: Option<Instant>,
    strikes: u32,
}

impl Pings {
    /// Counts a ping and returns whether it was one too many.
    fn came(&mut self, rules: &PingRules, now: Instant, calls: bool) -> bool {
        let interval = if calls || rules.without_calls { rules.interval } else { WITHOUT_CALLS };
        let soon = self.last.is_some_and(|last| now < last + interval);
        self.last = Some(now);
        if soon {
            self.strikes = self.strikes.saturating_add(1);
        }
        soon && rules.max_strikes != 0 && self.strikes > rules.max_strikes
    }

    /// The server sent something: clients may ping to check that the connection still works.
    fn forgive(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: PingRules =
        PingRules { interval: Duration::from_secs(10), max_strikes: 2, without_calls: false };

    /// Which of pings at these seconds, without anything sent, is one too many.
    fn too_many(rules: &PingRules, seconds: &[u64], calls: bool) -> Option<usize> {
        let start = Instant::now();
        let mut pings = Pings::default();
        seconds.iter().position(|second| pings.came(rules, start + Duration::from_secs(*second), calls))
    }

    #[test]
    fn pings_within_the_interval_cause_no_strikes() {
        assert_eq!(too_many(&RULES, &[0, 10, 20, 30, 40, 50, 60], true), None);
    }

    #[test]
    fn strike_beyond_the_limit_closes_the_connection() {
        assert_eq!(too_many(&RULES, &[0, 1, 2, 3], true), Some(3));
        assert_eq!(too_many(&RULES, &[0, 1, 20, 21, 40, 41], true), Some(5), "strikes add up");
        assert_eq!(too_many(&PingRules { max_strikes: 0, ..RULES }, &[0; 1000], true), None);
    }

    #[test]
    fn pings_without_calls_are_limited_to_two_hours_unless_allowed() {
        assert_eq!(too_many(&RULES, &[0, 100, 200, 300], false), Some(3));
        assert_eq!(too_many(&RULES, &[0, 7200, 14400, 21600], false), None);
        assert_eq!(too_many(&PingRules { without_calls: true, ..RULES }, &[0, 10, 20, 30], false), None);
    }

    #[test]
    fn sent_frames_reset_ping_strikes() {
        let now = Instant::now();
        let mut pings = Pings::default();
        for _ in 0..1000 {
            assert!(!pings.came(&RULES, now, true));
            pings.forgive();
        }
    }
}

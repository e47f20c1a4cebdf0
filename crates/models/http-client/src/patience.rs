//! How long servers may be silent, and when requests are repeated.

use std::time::Duration;

/// How long servers may be silent, and when to retry.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The limit for a connection to be made.
    pub connect: Duration,
    /// The limit for the next bytes to arrive.
    pub stall: Duration,
    /// The limit for listing a repository that was listed before.
    pub listing: Duration,
    /// The limit for listing a repository whose last listing failed.
    pub listing_when_away: Duration,
    /// The most attempts.
    pub attempts: u32,
    /// The pause after the first attempt. Later ones are longer.
    pub first_pause: Duration,
    /// The interval between reports of a fetch's progress.
    pub report: Duration,
}

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Patience {
    /// The pause after an attempt, given the number of attempts before it.
    pub fn pause(&self, attempts: u32) -> Duration {
        self.first_pause.saturating_mul(1 << attempts.min(16)).min(LONGEST_PAUSE)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            listing: Duration::from_secs(15),
            listing_when_away: Duration::from_secs(3),
            attempts: 6,
            first_pause: Duration::from_millis(200),
            report: Duration::from_secs(10),
        }
    }
}

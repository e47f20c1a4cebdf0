//! When to remind of something that takes long: soon at first, and then ever more rarely. Knows no clock.

use std::time::{Duration, Instant};

/// The first reminder comes after this long.
const FIRST: Duration = Duration::from_secs(10);

/// They come at least this often.
const LONGEST: Duration = Duration::from_secs(600);

/// Reminds of something that began at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reminder {
    next: Instant,
    pause: Duration,
}

impl Reminder {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now + FIRST, pause: FIRST }
    }

    /// How long until the next one.
    pub(crate) fn time_left(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Whether a reminder is due. The next one is due after twice the pause.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.pause = (2 * self.pause).min(LONGEST);
            self.next = now + self.pause;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_become_rarer_and_never_stop() {
        let began = Instant::now();
        let mut reminder = Reminder::new(began);
        let mut due = Vec::new();
        for second in 0..4000 {
            let now = began + Duration::from_secs(second);
            assert_eq!(reminder.time_left(now).is_zero(), now >= reminder.next);
            if reminder.is_due(now) {
                due.push(second);
            }
        }
        assert_eq!(due, [10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030, 3630]);
    }
}

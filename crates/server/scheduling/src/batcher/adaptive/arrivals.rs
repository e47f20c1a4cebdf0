//! How many requests arrive in a time, and whether they are from clients that wait for their answers.
//!
//! A fixed number of clients, each of which sends its next request after an answer, have the same number of items in progress
//! whenever a batch leaves, and none more while it is executed. Once all of them have a request in the queue, no further one comes.

use super::controller::Seconds;

/// Batches that have to leave with the same number in progress, without more in between, for the senders to be a fixed number of
/// clients.
const CLOSED: u32 = 2;

/// The part of the window that is taken to have passed at the first arrival.
const LEAST_PASSED: f64 = 0.05;

/// Arrivals over which the mean size of a request is averaged.
const AVERAGED: f64 = 32.0;

/// Observed arrivals.
pub(super) struct Arrivals {
    /// The time over which they are counted.
    window: Seconds,
    /// The requests in the window, the older the less.
    recent: f64,
    first: Option<Seconds>,
    last: Seconds,
    /// The mean size of a request.
    size: f64,
    /// The items of all clients, if their number is fixed: the number in progress when the last batch left.
    clients: usize,
    /// Further batches that left with this number in progress, since there were more.
    equal: u32,
}

impl Arrivals {
    pub(super) fn new(window: Seconds) -> Self {
        Self { window, recent: 0.0, first: None, last: 0.0, size: 1.0, clients: 0, equal: 0 }
    }

    /// Records the arrival of a request of `size` items. `in_progress` includes them.
    pub(super) fn add(&mut self, size: usize, in_progress: usize, now: Seconds) {
        self.recent = self.recent * self.remaining(now) + 1.0;
        self.first.get_or_insert(now);
        self.last = now;
        self.size += (size as f64 - self.size) / AVERAGED;
        if in_progress > self.clients {
            self.equal = 0;
        }
    }

    /// Records the departure of a batch. `in_progress` includes its items.
    pub(super) fn batch_left(&mut self, in_progress: usize) {
        self.equal = if in_progress == self.clients { self.equal.saturating_add(1) } else { 0 };
        self.clients = in_progress;
    }

    /// Whether all requests are from a fixed number of clients, and all of these wait for answers: no request comes before one.
    pub(super) fn are_over(&self, in_progress: usize) -> bool {
        self.equal >= CLOSED && in_progress == self.clients
    }

    /// The items that arrive in a second.
    pub(super) fn rate(&self, now: Seconds) -> f64 {
        self.requests(now) * self.size
    }

    /// The time at which this number of requests is expected to have followed the last one.
    pub(super) fn missing_since(&self, requests: f64, now: Seconds) -> Seconds {
        self.last + requests / self.requests(now)
    }

    /// The requests that arrive in a second.
    fn requests(&self, now: Seconds) -> f64 {
        // Until the window is full, the arrivals belong to the time since the first one.
        let passed = 1.0 - decay((now - self.first.unwrap_or(now)) / self.window);
        self.recent * self.remaining(now) / (self.window * passed.max(LEAST_PASSED))
    }

    /// The part of the counted requests that remains.
    fn remaining(&self, now: Seconds) -> f64 {
        decay((now - self.last).max(0.0) / self.window)
    }
}

/// Close to exp(-t), and the same on every machine.
fn decay(t: f64) -> f64 {
    1.0 / (1.0 + t * (1.0 + t * (0.5 + t / 6.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_arrivals_make_a_rate_before_the_window_is_full() {
        let mut arrivals = Arrivals::new(1000.0);
        for count in 0..400 {
            arrivals.add(1, 1, f64::from(count) * 0.5);
        }
        let rate = arrivals.rate(200.0);
        assert!((1.9..2.3).contains(&rate), "{rate}");
    }

    #[test]
    fn rate_follows_the_arrivals_and_their_sizes() {
        let mut arrivals = Arrivals::new(1.0);
        assert_eq!(arrivals.rate(0.0), 0.0);
        for count in 0..2000 {
            arrivals.add(4, 4, f64::from(count) * 0.01);
        }
        let rate = arrivals.rate(19.99);
        assert!((380.0..430.0).contains(&rate), "{rate}");
        assert!((arrivals.missing_since(10.0, 19.99) - 20.09).abs() < 0.02);
        assert!(arrivals.rate(30.0) < 4.0);
    }

    /// Batches of all that wait.
    fn batches(arrivals: &mut Arrivals, count: u32, clients: usize) {
        for _ in 0..count {
            (1..=clients).for_each(|waiting| arrivals.add(1, waiting, 0.0));
            arrivals.batch_left(clients);
        }
    }

    #[test]
    fn clients_that_wait_for_answers_are_noticed() {
        let mut arrivals = Arrivals::new(1.0);
        batches(&mut arrivals, CLOSED, 8);
        assert!(!arrivals.are_over(8));
        batches(&mut arrivals, 2, 8);
        assert!(arrivals.are_over(8) && !arrivals.are_over(7) && !arrivals.are_over(9));
        // One more.
        arrivals.add(1, 9, 0.0);
        assert!(!arrivals.are_over(8) && !arrivals.are_over(9));
        batches(&mut arrivals, 2 + CLOSED, 9);
        assert!(arrivals.are_over(9));
        batches(&mut arrivals, 2 + CLOSED, 3);
        assert!(arrivals.are_over(3) && !arrivals.are_over(9));
    }

    #[test]
    fn senders_that_do_not_wait_are_told_from_clients() {
        let mut arrivals = Arrivals::new(1.0);
        for batch in 0..100 {
            batches(&mut arrivals, 1, 8);
            // Arrives while the batch is executed.
            arrivals.add(1, 9 + batch % 3, 0.0);
            assert!((0..20).all(|in_progress| !arrivals.are_over(in_progress)));
        }
    }
}

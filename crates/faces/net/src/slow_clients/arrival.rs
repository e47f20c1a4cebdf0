//! Waiting for the rest of what a client began to send.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep};

use crate::slow_clients::{ARRIVAL, PROGRESS};

/// Time limit of a message that arrives in parts. The clock starts when the server waits for a part, and restarts with
/// each [`PROGRESS`] bytes.
#[derive(Debug, Default)]
pub struct Arrival {
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes that arrived since the limit began.
    arrived: usize,
}

impl Arrival {
    /// Records that `bytes` bytes arrived.
    pub fn arrived(&mut self, bytes: usize) {
        if self.limit.is_some() {
            self.arrived += bytes;
            if self.arrived >= PROGRESS {
                self.end();
            }
        }
    }

    /// Records that the message is complete.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Called while bytes are missing; ready when that has lasted too long.
    pub fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.limit.get_or_insert_with(|| Box::pin(sleep(ARRIVAL))).as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// Receives parts of (bytes, milliseconds before them). Returns the time at which the rest is given up, if it is.
    async fn timeout_of(parts: &[(usize, u64)]) -> Option<u64> {
        let (mut arrival, start) = (Arrival::default(), Instant::now());
        for (bytes, pause) in parts {
            let waiting = poll_fn(|context| arrival.poll_over(context));
            if timeout(Duration::from_millis(*pause), waiting).await.is_ok() {
                return Some(start.elapsed().as_secs());
            }
            arrival.arrived(*bytes);
        }
        None
    }

    /// The rule, with plain numbers: the limit is a minute after the last time when enough had come.
    fn expected(parts: &[(usize, u64)]) -> Option<u64> {
        let (mut now, mut begun, mut arrived) = (0, 0, 0);
        for (bytes, pause) in parts {
            if now + pause > begun + 60_000 {
                return Some((begun + 60_000) / 1000);
            }
            now += pause;
            arrived += bytes;
            if arrived >= PROGRESS {
                (begun, arrived) = (now, 0);
            }
        }
        None
    }

    proptest! {
        #[test]
        fn transfer_without_progress_for_a_minute_is_given_up(
            parts in prop::collection::vec((0..6000_usize, (1..90_u64).prop_map(|seconds| seconds * 1000 + 2)), 0..40)
        ) {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            prop_assert_eq!(runtime.block_on(timeout_of(&parts)), expected(&parts));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_limit_restarts() {
        let mut arrival = Arrival::default();
        for _ in 0..5 {
            let start = Instant::now();
            poll_fn(|context| arrival.poll_over(context)).await;
            assert_eq!(start.elapsed().as_secs(), 60);
            arrival.end();
        }
    }
}

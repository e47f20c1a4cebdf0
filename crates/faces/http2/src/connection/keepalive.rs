//! Pings a silent client, and ends the connection if no answer comes.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::Error;
use crate::frame::put_ping;

/// The contents of the pings.
pub(super) const KEEPALIVE: [u8; 8] = *b"keepaliv";

pub(super) struct Keepalive {
    interval: Duration,
    timeout: Duration,
    /// When something arrived last.
    heard: Instant,
    /// Ends the silence, or the wait for an answer.
    limit: Pin<Box<Sleep>>,
    is_pinged: bool,
}

impl Keepalive {
    pub(super) fn new(interval: Duration, timeout: Duration) -> Self {
        let limit = Box::pin(sleep(interval));
        Self { interval, timeout, heard: Instant::now(), limit, is_pinged: false }
    }

    /// Something arrived; `answered`: the answer to a ping. Returns whether the timer changed.
    pub(super) fn arrived(&mut self, answered: bool) -> bool {
        self.heard = Instant::now();
        let is_over = answered && std::mem::take(&mut self.is_pinged);
        if is_over {
            self.limit.as_mut().reset(self.heard + self.interval);
        }
        is_over
    }

    /// Looks at the time, and appends a ping if one is due.
    ///
    /// # Errors
    /// The client did not answer.
    pub(super) fn poll(&mut self, buffer: &mut Vec<u8>, context: &mut Context<'_>) -> Result<(), Error> {
        while self.limit.as_mut().poll(context).is_ready() {
            if self.is_pinged {
                return Err(Error::KeepaliveTimeout);
            }
            let due = self.heard + self.interval;
            if Instant::now() < due {
                self.limit.as_mut().reset(due);
            } else {
                put_ping(buffer, 0, KEEPALIVE);
                self.is_pinged = true;
                self.limit.as_mut().reset(Instant::now() + self.timeout);
            }
        }
        Ok(())
    }
}

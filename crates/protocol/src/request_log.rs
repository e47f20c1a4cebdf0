//! The log of requests: one line for each, once it is answered. While the log does not want it, a request costs one flag.

use std::fmt::Display;
use std::time::Instant;

/// The target of the lines, by which the log knows them.
pub const REQUEST_LOG: &str = "nereid::requests";

/// A request that is logged when it is answered, or given up.
#[derive(Debug)]
pub struct LoggedRequest {
    /// The protocol, and what was asked for.
    call: String,
    start: Instant,
    is_answered: bool,
}

impl LoggedRequest {
    /// Begins with the arrival of a request, if requests are logged. `call` names the protocol, and what is asked for.
    pub fn begin(call: impl FnOnce() -> String) -> Option<Box<Self>> {
        tracing::enabled!(target: REQUEST_LOG, tracing::Level::INFO)
            .then(|| Box::new(Self { call: call(), start: Instant::now(), is_answered: false }))
    }

    /// Logs the request, when the head of its answer is there. `bytes` is the length of the answer, if that is known.
    pub fn answered(mut self, status: impl Display, bytes: Option<u64>) {
        self.is_answered = true;
        let microseconds = self.microseconds();
        tracing::info!(target: REQUEST_LOG, status = %status, bytes, microseconds, "{}", self.call);
    }

    fn microseconds(&self) -> u64 {
        self.start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
    }
}

impl Drop for LoggedRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            let microseconds = self.microseconds();
            tracing::info!(target: REQUEST_LOG, status = "abandoned", microseconds, "{}", self.call);
        }
    }
}

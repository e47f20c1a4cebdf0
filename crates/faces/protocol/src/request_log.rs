//! The log of requests: one line each, once answered. While disabled, a request costs one load of a flag.

use std::fmt::Display;
use std::time::Instant;

use nereid_core::Principal;

/// The target of the lines, by which the log knows them.
pub const REQUEST_LOG: &str = "nereid::requests";

/// A request that is logged when it is answered or cancelled.
#[derive(Debug)]
pub struct LoggedRequest {
    /// The protocol and the target.
    call: String,
    principal: Option<Principal>,
    start: Instant,
    is_answered: bool,
}

impl LoggedRequest {
    /// Starts the log entry of an arriving request, if requests are logged. `call` returns the protocol and the target;
    /// `principal` is the sender.
    pub fn begin(principal: Option<&Principal>, call: impl FnOnce() -> String) -> Option<Box<Self>> {
        Self::is_on().then(|| {
            let principal = principal.cloned();
            Box::new(Self { call: call(), principal, start: Instant::now(), is_answered: false })
        })
    }

    /// Whether requests are logged.
    pub fn is_on() -> bool {
        tracing::enabled!(target: REQUEST_LOG, tracing::Level::INFO)
    }

    /// Records the sender that an authenticator found, if any; otherwise the connection's remains.
    pub fn identify(&mut self, principal: Option<Principal>) {
        if principal.is_some() {
            self.principal = principal;
        }
    }

    fn principal(&self) -> Option<&str> {
        self.principal.as_ref().map(Principal::name)
    }

    /// Logs the request once the head of its answer is known. `bytes` is the length of the answer, if known.
    pub fn answered(mut self, status: impl Display, bytes: Option<u64>) {
        self.is_answered = true;
        let microseconds = self.microseconds();
        let principal = self.principal();
        tracing::info!(target: REQUEST_LOG, status = %status, bytes, microseconds, principal, "{}", self.call);
    }

    fn microseconds(&self) -> u64 {
        self.start.elapsed().as_micros().try_into().unwrap_or(u64::MAX)
    }
}

impl Drop for LoggedRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            let microseconds = self.microseconds();
            let principal = self.principal();
            tracing::info!(target: REQUEST_LOG, status = "abandoned", microseconds, principal, "{}", self.call);
        }
    }
}

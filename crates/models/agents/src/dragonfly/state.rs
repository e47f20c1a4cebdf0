//! Remembers that a proxy is unreachable or silent, so that buckets replace it at once for a while.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Whether a proxy worked in its last requests.
#[derive(Debug, Default)]
pub(super) struct ProxyState(Mutex<Option<Pause>>);

/// A proxy that is left alone.
#[derive(Debug)]
struct Pause {
    until: Instant,
    reason: String,
}

impl ProxyState {
    /// The reason for leaving the proxy alone now, if there is one.
    pub(super) fn reason(&self) -> Option<String> {
        let pause = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = pause.as_ref().filter(|pause| Instant::now() < pause.until)?;
        Some(pause.reason.clone())
    }

    /// Leaves the proxy alone for this long. Returns whether it worked until now.
    pub(super) fn pause(&self, length: Duration, reason: &str) -> bool {
        let mut pause = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Pause { until: Instant::now() + length, reason: reason.to_owned() };
        pause.replace(next).is_none()
    }

    /// Data has arrived.
    pub(super) fn works(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

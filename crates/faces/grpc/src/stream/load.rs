//! Requests of a stream whose answers are not all sent yet, and their limit.
//!
//! The limit is one on memory alone. Clients send thousands of small requests ahead of a slow model.

use nereid_budgets::{Budget, Permit};

/// The most bytes of one stream's requests in flight; no further request is read until one ends. A single request may have
/// more.
pub(super) const MAX_BYTES: usize = 256 << 20;

/// Overhead charged per request in addition to its inputs: roughly the server's bookkeeping while the request waits.
pub(super) const REQUEST_BYTES: usize = 2 << 10;

/// The requests in flight of one stream.
#[derive(Debug)]
pub(super) struct Load(Budget);

/// One request's part of the load, released on drop.
#[derive(Debug)]
pub(super) struct Share {
    _bytes: Permit,
}

impl Default for Load {
    fn default() -> Self {
        Self(Budget::new(MAX_BYTES))
    }
}

impl Load {
    /// Charges a request with inputs of this size. The request was read while there was room, so it is accepted at any
    /// size.
    pub(super) fn share(&self, bytes: usize) -> Share {
        Share { _bytes: self.0.acquire_anyway(bytes.saturating_add(REQUEST_BYTES)) }
    }

    /// Whether to pause reading requests.
    pub(super) fn is_full(&self) -> bool {
        self.0.is_exhausted()
    }

    /// Whether no request is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_request_releases_its_share() {
        let load = Load::default();
        assert!(load.is_empty());
        let mut shares: Vec<_> = (0..MAX_BYTES / REQUEST_BYTES).map(|_| load.share(0)).collect();
        assert!(load.is_full());
        shares.pop();
        assert!(!load.is_full() && !load.is_empty());
        let large = load.share(MAX_BYTES + 1);
        drop(shares);
        assert!(load.is_full());
        drop(large);
        assert!(load.is_empty() && !load.is_full());
    }
}

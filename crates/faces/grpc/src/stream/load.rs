//! Requests of a stream whose answers are not all sent yet, and their limit.
//!
//! The limit is one on memory alone. Clients send thousands of small requests ahead of a slow model, and what is not read
//! stays in the HTTP/2 library, which ends connections with many small unread frames.

use nereid_core::{Budget, Permit};

/// The most bytes of one stream's requests in flight; no further request is read until one ends. A single request may have
/// more.
pub(super) const MAX_BYTES: usize = 256 << 20;

/// What a request counts beside its inputs: about what the server keeps of it while it waits.
pub(super) const REQUEST_BYTES: usize = 2 << 10;

/// What is in progress.
#[derive(Debug)]
pub(super) struct Load(Budget);

/// The part of it that is one request's. Dropped, it makes room for another.
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
    /// A request and the size of its inputs. It was read when there was room, and is accepted whatever its size.
    pub(super) fn share(&self, bytes: usize) -> Share {
        Share { _bytes: self.0.acquire_anyway(bytes.saturating_add(REQUEST_BYTES)) }
    }

    /// Whether no further request is to be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.0.is_exhausted()
    }

    /// Whether nothing is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_when_a_request_is_over() {
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

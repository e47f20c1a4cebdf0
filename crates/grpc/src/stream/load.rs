//! Requests of a stream whose answers are not all sent yet, and their limits.

use nereid_core::{Budget, Permit};

/// The most requests of one stream in flight; no further one is read until one ends.
pub(super) const MOST_REQUESTS: usize = 1024;

/// The most bytes of inputs of one stream in flight. A single request may have more.
const MOST_BYTES: usize = 256 << 20;

/// What is in progress.
#[derive(Debug)]
pub(super) struct Load {
    requests: Budget,
    bytes: Budget,
}

/// The part of it that is one request's. Dropped, it makes room for another.
#[derive(Debug)]
pub(super) struct Share {
    _request: Permit,
    _bytes: Permit,
}

impl Default for Load {
    fn default() -> Self {
        Self { requests: Budget::new(MOST_REQUESTS), bytes: Budget::new(MOST_BYTES) }
    }
}

impl Load {
    /// A request and the size of its inputs. It was read when there was room, and is accepted whatever its size.
    pub(super) fn share(&self, bytes: usize) -> Share {
        Share { _request: self.requests.acquire_anyway(1), _bytes: self.bytes.acquire_anyway(bytes) }
    }

    /// Whether no further request is to be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.requests.is_exhausted() || self.bytes.is_exhausted()
    }

    /// Whether nothing is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_when_a_request_is_over() {
        let load = Load::default();
        assert!(load.is_empty());
        let mut shares: Vec<_> = (0..MOST_REQUESTS).map(|_| load.share(0)).collect();
        assert!(load.is_full());
        shares.pop();
        assert!(!load.is_full() && !load.is_empty());
        let large = load.share(MOST_BYTES + 1);
        drop(shares);
        assert!(load.is_full());
        drop(large);
        assert!(load.is_empty() && !load.is_full());
    }
}

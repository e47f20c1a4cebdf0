//! How much of a stream is in progress: requests whose answers are not all sent yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many requests of one stream may be in progress before no further one is read.
pub(super) const MOST_REQUESTS: usize = 1024;

/// So many bytes of inputs, likewise. One request may have more.
const MOST_BYTES: usize = 256 << 20;

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// What is in progress.
#[derive(Debug, Default)]
pub(super) struct Load(Arc<Counts>);

/// The part of it that is one request's. Dropped, it makes room for another.
#[derive(Debug)]
pub(super) struct Share {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Load {
    /// A request with so many bytes of inputs.
    pub(super) fn share(&self, bytes: usize) -> Share {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Share { counts: Arc::clone(&self.0), bytes }
    }

    /// Whether no further request is to be read for now.
    pub(super) fn is_full(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) >= MOST_REQUESTS
            || self.0.bytes.load(Ordering::Relaxed) >= MOST_BYTES
    }

    /// Whether nothing is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.counts.requests.fetch_sub(1, Ordering::Relaxed);
        self.counts.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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

//! How many requests the server takes in at a time, over all models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_backend_api::{Error, Result};

/// Counts requests in progress, up to a limit.
#[derive(Debug)]
pub(crate) struct Limit {
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// One request in progress. Dropped, it makes room for another.
#[derive(Debug)]
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Limit {
    /// Room for that many.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Room for one.
    ///
    /// # Errors
    /// `Unavailable` if there is none.
    pub(crate) fn take(&self) -> Result<Slot> {
        let slot = Slot(Arc::clone(&self.taken));
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            return Ok(slot);
        }
        drop(slot);
        Err(Error::unavailable(format!(
            "the server has {} requests in progress, which is its limit; try again later",
            self.most
        )))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_when_a_request_is_over() {
        let limit = Limit::new(2);
        let first = limit.take().unwrap();
        let _second = limit.take().unwrap();
        assert!(limit.take().is_err());
        drop(first);
        let _third = limit.take().unwrap();
        assert!(limit.take().is_err());
    }
}

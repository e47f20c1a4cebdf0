//! Holds executions until the test releases them, so that tests control concurrency without a clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::Batch;

/// A gate that batches wait at, and the ids of the requests in them. Clones are the same gate.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    entered: Vec<Vec<String>>,
    released: Vec<String>,
    open: bool,
}

impl Gate {
    /// An open gate.
    pub fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    /// Notes the batch, and waits until it is released.
    pub fn pass(&self, batch: &Batch) {
        let ids: Vec<_> = batch.requests().iter().map(|request| request.id.clone()).collect();
        let first = ids.first().cloned().unwrap_or_default();
        let mut state = self.state();
        state.entered.push(ids);
        self.0.1.notify_all();
        let held = |state: &mut State| !state.open && !state.released.contains(&first);
        drop(self.0.1.wait_while(state, held).unwrap_or_else(PoisonError::into_inner));
    }

    /// The request ids of each batch that reached the gate. Waits for `count` batches.
    pub fn entered(&self, count: usize) -> Vec<Vec<String>> {
        let fewer = |state: &mut State| state.entered.len() < count;
        let state = self.0.1.wait_while(self.state(), fewer).unwrap_or_else(PoisonError::into_inner);
        state.entered.clone()
    }

    /// Releases batches whose first request has this id.
    pub fn release(&self, first: &str) {
        self.state().released.push(first.into());
        self.0.1.notify_all();
    }

    /// Releases all batches, also those to come.
    pub fn open(&self) {
        self.state().open = true;
        self.0.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

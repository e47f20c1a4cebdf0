//! The requests that a process holds, by handle.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nereid_backend_api::{Error, Request, SequenceStates, Turn};

/// The requests of one process. An entry is removed with its last response.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    table: Mutex<Table>,
    progress: Mutex<Progress>,
    progressed: Condvar,
    /// The outputs of their model.
    outputs: OnceLock<Vec<String>>,
}

/// The progress on the side channel.
#[derive(Debug, Default)]
struct Progress {
    /// How many messages were handled.
    handled: u64,
    /// The waiters for more. Waking when there are none would still cost a system call.
    waiting: usize,
}

/// A request that a process holds.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub request: Arc<Request>,
    /// The turn in a sequence, until the process has executed the request. Dropped after the request has been answered.
    turn: Option<Turn>,
}

impl HeldRequest {
    fn new(mut request: Request) -> Self {
        // The turn of a filler belongs to no sequence.
        let turn = if request.is_filler() { None } else { request.take_turn() };
        Self { request: Arc::new(request), turn }
    }

    /// The states of its sequence, if its model has any.
    pub(crate) fn states(&self) -> Option<&SequenceStates> {
        self.turn.as_ref()?.states().map(|states| &**states)
    }

    /// Returns the request to its scheduler. If its model has no iterative sequences, the request gets an error.
    pub(crate) fn reschedule(self) {
        if !self.turn.as_ref().is_some_and(Turn::iterates) {
            return self.request.responder().finish_with(Err(Error::invalid_arg(
                "the model rescheduled a request, which needs sequence_batching with iterative_sequence: true",
            )));
        }
        match Arc::try_unwrap(self.request) {
            Ok(mut request) => {
                if let Some(turn) = self.turn {
                    request.begin_turn(turn);
                }
                request.reschedule();
            }
            // Shared only while the side channel serves a message about it, and the process has sent none.
            Err(request) => request.responder().finish_with(Err(Error::internal(
                "the request cannot be executed again: it is in use elsewhere",
            ))),
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u64, HeldRequest>,
    last: u64,
    /// Why no more requests are accepted.
    closed: Option<Error>,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics under this lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outputs of the model, once.
    pub(crate) fn set_outputs(&self, outputs: &[String]) {
        self.outputs.get_or_init(|| outputs.to_vec());
    }

    /// The outputs of the model; none before the first execution.
    pub(crate) fn outputs(&self) -> &[String] {
        self.outputs.get().map_or(&[], Vec::as_slice)
    }

    /// This many consecutive handles, starting with the returned one.
    pub(crate) fn reserve(&self, count: usize) -> u64 {
        let mut table = self.lock();
        let first = table.last + 1;
        table.last += count as u64;
        first
    }

    /// Adds requests under their handles; returns those that come too late, with the reason.
    pub(crate) fn add(&self, requests: Vec<(u64, Request)>) -> Result<(), (Vec<(u64, Request)>, Error)> {
        let mut table = self.lock();
        if let Some(error) = &table.closed {
            let error = error.clone();
            drop(table);
            return Err((requests, error));
        }
        table
            .entries
            .extend(requests.into_iter().map(|(handle, request)| (handle, HeldRequest::new(request))));
        Ok(())
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Request>> {
        self.lock().entries.get(&handle).map(|held| Arc::clone(&held.request))
    }

    pub(crate) fn take(&self, handle: u64) -> Option<HeldRequest> {
        self.lock().entries.remove(&handle)
    }

    /// Takes requests, under one lock.
    pub(crate) fn take_all(&self, handles: impl Iterator<Item = u64>) -> Vec<Option<HeldRequest>> {
        let mut table = self.lock();
        handles.map(|handle| table.entries.remove(&handle)).collect()
    }

    /// Ends the turns of these requests, which were executed and may be answered later, so that their sequences
    /// continue.
    pub(crate) fn end_turns(&self, handles: impl Iterator<Item = u64>) {
        let mut table = self.lock();
        let turns: Vec<_> =
            handles.filter_map(|handle| table.entries.get_mut(&handle)?.turn.take()).collect();
        // Ending a turn may call the scheduler.
        drop(table);
        drop(turns);
    }

    /// Fails all requests, and accepts no more.
    pub(crate) fn close(&self, error: &Error) {
        let mut table = self.lock();
        table.closed = Some(error.clone());
        let entries = std::mem::take(&mut table.entries);
        drop(table);
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(handle, _)| *handle);
        for (_, held) in entries {
            held.request.responder().finish_with(Err(error.clone()));
        }
        self.advance(u64::MAX);
    }

    /// How many messages of the side channel were handled.
    pub(crate) fn advance(&self, handled: u64) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.handled = handled;
        if progress.waiting > 0 {
            self.progressed.notify_all();
        }
    }

    /// Waits until that many messages of the side channel were handled. Returns `false` on a timeout: fewer
    /// messages arrived than the process reported.
    pub(crate) fn await_side(&self, sent: u64) -> bool {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.handled >= sent {
            return true;
        }
        progress.waiting += 1;
        let behind = |progress: &mut Progress| progress.handled < sent;
        let waited = self.progressed.wait_timeout_while(progress, Duration::from_secs(60), behind);
        let (mut progress, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        progress.waiting -= 1;
        !timeout.timed_out()
    }
}

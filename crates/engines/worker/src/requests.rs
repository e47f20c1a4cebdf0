//! The requests that a process holds, by handle.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    BatchMonitor, CancelWatch, Error, ExecutionTimes, Phase, Request, SequenceStates, Turn,
};

/// The requests of one process. An entry is removed with its last response.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    table: Mutex<Table>,
    progress: Mutex<Progress>,
    progressed: Condvar,
    /// The outputs of their model.
    outputs: OnceLock<Vec<String>>,
    /// The longest step of an instance that executes continuously.
    step_limit: OnceLock<Duration>,
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
    /// Set for requests whose execution ends with their last response.
    execution: Option<LongExecution>,
}

/// An execution that ends with the last response of its request.
#[derive(Clone)]
pub(crate) struct LongExecution {
    pub monitor: Arc<dyn BatchMonitor>,
    pub started: Instant,
    pub inputs_ready: Instant,
}

impl std::fmt::Debug for LongExecution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LongExecution").field("started", &self.started).finish_non_exhaustive()
    }
}

impl HeldRequest {
    fn new(mut request: Request, execution: Option<LongExecution>) -> Self {
        // The turn of a filler belongs to no sequence.
        let turn = if request.is_filler() { None } else { request.take_turn() };
        Self { request: Arc::new(request), turn, execution }
    }

    /// Counts the execution, before the last response is delivered. Failed ones are not counted.
    pub(crate) fn complete_execution(&self, has_failed: bool) {
        let Some(LongExecution { monitor, started, inputs_ready }) = &self.execution else { return };
        let now = Instant::now();
        self.request.responder().mark(Phase::OutputsReady, now);
        if !has_failed {
            let times = ExecutionTimes {
                started: *started,
                inputs_ready: *inputs_ready,
                outputs_ready: now,
                ended: now,
            };
            monitor.executed(self.request.batch_size(), times);
        }
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
    /// Watches of the requests whose cancellation is reported to the process.
    watches: HashMap<u64, CancelWatch>,
    /// The task that sends cancellations.
    watcher: Option<Waker>,
    /// The last progress of an instance that executes continuously, or the arrival of its first request since it was idle.
    advanced: Option<Instant>,
}

impl Table {
    fn remove(&mut self, handle: u64) -> Option<HeldRequest> {
        // A watch keeps its request from ending.
        self.watches.remove(&handle);
        self.entries.remove(&handle)
    }
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

    /// Adds requests under their handles; returns those that come too late, with the reason. If their `execution` ends with their
    /// last response, their cancellations are [reported](Self::poll_cancelled).
    pub(crate) fn add(
        &self,
        requests: Vec<(u64, Request)>,
        execution: Option<&LongExecution>,
    ) -> Result<(), (Vec<(u64, Request)>, Error)> {
        let mut table = self.lock();
        if let Some(error) = &table.closed {
            let error = error.clone();
            drop(table);
            return Err((requests, error));
        }
        if execution.is_some() {
            if table.entries.is_empty() {
                table.advanced = Some(Instant::now());
            }
            let watches = requests.iter().map(|(handle, request)| (*handle, request.cancellation().watch()));
            table.watches.extend(watches);
        }
        table.entries.extend(
            requests
                .into_iter()
                .map(|(handle, request)| (handle, HeldRequest::new(request, execution.cloned()))),
        );
        let watcher = table.watcher.clone().filter(|_| execution.is_some());
        drop(table);
        if let Some(watcher) = watcher {
            watcher.wake();
        }
        Ok(())
    }

    /// Limits the steps of an instance that executes continuously. The first limit counts.
    pub(crate) fn limit_steps(&self, limit: Duration) {
        self.step_limit.get_or_init(|| limit);
    }

    /// An instance that executes continuously has made progress.
    pub(crate) fn advance_instance(&self) {
        self.lock().advanced = Some(Instant::now());
    }

    /// How long the current step may still take; `None` without a limit or requests.
    pub(crate) fn time_to_stall(&self) -> Option<Duration> {
        let limit = self.step_limit.get()?;
        let table = self.lock();
        let advanced = table.advanced.filter(|_| !table.entries.is_empty())?;
        Some(limit.saturating_sub(advanced.elapsed()))
    }

    /// How many requests the process holds.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// The requests that were cancelled since the last call. The task is woken when there are more.
    pub(crate) fn poll_cancelled(&self, context: &Context<'_>) -> Vec<u64> {
        let mut table = self.lock();
        table.watcher = Some(context.waker().clone());
        let is_cancelled = |_: &u64, watch: &mut CancelWatch| watch.poll(context).is_ready();
        let cancelled: Vec<_> = table.watches.extract_if(is_cancelled).collect();
        drop(table);
        cancelled.into_iter().map(|(handle, _)| handle).collect()
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Request>> {
        self.lock().entries.get(&handle).map(|held| Arc::clone(&held.request))
    }

    pub(crate) fn take(&self, handle: u64) -> Option<HeldRequest> {
        self.lock().remove(handle)
    }

    /// Takes requests, under one lock.
    pub(crate) fn take_all(&self, handles: impl Iterator<Item = u64>) -> Vec<Option<HeldRequest>> {
        let mut table = self.lock();
        handles.map(|handle| table.remove(handle)).collect()
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
        let watches = std::mem::take(&mut table.watches);
        drop(table);
        drop(watches);
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

//! Acts as the server in tests of a single backend: receives its answers, and records its executions.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, Batch, BatchMonitor, CancelSignal, ExecutionTimes, InferRequest, Phase, Request, Responder,
    ResponseSink,
};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The receiving end of one request's answers.
#[derive(Default)]
pub struct Recorder {
    state: Mutex<State>,
    changed: Condvar,
    cancelled: CancelSignal,
}

#[derive(Default)]
struct State {
    answers: Vec<Answer>,
    ends: usize,
    phases: Vec<Phase>,
}

impl Recorder {
    /// A request of `batch_size` items whose answers are recorded.
    pub fn request(request: InferRequest, batch_size: usize) -> (Request, Arc<Self>) {
        let recorder = Arc::new(Self::default());
        let responder = Responder::new(Arc::clone(&recorder) as Arc<dyn ResponseSink>, None);
        (Request::new(request, batch_size, responder), recorder)
    }

    /// Cancels the request as its client would.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// All answers, once the last one has arrived.
    ///
    /// # Panics
    /// If it does not come within a minute.
    #[track_caller]
    pub fn answers(&self) -> Vec<Answer> {
        let state = self.state();
        let unfinished = |state: &mut State| state.ends == 0;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, unfinished);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the request was not answered");
        std::mem::take(&mut state.answers)
    }

    /// The only answer.
    ///
    /// # Panics
    /// If the answer does not arrive within a minute, or is not the only one.
    #[track_caller]
    pub fn answer(&self) -> Answer {
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    /// Number of final responses announced.
    pub fn ends(&self) -> usize {
        self.state().ends
    }

    /// Number of answers that were delivered and not taken.
    pub fn count(&self) -> usize {
        self.state().answers.len()
    }

    /// The phases of its execution, in the order in which they were reported.
    pub fn phases(&self) -> Vec<Phase> {
        self.state().phases.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResponseSink for Recorder {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        let mut state = self.state();
        state.answers.extend(answer);
        state.ends += usize::from(last);
        self.changed.notify_all();
    }

    fn mark(&self, phase: Phase, _: Instant) {
        self.state().phases.push(phase);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    fn cancel_signal(&self) -> Option<&CancelSignal> {
        Some(&self.cancelled)
    }
}

/// The executions that a backend reports: the number of items and the times of each.
#[derive(Default)]
pub struct Executions(Mutex<Vec<(usize, ExecutionTimes)>>);

impl Executions {
    /// A batch of these requests whose execution is recorded.
    pub fn batch(self: &Arc<Self>, requests: Vec<Request>) -> Batch {
        Batch::new(requests, Arc::clone(self) as Arc<dyn BatchMonitor>)
    }

    /// All executions so far.
    pub fn all(&self) -> Vec<(usize, ExecutionTimes)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl BatchMonitor for Executions {
    fn executed(&self, size: usize, times: ExecutionTimes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((size, times));
    }
}

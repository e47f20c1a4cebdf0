//! Steps between a request's admission and its model's queue, such as a response cache, a quota or an on-demand load.
//!
//! Without interceptors, this costs a request one branch. An [`Interceptor`] owns the request, so it may
//! - answer it: the request is not executed, and counts as successful without having been computed;
//! - refuse it, with an error such as `Unavailable` as the answer;
//! - delay it as a [task](TaskGroup), which runs on the thread that wakes it: waiting takes no thread, and needs no runtime
//!   of the caller. Dropping the stream of answers ends the wait, and so does the end of the model: the request is then
//!   answered `Cancelled` or `Unavailable`;
//! - observe its answers: [`Request::redirect_answers`] inserts a sink between backend and client. Answers have the backend's
//!   shapes there, and so must answers of interceptors. A sink keeps the instance busy while it takes answers; slow work
//!   should wait until the thread that queues the request has returned from the queue ([`Step::Listen`]).
//!
//! Requests of one sequence keep their order (`lanes.rs`): a waiting request delays the following ones of its sequence only.

mod factory;
mod lanes;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use nereid_backend_api::{CorrelationId, Error, Request, ResponseSink as _, Result};
use nereid_scheduling::Ticket;
use nereid_tasks::TaskGroup;
use smallvec::SmallVec;

pub use self::factory::{InterceptorFactory, Interceptors, LoadedVersion, ReleaseFactory};
use self::lanes::{Lanes, Turn};
use crate::caller::Caller;
use crate::inflight::{InFlight, Place, ResponseStream};
use crate::model::Model;

/// Decides about requests before they are queued.
pub trait Interceptor: Send + Sync {
    /// Decides about an admitted request. It must not block: slow decisions are a [`Step::Wait`].
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, caller: &Caller) -> Step;
}

/// The decision about a request.
pub enum Step {
    /// The request continues to the next interceptor or, after the last one, to the queue.
    Proceed,
    /// Like `Proceed`, and the listener is notified once the request was queued.
    Listen(Arc<dyn QueueListener>),
    /// The interceptor has answered the request, or will: the server drops it.
    Answered,
    /// The decision is made later.
    Wait(WaitingStep),
}

/// Is notified once a request was queued.
pub trait QueueListener: Send + Sync {
    /// Called once, by the thread that queued the request, after it has returned from the queue: the request may even have been
    /// executed. If the client could see an answer before that, the call precedes the queue instead. The thread holds no
    /// instance.
    fn queued(&self);
}

/// Takes a delayed request, see [`Step::Wait`], and decides later.
pub type WaitingStep = Box<dyn FnOnce(Request) -> Decision + Send>;

/// A later decision: the request if it proceeds, `None` if it was answered. The threads that wake the future poll it, outside
/// of any runtime.
pub type Decision = Pin<Box<dyn Future<Output = Option<Request>> + Send>>;

/// Passes the requests to one model through its interceptors.
pub(crate) struct Gate {
    interceptors: Vec<Arc<dyn Interceptor>>,
    waiting: Arc<TaskGroup>,
    lanes: Arc<Lanes>,
}

/// The listeners of a request, notified on drop.
#[derive(Default)]
struct Listeners(SmallVec<[Arc<dyn QueueListener>; 1]>);

impl Drop for Listeners {
    fn drop(&mut self) {
        self.0.iter().for_each(|listener| listener.queued());
    }
}

/// The outcome of the interceptors that decided at once.
enum Passage {
    /// The request may be queued.
    Through,
    Answered,
    /// The request waits for an interceptor; the number is the index of the next one.
    Wait(usize, WaitingStep),
}

/// The progress of a delayed request.
enum Progress {
    /// The request is next passed to the interceptor with this index or, after the last, to the queue.
    At(usize, Box<Request>),
    /// The request waits for an interceptor; the number is the index of the next one.
    Before(usize, Decision),
}

impl Gate {
    /// The gate of a model with these interceptors; `None` if there are none.
    pub(crate) fn new(interceptors: Vec<Arc<dyn Interceptor>>) -> Option<Arc<Self>> {
        let (waiting, lanes) = (Arc::default(), Arc::default());
        (!interceptors.is_empty()).then(|| Arc::new(Self { interceptors, waiting, lanes }))
    }

    /// Whether a request of this sequence has not been queued yet.
    pub(crate) fn holds(&self, sequence: &CorrelationId) -> bool {
        self.lanes.contains(sequence)
    }

    /// Calls `done` once all requests of sequences have been queued, possibly at once. Only the latest callback is called.
    pub(crate) fn when_empty(&self, done: Box<dyn FnOnce() + Send>) {
        self.lanes.when_empty(done);
    }

    /// Passes an admitted request to its model's queue, now or once the interceptors allow it.
    ///
    /// # Errors
    /// The model refuses the request, and it was not answered.
    pub(crate) fn enter(
        self: &Arc<Self>,
        inflight: Arc<InFlight>,
        mut request: Request,
    ) -> Result<ResponseStream> {
        let turn = self.lanes.enter(&request.correlation_id);
        if turn.as_ref().is_some_and(|turn| !turn.is_current()) {
            return Ok(self.wait(inflight, turn, Progress::At(0, Box::new(request))));
        }
        let mut listeners = Listeners::default();
        match self.advance(&inflight, 0, &mut request, &mut listeners) {
            Passage::Through => {
                let ticket = inflight.enqueue(request);
                // No answer can have been read yet: the stream of answers is created below.
                drop(listeners);
                Ok(ResponseStream::new(inflight, ticket?))
            }
            Passage::Answered => Ok(ResponseStream::new(inflight, None)),
            Passage::Wait(next, wait) => {
                drop(listeners);
                let decision = wait(request);
                Ok(self.wait(inflight, turn, Progress::Before(next, decision)))
            }
        }
    }

    /// Passes a request to the interceptors from index `first` on, until one delays or answers it.
    fn advance(
        &self,
        inflight: &InFlight,
        first: usize,
        request: &mut Request,
        listeners: &mut Listeners,
    ) -> Passage {
        for (number, interceptor) in self.interceptors.iter().enumerate().skip(first) {
            match interceptor.intercept(inflight.model(), request, inflight.caller()) {
                Step::Proceed => {}
                Step::Listen(listener) => listeners.0.push(listener),
                Step::Answered => return Passage::Answered,
                Step::Wait(wait) => return Passage::Wait(number + 1, wait),
            }
        }
        Passage::Through
    }

    /// Passes a request on as a task.
    fn wait(
        self: &Arc<Self>,
        inflight: Arc<InFlight>,
        turn: Option<Turn>,
        progress: Progress,
    ) -> ResponseStream {
        let waiting = Arc::new(WaitingRequest { tasks: Arc::clone(&self.waiting), state: Mutex::default() });
        let gate = Arc::clone(self);
        let (task_inflight, task_waiting) = (Arc::clone(&inflight), Arc::clone(&waiting));
        let spawned = self.waiting.spawn((turn, progress), |(turn, progress)| async move {
            // The turn ends once the request is queued or answered.
            let mut turn = turn;
            if let Some(request) = gate.outcome(&task_inflight, turn.as_mut(), progress).await {
                match task_inflight.enqueue(request) {
                    Ok(ticket) => task_waiting.queued(&task_inflight, ticket),
                    Err(error) => task_inflight.deliver(Some(Err(error)), true),
                }
            }
        });
        match spawned {
            Ok(number) => waiting.started(number),
            Err(dropped) => {
                inflight.deliver(Some(Err(closing(inflight.model()))), true);
                drop(dropped);
            }
        }
        ResponseStream::at(inflight, Place::Waiting(waiting))
    }

    /// The request once it may be queued; `None` if it was answered or cancelled before.
    async fn outcome(
        &self,
        inflight: &InFlight,
        turn: Option<&mut Turn>,
        mut progress: Progress,
    ) -> Option<Request> {
        let mut decided = pin!(async {
            if let Some(turn) = turn {
                turn.wait().await;
            }
            loop {
                let (first, mut request) = match progress {
                    Progress::At(first, request) => (first, *request),
                    Progress::Before(next, decision) => (next, decision.await?),
                };
                // The client may see an answer at once, so listeners are notified before the queue.
                match self.advance(inflight, first, &mut request, &mut Listeners::default()) {
                    Passage::Through => return Some(request),
                    Passage::Answered => return None,
                    Passage::Wait(next, wait) => progress = Progress::Before(next, wait(request)),
                }
            }
        });
        poll_fn(|context| {
            let ended = if inflight.is_cancelled() {
                Error::cancelled("the request was cancelled before it was queued")
            } else if self.waiting.is_closed() {
                closing(inflight.model())
            } else {
                return decided.as_mut().poll(context);
            };
            // Answer before the request is dropped, which would answer with another error.
            inflight.deliver(Some(Err(ended)), true);
            Poll::Ready(None)
        })
        .await
    }

    /// Answers all delayed requests, and delays no further ones.
    pub(crate) fn close(&self) {
        self.waiting.close();
        self.waiting.wake_all();
        self.waiting.wait_until_done();
    }
}

fn closing(model: &Model) -> Error {
    Error::unavailable(format!("model '{}' is being unloaded", model.name()))
}

/// A delayed request, for its cancellation.
pub(crate) struct WaitingRequest {
    tasks: Arc<TaskGroup>,
    state: Mutex<WaitState>,
}

#[derive(Clone, Copy, Default)]
enum WaitState {
    /// The task has not started.
    #[default]
    New,
    Task(u64),
    Queued(Option<Ticket>),
}

impl WaitingRequest {
    fn started(&self, task: u64) {
        let mut state = self.lock();
        // The request may be queued already.
        if matches!(*state, WaitState::New) {
            *state = WaitState::Task(task);
        }
    }

    /// The request was queued.
    fn queued(&self, inflight: &InFlight, ticket: Option<Ticket>) {
        *self.lock() = WaitState::Queued(ticket);
        // A cancellation before this point did not know the ticket; a later one does.
        if let Some(ticket) = ticket.filter(|_| inflight.is_cancelled()) {
            inflight.model().remove_from_queue(ticket);
        }
    }

    /// Ends the wait of a request that was marked as cancelled.
    pub(crate) fn cancel(&self, model: &Model) {
        let state = *self.lock();
        match state {
            WaitState::Task(number) => self.tasks.wake(number),
            WaitState::Queued(Some(ticket)) => model.remove_from_queue(ticket),
            WaitState::New | WaitState::Queued(None) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

//! Steps between a request's admission and its model's queue: where a response cache, a quota or an on-demand load stands.
//!
//! Where none is registered this costs a request one branch. An [`Interceptor`] has the request in its own hands, so it may
//! - answer it: the request is not executed, and counts as successful without having been computed;
//! - refuse it: an answer that is an error, `Unavailable` say;
//! - let it wait: as a [task](crate::task), which the thread that wakes it runs, so that waiting takes no thread and callers
//!   that do nothing but register a waker are served, too. Dropping the stream of answers ends the wait, and so does the
//!   end of the model: the request is then answered `Cancelled` or `Unavailable`;
//! - watch its answers: [`Request::redirect_answers`] puts a sink of its own between backend and client. A cache looks up
//!   before the queue, and if it finds nothing it goes on with such a sink, which stores the answers after the last one. They
//!   have the backend's shapes there, as have those that it gives itself. What takes long is best left until the thread that
//!   brings the request to the queue is back from there ([`Step::Listen`]): while a sink takes answers, it keeps an instance
//!   from other requests.
//!
//! Requests of one sequence keep their order (`lanes.rs`): one that waits holds up those behind it, and no others.

mod lanes;

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use nereid_backend_api::{CorrelationId, Error, Request, ResponseSink as _, Result};
use smallvec::SmallVec;

use self::lanes::{Lanes, Turn};
use crate::caller::Caller;
use crate::inflight::{InFlight, Place, ResponseStream};
use crate::model::Model;
use crate::task::TaskGroup;
use nereid_scheduling::Ticket;

/// Decides about requests before they are queued.
pub trait Interceptor: Send + Sync {
    /// Decides about an admitted request. It must not block: what takes time is a [`Step::Wait`].
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, caller: &Caller) -> Step;
}

/// What becomes of a request.
pub enum Step {
    /// The request continues: to the next interceptor, or after the last one to the queue.
    Proceed,
    /// The same, and the listener hears when it has come there.
    Listen(Arc<dyn QueueListener>),
    /// The interceptor has answered it, or will: the server drops it.
    Answered,
    /// That is known later.
    Wait(WaitingStep),
}

/// Hears when a request has come to the queue.
pub trait QueueListener: Send + Sync {
    /// The thread that brought the request to the queue is back from there, whatever became of the request: it may even have been
    /// executed. Where the client can see an answer as soon as there is one, the thread is only about to go there. Called once;
    /// the thread holds no instance meanwhile.
    fn queued(&self);
}

/// Takes a request that waits, see [`Step::Wait`], and decides later.
pub type WaitingStep = Box<dyn FnOnce(Request) -> Decision + Send>;

/// What an interceptor decides later: the request if it goes on, `None` if it was answered. The future is polled by the
/// threads that wake it, outside of any runtime.
pub type Decision = Pin<Box<dyn Future<Output = Option<Request>> + Send>>;

/// The interceptors of a server, in the order in which requests come to them.
#[derive(Clone, Default)]
pub struct Interceptors(Vec<Arc<dyn Interceptor>>);

impl FromIterator<Arc<dyn Interceptor>> for Interceptors {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Interceptor>>>(interceptors: I) -> Self {
        Self(interceptors.into_iter().collect())
    }
}

impl fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} interceptors", self.0.len())
    }
}

/// The way of one model's requests through the interceptors.
pub(crate) struct Gate {
    interceptors: Interceptors,
    waiting: Arc<TaskGroup>,
    lanes: Arc<Lanes>,
}

/// The listeners of a request. They hear of the queue when this is dropped, whatever happened.
#[derive(Default)]
struct Listeners(SmallVec<[Arc<dyn QueueListener>; 1]>);

impl Drop for Listeners {
    fn drop(&mut self) {
        self.0.iter().for_each(|listener| listener.queued());
    }
}

/// What the interceptors that decide at once made of a request.
enum Passage {
    /// It comes to the queue.
    Through,
    Answered,
    /// It waits for an interceptor; the number is that of the next one.
    Wait(usize, WaitingStep),
}

/// How far a request has come that waits.
enum Progress {
    /// It comes to the interceptor with that number or, behind the last, to the queue.
    At(usize, Box<Request>),
    /// It waits for an interceptor; the number is that of the next one.
    Before(usize, Decision),
}

impl Gate {
    /// The gate of a model, with an interceptor of its own behind those of all models; `None` where there is nothing to pass.
    pub(crate) fn new(interceptors: &Interceptors, own: Option<Arc<dyn Interceptor>>) -> Option<Arc<Self>> {
        let (waiting, lanes) = (Arc::default(), Arc::default());
        let interceptors: Interceptors = interceptors.0.iter().cloned().chain(own).collect();
        (!interceptors.0.is_empty()).then(|| Arc::new(Self { interceptors, waiting, lanes }))
    }

    /// Whether a request of that sequence is on its way to the queue.
    pub(crate) fn holds(&self, sequence: &CorrelationId) -> bool {
        self.lanes.contains(sequence)
    }

    /// Calls `done` once no request of a sequence is on its way to the queue, perhaps at once. Only the latest one is called.
    pub(crate) fn when_empty(&self, done: Box<dyn FnOnce() + Send>) {
        self.lanes.when_empty(done);
    }

    /// Takes an admitted request to its model's queue, now or when the interceptors let it.
    ///
    /// # Errors
    /// The model does not take the request, and it was not answered.
    pub(crate) fn enter(
        self: &Arc<Self>,
        inflight: Arc<InFlight>,
        mut request: Request,
    ) -> Result<ResponseStream> {
        let turn = self.lanes.enter(&request.correlation_id);
        if turn.as_ref().is_some_and(|turn| !turn.has_come()) {
            return Ok(self.wait(inflight, turn, Progress::At(0, Box::new(request))));
        }
        let mut listeners = Listeners::default();
        match self.advance(&inflight, 0, &mut request, &mut listeners) {
            Passage::Through => {
                let ticket = inflight.enqueue(request);
                // Nobody can have read an answer yet: the stream of answers comes into being below.
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

    /// Takes a request past the interceptors that decide at once, beginning with the one of that number.
    fn advance(
        &self,
        inflight: &InFlight,
        first: usize,
        request: &mut Request,
        listeners: &mut Listeners,
    ) -> Passage {
        for (number, interceptor) in self.interceptors.0.iter().enumerate().skip(first) {
            match interceptor.intercept(inflight.model(), request, inflight.caller()) {
                Step::Proceed => {}
                Step::Listen(listener) => listeners.0.push(listener),
                Step::Answered => return Passage::Answered,
                Step::Wait(wait) => return Passage::Wait(number + 1, wait),
            }
        }
        Passage::Through
    }

    /// The rest of a request's way, as a task.
    fn wait(
        self: &Arc<Self>,
        inflight: Arc<InFlight>,
        turn: Option<Turn>,
        progress: Progress,
    ) -> ResponseStream {
        let waiting = Arc::new(WaitingRequest { tasks: Arc::clone(&self.waiting), state: Mutex::default() });
        let gate = Arc::clone(self);
        let (of_task, place) = (Arc::clone(&inflight), Arc::clone(&waiting));
        let spawned = self.waiting.spawn((turn, progress), |(turn, progress)| async move {
            // The turn ends when the request is in the queue, or will never be.
            let mut turn = turn;
            if let Some(request) = gate.outcome(&of_task, turn.as_mut(), progress).await {
                match of_task.enqueue(request) {
                    Ok(ticket) => place.queued(&of_task, ticket),
                    Err(error) => of_task.deliver(Some(Err(error)), true),
                }
            }
        });
        match spawned {
            Ok(number) => waiting.began(number),
            Err(dropped) => {
                inflight.deliver(Some(Err(closing(inflight.model()))), true);
                drop(dropped);
            }
        }
        ResponseStream::at(inflight, Place::Waiting(waiting))
    }

    /// The request when it may be queued; `None` if it was answered or cancelled before.
    async fn outcome(
        &self,
        inflight: &InFlight,
        turn: Option<&mut Turn>,
        mut progress: Progress,
    ) -> Option<Request> {
        let mut decided = pin!(async {
            if let Some(turn) = turn {
                turn.come().await;
            }
            loop {
                let (first, mut request) = match progress {
                    Progress::At(first, request) => (first, *request),
                    Progress::Before(next, decision) => (next, decision.await?),
                };
                // The client may see an answer as soon as there is one, so listeners hear of the queue before.
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
            // Before the request is dropped, which would answer otherwise.
            inflight.deliver(Some(Err(ended)), true);
            Poll::Ready(None)
        })
        .await
    }

    /// Answers all that wait, and lets nothing wait any more.
    pub(crate) fn close(&self) {
        self.waiting.close();
        self.waiting.wake_all();
        self.waiting.wait_until_done();
    }
}

fn closing(model: &Model) -> Error {
    Error::unavailable(format!("model '{}' is being unloaded", model.name()))
}

/// A request that waits, in the hands of who may take it back.
pub(crate) struct WaitingRequest {
    tasks: Arc<TaskGroup>,
    state: Mutex<WaitState>,
}

#[derive(Clone, Copy, Default)]
enum WaitState {
    /// Its task has not begun.
    #[default]
    New,
    Task(u64),
    Queued(Option<Ticket>),
}

impl WaitingRequest {
    fn began(&self, task: u64) {
        let mut state = self.lock();
        // It may be in the queue already.
        if matches!(*state, WaitState::New) {
            *state = WaitState::Task(task);
        }
    }

    /// The request is in the queue.
    fn queued(&self, inflight: &InFlight, ticket: Option<Ticket>) {
        *self.lock() = WaitState::Queued(ticket);
        // Who cancelled before that did not know the ticket; who cancels afterwards does.
        if let Some(ticket) = ticket.filter(|_| inflight.is_cancelled()) {
            inflight.model().forget(ticket);
        }
    }

    /// Takes the request back, which is marked as cancelled.
    pub(crate) fn cancel(&self, model: &Model) {
        let state = *self.lock();
        match state {
            WaitState::Task(number) => self.tasks.wake(number),
            WaitState::Queued(Some(ticket)) => model.forget(ticket),
            WaitState::New | WaitState::Queued(None) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

//! Readiness of models whose backends can report it.
//!
//! A backend may answer late or never. So the check runs on a separate thread, one per model at a time: later callers wait for
//! the same answer, for at most [`LIMIT`].

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nereid_backend_api::{Error, Model, ReadinessAnnouncer, ReadinessReports, Result};

use crate::events::Events;
use nereid_scheduling::timer::{Alarm, Ring, Timer};

/// A backend that has not answered after this long is not ready.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// The readiness checks of a model.
pub(crate) struct Readiness {
    model: Arc<dyn Model>,
    alarm: Alarm,
    /// The one that has no answer of the backend's yet.
    question: Mutex<Option<Arc<Question>>>,
    /// Whether the last answer was that it is ready, which is what it counts as before the first.
    was_ready: AtomicBool,
    events: Events,
    limit: Duration,
}

struct Question {
    asked: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answer: Option<Result<()>>,
    waiting: Vec<Waker>,
}

impl Readiness {
    pub(crate) fn new(model: Arc<dyn Model>, timer: &Timer, events: Events, limit: Duration) -> Arc<Self> {
        let announced = events.clone();
        model.announce_readiness(ReadinessAnnouncer::new(move || announced.notify()));
        Arc::new_cyclic(|this: &Weak<Self>| {
            let alarm = timer.alarm(Weak::<Self>::clone(this));
            let was_ready = AtomicBool::new(true);
            Self { model, alarm, question: Mutex::default(), was_ready, events, limit }
        })
    }

    /// How the backend reports its readiness. May change at any time.
    pub(crate) fn reports(&self) -> ReadinessReports {
        self.model.capabilities().readiness
    }

    /// Checks the model. The error is the reason why it is not ready.
    pub(crate) fn ask(self: &Arc<Self>) -> impl Future<Output = Result<()>> + Send + use<> {
        // Not worth a thread where the answer is known.
        let question = (self.reports() != ReadinessReports::Never).then(|| self.question());
        poll_fn(move |context| {
            question.as_ref().map_or(Poll::Ready(Ok(())), |question| question.poll(context))
        })
    }

    fn question(self: &Arc<Self>) -> Arc<Question> {
        let mut place = self.lock();
        if let Some(question) = &*place {
            return Arc::clone(question);
        }
        let question = Arc::new(Question { asked: Instant::now(), state: Mutex::default() });
        *place = Some(Arc::clone(&question));
        drop(place);
        self.alarm.set(question.asked + self.limit);
        let (asking, asked) = (Arc::clone(self), Arc::clone(&question));
        let spawned = Builder::new().name("nereid-ready".into()).spawn(move || {
            let answer = catch_unwind(AssertUnwindSafe(|| asking.model.ready()));
            let panicked = |_| Err(Error::internal("the backend panicked during its readiness check"));
            asking.end(&asked, answer.unwrap_or_else(panicked));
        });
        if let Err(error) = spawned {
            self.end(
                &question,
                Err(Error::unavailable(format!("cannot start a thread for the readiness check: {error}"))),
            );
        }
        question
    }

    fn end(&self, question: &Question, answer: Result<()>) {
        *self.lock() = None;
        self.settle(question, answer);
    }

    /// Answers the waiting callers. A change of the answer is an event.
    fn settle(&self, question: &Question, answer: Result<()>) {
        let is_ready = question.settle(answer);
        if self.was_ready.swap(is_ready, Ordering::Relaxed) != is_ready {
            self.events.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Question>>> {
        self.question.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring for Readiness {
    fn ring(&self) {
        let question = self.lock().clone();
        if let Some(question) = question.filter(|question| question.asked.elapsed() >= self.limit) {
            let millis = self.limit.as_millis();
            let overdue = format!("the backend did not answer the readiness check within {millis} ms");
            self.settle(&question, Err(Error::unavailable(overdue)));
        }
    }
}

impl Question {
    /// The first answer counts. Says whether it is that the model is ready.
    fn settle(&self, answer: Result<()>) -> bool {
        let mut state = self.lock();
        let is_ready = state.answer.get_or_insert(answer).is_ok();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        is_ready
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<()>> {
        let mut state = self.lock();
        if let Some(answer) = &state.answer {
            return Poll::Ready(answer.clone());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

//! The caller's side of a request: reading its answers, and cancelling it.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use nereid_backend_api::{Answer, Error, OutputLabels, Response, Result, Tensor};
use nereid_scheduling::Ticket;
use nereid_tasks::long_work;

use super::{InFlight, State};
use crate::classification;
use crate::interceptors::WaitingRequest;

/// Cancels a request from elsewhere than its stream. It keeps nothing of the request once that is over.
#[derive(Clone)]
pub struct Canceller {
    inflight: Weak<InFlight>,
    place: Place,
}

impl Canceller {
    /// Cancels the request: a queued one is answered at once; one in execution is marked for its backend to see.
    pub fn cancel(&self) {
        let Some(inflight) = self.inflight.upgrade() else { return };
        inflight.cancelled.cancel();
        match &self.place {
            Place::Left => {}
            Place::Queued(ticket) => inflight.model.remove_from_queue(*ticket),
            Place::Waiting(waiting) => waiting.cancel(&inflight.model),
        }
    }
}

/// Where a request was when its stream was made.
#[derive(Clone)]
pub(crate) enum Place {
    /// Executed or answered.
    Left,
    /// In its model's queue.
    Queued(Ticket),
    /// On its way there.
    Waiting(Arc<WaitingRequest>),
}

/// The answers to one request, in the order they were given. Dropping it before the last one cancels the request.
pub struct ResponseStream {
    inflight: Arc<InFlight>,
    place: Place,
    /// Whether the last answer was read.
    is_over: bool,
    /// Whether the answer read last was given as the last.
    ended_with_answer: bool,
    /// The answer read last, while its outputs are classified on another thread.
    classifying: Option<BoxFuture<'static, Result<Response>>>,
}

impl ResponseStream {
    /// The stream of a request, which waits in the queue if it has a ticket.
    pub(crate) fn new(inflight: Arc<InFlight>, ticket: Option<Ticket>) -> Self {
        Self::at(inflight, ticket.map_or(Place::Left, Place::Queued))
    }

    /// The stream of a request in this place.
    pub(crate) fn at(inflight: Arc<InFlight>, place: Place) -> Self {
        Self { inflight, place, is_over: false, ended_with_answer: false, classifying: None }
    }

    /// Name of the model that answers.
    pub fn model_name(&self) -> &str {
        self.inflight.model.name()
    }

    /// Version of the model that answers.
    pub fn model_version(&self) -> u64 {
        self.inflight.model.version()
    }

    /// The client's id of the request; may be empty.
    pub fn request_id(&self) -> &str {
        &self.inflight.id
    }

    /// The labels of the answering model's outputs; `None` if it has none.
    pub(crate) fn labels(&self) -> Option<Arc<OutputLabels>> {
        self.inflight.model.output_labels()
    }

    /// Cancels the request, for callers that keep waiting for its answers.
    pub fn canceller(&self) -> Canceller {
        Canceller { inflight: Arc::downgrade(&self.inflight), place: self.place.clone() }
    }

    /// The next answer; `None` after the last.
    pub async fn next(&mut self) -> Option<Answer> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`next`](Self::next) as a poll function.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        if self.classifying.is_some() {
            return self.poll_classified(context).map(Some);
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut state = self.inflight.lock();
        let answer = state.unread.pop();
        if answer.is_none() && !state.finished {
            state.wait(context);
            return Poll::Pending;
        }
        self.is_over = state.is_over();
        self.ended_with_answer = self.is_over && state.finished_with_answer;
        drop(state);
        match answer {
            Some(Ok(response)) => self.classify(response, context).map(Some),
            other => Poll::Ready(other),
        }
    }

    /// The answer of a model that sends exactly one.
    ///
    /// # Errors
    /// The answer's own error, or `Internal` unless exactly one answer was sent.
    pub async fn single(&mut self) -> Result<Response> {
        poll_fn(|context| self.poll_single(context)).await
    }

    /// [`single`](Self::single) as a poll function.
    pub fn poll_single(&mut self, context: &mut Context<'_>) -> Poll<Result<Response>> {
        if self.classifying.is_some() {
            return self.poll_classified(context);
        }
        match ready!(self.poll_first_two(context)) {
            (Some(Ok(_)), true) => Poll::Ready(Err(self.wrong_count("more than one answer"))),
            (Some(Ok(response)), false) => self.classify(response, context),
            (Some(Err(error)), _) => Poll::Ready(Err(error)),
            (None, _) => Poll::Ready(Err(self.wrong_count("no answer"))),
        }
    }

    /// The first answer of a model that should send exactly one. Further answers are ignored.
    ///
    /// # Errors
    /// The answer's own error, or `Internal` if none was sent.
    pub fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Result<Response>> {
        if self.classifying.is_some() {
            return self.poll_classified(context);
        }
        match ready!(self.poll_first_two(context)).0 {
            Some(Ok(response)) => self.classify(response, context),
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => Poll::Ready(Err(self.wrong_count("no answer"))),
        }
    }

    /// The first answer, and whether there is a second one.
    fn poll_first_two(&mut self, context: &mut Context<'_>) -> Poll<(Option<Answer>, bool)> {
        let mut state = self.inflight.lock();
        if !state.finished && !state.unread.has_several() {
            state.wait(context);
            return Poll::Pending;
        }
        // The answers have ended, or exceed the one expected.
        let (first, second) = (state.unread.pop(), state.unread.pop());
        self.is_over = state.is_over();
        self.ended_with_answer = self.is_over && state.finished_with_answer;
        drop(state);
        Poll::Ready((first, second.is_some()))
    }

    /// Whether the request left its queue to be executed. The answer of one that did not is the scheduler's.
    pub fn was_executed(&self) -> bool {
        self.inflight.is_started() || self.inflight.is_delegated && self.inflight.is_queued()
    }

    /// Whether the backend marked the answer read last as the last one, rather than ending the stream afterwards.
    pub fn ended_with_answer(&self) -> bool {
        self.ended_with_answer
    }

    /// How often this request took its lock so far.
    #[cfg(test)]
    pub(crate) fn locks_taken(&self) -> usize {
        self.inflight.locked.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn wrong_count(&self, count: &str) -> Error {
        let model = self.inflight.model.name();
        Error::internal(format!("model '{model}' returned {count}, but exactly one was expected"))
    }

    /// Classifies the outputs that the request wants as classes; large ones on another thread.
    fn classify(&mut self, mut response: Response, context: &mut Context<'_>) -> Poll<Result<Response>> {
        let Self { inflight, .. } = self;
        if inflight.classes.is_empty() {
            return Poll::Ready(Ok(response));
        }
        let classified = response.outputs.iter().filter(|output| inflight.classes_of(output).is_some());
        if !long_work::is_long(classified.map(Tensor::byte_size).sum()) {
            return Poll::Ready(inflight.classify(&mut response).map(|()| response));
        }
        let inflight = Arc::clone(inflight);
        let work = long_work::run(move || inflight.classify(&mut response).map(|()| response));
        self.classifying = Some(work.map(Result::flatten).boxed());
        self.poll_classified(context)
    }

    /// The answer that is being classified.
    fn poll_classified(&mut self, context: &mut Context<'_>) -> Poll<Result<Response>> {
        let Some(classifying) = &mut self.classifying else {
            return Poll::Ready(Err(Error::internal("no answer is being classified")));
        };
        let outcome = ready!(classifying.poll_unpin(context));
        self.classifying = None;
        Poll::Ready(outcome)
    }
}

impl InFlight {
    /// How many classes the request wants of an output; `None` for its contents.
    fn classes_of(&self, output: &Tensor) -> Option<usize> {
        self.classes.iter().find(|(name, _)| *name == output.name).map(|(_, count)| *count as usize)
    }

    fn classify(&self, response: &mut Response) -> Result<()> {
        let batched = self.model.signature().max_batch_size > 0;
        for output in &mut response.outputs {
            if let Some(count) = self.classes_of(output) {
                *output = classification::top(output, count, batched, self.model.labels(&output.name))?;
            }
        }
        Ok(())
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if !self.is_over && !self.inflight.lock().finished {
            self.canceller().cancel();
        }
    }
}

impl State {
    /// Whether there is nothing left to be read.
    fn is_over(&self) -> bool {
        self.finished && self.unread.is_empty()
    }

    /// Wakes the reader when something changes.
    fn wait(&mut self, context: &Context<'_>) {
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            None => self.reader = Some(context.waker().clone()),
        }
    }
}

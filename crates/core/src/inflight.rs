//! A request between its admission and its last answer: the sink that backends answer into, and the stream that the
//! caller reads from. Both are the same allocation.
//!
//! States of the caller's side: waiting -> (answered)* -> finished. The stream dropped before it is finished cancels. So
//! does a caller who lets more answers wait than the server keeps for one request: the backend is never held up for it.

mod unread;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, Error, ErrorCode, ExecutionTimes, InferRequest, Phase, RequestTrace, Response, ResponseKind,
    ResponseSink, ResponseTimes, Result, TensorActivity, TraceShare,
};

use self::unread::Unread;
use crate::caller::Caller;
use crate::classification;
use crate::model::Model;
use crate::scheduler::Ticket;
use crate::statistics::{ComputeTimes, Ending, FailureReason};

/// What the server keeps of a request while a scheduler and a backend have it.
pub(crate) struct InFlight {
    model: Arc<Model>,
    id: String,
    batch_size: usize,
    /// Outputs to be answered as classes: name and how many.
    classes: Vec<(String, u32)>,
    arrived: Instant,
    /// Nanoseconds from `arrived` to the beginning of each phase; 0 if it was not reached.
    phases: [AtomicU64; 3],
    cancelled: AtomicBool,
    answers: Mutex<Answers>,
    /// What hears of it, if it is traced.
    trace: Option<Arc<TraceShare>>,
    caller: Caller,
}

#[derive(Default)]
struct Answers {
    unread: Unread,
    finished: bool,
    /// It failed because too much was not read. What the backend still answers is of no use.
    given_up: bool,
    /// Whether the last answer was given as the last.
    finished_with_answer: bool,
    /// Whether any answer was an error.
    failed: bool,
    /// Whether there was any answer; known only if distributions of latencies are kept.
    answered: bool,
    /// How many answers a decoupled model gave, and the time from `arrived` to the last one.
    given: usize,
    given_last: Duration,
    compute: Compute,
    reader: Option<Waker>,
}

/// What comes next of a request's answers.
struct Accepted {
    answer: Option<Answer>,
    last: bool,
    /// Whether an earlier one was an error.
    failed: bool,
}

/// Who knows how long the request was computed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Compute {
    /// The phases that were marked tell.
    #[default]
    Marked,
    /// The backend reports it, before the last answer or after it.
    Awaited,
    /// The request is counted as successful; the backend has not reported yet.
    Missing,
    /// The backend has reported it.
    Reported(ComputeTimes),
}

impl InFlight {
    pub(crate) fn new(
        model: Arc<Model>,
        request: &InferRequest,
        batch_size: usize,
        arrived: Instant,
        caller: Caller,
    ) -> Arc<Self> {
        caller.begin();
        let classes = request
            .outputs
            .iter()
            .filter(|output| output.classification > 0)
            .map(|output| (output.name.clone(), output.classification))
            .collect();
        Arc::new(Self {
            model,
            id: request.id.clone(),
            batch_size,
            classes,
            arrived,
            phases: Default::default(),
            cancelled: AtomicBool::new(false),
            answers: Mutex::default(),
            trace: request.trace.as_ref().map(RequestTrace::share),
            caller,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        // Each change is one assignment or push, so a panic while it was locked leaves nothing half-done.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The response as the client sees it: shapes put back that a `reshape` in the configuration changed.
    fn client_view(&self, mut response: Response) -> Response {
        let signature = self.model.signature();
        for output in &mut response.outputs {
            let Some(expected) = signature.output(&output.name) else { continue };
            if let Some(shape) = expected.client_shape(&output.shape, signature.max_batch_size > 0) {
                output.shape = shape;
            }
        }
        response
    }

    /// The answer, or the error that ends the request because too much waits to be read already; `None` where that has
    /// happened before.
    fn accept(&self, answer: Option<Answer>, last: bool) -> Option<Accepted> {
        let limit = self.model.max_unread();
        let mut answers = self.lock();
        if answers.given_up {
            return None;
        }
        match answer {
            Some(answer) if !answers.unread.has_room(&answer, limit) => {
                // What waits is dropped: it would be kept for a client that perhaps never reads it.
                let dropped = std::mem::take(&mut answers.unread);
                answers.given_up = true;
                drop(answers);
                drop(dropped);
                self.cancelled.store(true, Ordering::Relaxed);
                let error = Error::unavailable(format!(
                    "the answers of model '{}' were not read as fast as they came: more than {limit} bytes of them \
                     waited; read them faster, or raise --max-unread-response-bytes",
                    self.model.name()
                ));
                Some(Accepted { answer: Some(Err(error)), last: true, failed: true })
            }
            answer => Some(Accepted { answer, last, failed: answers.failed }),
        }
    }

    fn record(&self, ending: Ending) {
        let total = self.arrived.elapsed();
        // A phase that was not reached began when the next one did.
        let mut next = total;
        let mut begins = [Duration::ZERO; 3];
        for (begin, phase) in begins.iter_mut().zip(&self.phases).rev() {
            let nanos = phase.load(Ordering::Relaxed);
            if nanos != 0 {
                next = Duration::from_nanos(nanos);
            }
            *begin = next;
        }
        let [started, inputs_ready, outputs_ready] = begins;
        self.trace_execution(begins, total);
        let statistics = self.model.statistics();
        statistics.record(ending, self.batch_size, total, started);
        if ending != Ending::Success {
            return self.caller.computed(None);
        }
        let mut answers = self.lock();
        let times = match answers.compute {
            Compute::Reported(times) => times,
            Compute::Awaited | Compute::Missing => {
                answers.compute = Compute::Missing;
                return;
            }
            Compute::Marked => ComputeTimes {
                input: inputs_ready.saturating_sub(started),
                infer: outputs_ready.saturating_sub(inputs_ready),
                output: total.saturating_sub(outputs_ready),
            },
        };
        drop(answers);
        statistics.record_compute(times);
        self.caller.computed(Some(times));
    }

    /// Why the request failed, as metrics tell it. An error that came before its execution began is the scheduler's.
    fn failure_reason(&self, error: Option<&Error>) -> FailureReason {
        let executed = self.phases[Phase::Started as usize].load(Ordering::Relaxed) != 0;
        match error.map(Error::code) {
            _ if self.model.is_ensemble() || self.lock().given_up => FailureReason::Other,
            _ if executed => FailureReason::Backend,
            Some(ErrorCode::Cancelled) => FailureReason::Cancelled,
            Some(ErrorCode::Unavailable) => FailureReason::Rejected,
            _ => FailureReason::Other,
        }
    }

    /// Tells the trace what the marked phases say of the execution, unless it was not begun or the backend tells.
    fn trace_execution(&self, [started, inputs_ready, outputs_ready]: [Duration; 3], ended: Duration) {
        let Some(share) = &self.trace else { return };
        let executed = self.phases[Phase::Started as usize].load(Ordering::Relaxed) != 0;
        if executed && self.lock().compute == Compute::Marked {
            share.trace().report_execution(&ExecutionTimes {
                started: self.arrived + started,
                inputs_ready: self.arrived + inputs_ready,
                outputs_ready: self.arrived + outputs_ready,
                ended: self.arrived + ended,
            });
        }
    }

    /// Counts a response of a decoupled model by its place.
    fn record_response(&self, answer: Option<&Answer>) {
        let kind = match answer {
            None => ResponseKind::Nothing,
            Some(Ok(_)) => ResponseKind::Answer,
            Some(Err(error)) if error.code() == ErrorCode::Cancelled => ResponseKind::Cancelled,
            Some(Err(_)) => ResponseKind::Error,
        };
        let now = self.arrived.elapsed();
        let mut answers = self.lock();
        let place = answers.given;
        answers.given += 1;
        let before = std::mem::replace(&mut answers.given_last, now);
        drop(answers);
        let before = match place {
            0 => Duration::from_nanos(self.phases[Phase::Started as usize].load(Ordering::Relaxed)),
            _ => before,
        };
        // Outputs are handed on as they are made: there is no time between the two.
        self.model.statistics().record_response(place, kind, now.saturating_sub(before), Duration::ZERO);
    }
}

impl ResponseSink for InFlight {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        let Some(Accepted { answer, last, failed }) = self.accept(answer, last) else { return };
        let answer = answer.map(|answer| answer.map(|response| self.client_view(response)));
        if let (Some(share), Some(Ok(response))) = (&self.trace, &answer) {
            share.trace().report_tensors(TensorActivity::BackendOutput, &response.outputs);
        }
        if self.model.is_decoupled() && self.lock().compute == Compute::Marked {
            self.record_response(answer.as_ref());
        }
        if let (Some(latencies), Some(_)) = (self.model.statistics().latencies(), &answer)
            && !std::mem::replace(&mut self.lock().answered, true)
        {
            latencies.answered_first(self.arrived.elapsed());
        }
        if last {
            // Before the answer leaves: whoever has it finds it counted.
            self.record(match &answer {
                Some(Err(error)) if error.code() == ErrorCode::Cancelled => {
                    Ending::Cancelled(self.failure_reason(Some(error)))
                }
                Some(Err(error)) => Ending::Failure(self.failure_reason(Some(error))),
                _ if failed => Ending::Failure(self.failure_reason(None)),
                _ => Ending::Success,
            });
        }
        let mut answers = self.lock();
        // Another thread gave up meanwhile.
        if answers.finished {
            return;
        }
        answers.finished_with_answer = last && answer.is_some();
        if let Some(answer) = answer {
            answers.failed |= answer.is_err();
            answers.unread.push(answer);
        }
        answers.finished |= last;
        let reader = answers.reader.take();
        drop(answers);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn mark(&self, phase: Phase, at: Instant) {
        let since = at.saturating_duration_since(self.arrived).as_nanos();
        let nanos = u64::try_from(since).unwrap_or(u64::MAX).max(1);
        self.phases[phase as usize].store(nanos, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn model_name(&self) -> &str {
        self.model.name()
    }

    fn await_report(&self) {
        self.lock().compute = Compute::Awaited;
    }

    fn report(&self, times: ExecutionTimes) {
        // What an ensemble reports is the sum of what its members' own traces tell.
        if let Some(share) = self.trace.as_ref().filter(|_| !self.model.is_ensemble()) {
            share.trace().report_execution(&times);
        }
        let times = ComputeTimes {
            input: times.inputs_ready.saturating_duration_since(times.started),
            infer: times.outputs_ready.saturating_duration_since(times.inputs_ready),
            output: times.ended.saturating_duration_since(times.outputs_ready),
        };
        let before = std::mem::replace(&mut self.lock().compute, Compute::Reported(times));
        if before == Compute::Missing {
            self.model.statistics().record_compute(times);
            self.caller.computed(Some(times));
        }
    }

    fn report_response(&self, kind: ResponseKind, times: ResponseTimes) {
        let mut answers = self.lock();
        let place = answers.given;
        answers.given += 1;
        drop(answers);
        let duration = times.ended.saturating_duration_since(times.started);
        let output =
            times.output_started.map_or(Duration::ZERO, |start| times.ended.saturating_duration_since(start));
        self.model.statistics().record_response(place, kind, duration, output);
    }
}

/// Stops a request whose answers are still waited for.
#[derive(Clone)]
pub struct Canceller {
    inflight: Arc<InFlight>,
    ticket: Option<Ticket>,
}

impl Canceller {
    /// Stops it: if it waits for an instance, it is answered at once, and otherwise its backend may see that it is no
    /// longer wanted.
    pub fn cancel(&self) {
        self.inflight.cancelled.store(true, Ordering::Relaxed);
        if let Some(ticket) = self.ticket {
            self.inflight.model.forget(ticket);
        }
    }
}

/// The answers to one request, in the order they were given. Dropping it before the last one cancels the request.
pub struct ResponseStream {
    inflight: Arc<InFlight>,
    /// Where the request waits, if it did not leave at once.
    ticket: Option<Ticket>,
}

impl ResponseStream {
    pub(crate) fn new(inflight: Arc<InFlight>, ticket: Option<Ticket>) -> Self {
        Self { inflight, ticket }
    }

    /// Name of the model that answers.
    pub fn model_name(&self) -> &str {
        self.inflight.model.name()
    }

    /// Version of the model that answers.
    pub fn model_version(&self) -> u64 {
        self.inflight.model.version()
    }

    /// The client's id of the request; empty if it gave none.
    pub fn request_id(&self) -> &str {
        &self.inflight.id
    }

    /// What stops the request, for who goes on waiting for its answers.
    pub fn canceller(&self) -> Canceller {
        Canceller { inflight: Arc::clone(&self.inflight), ticket: self.ticket }
    }

    /// The next answer; `None` after the last.
    pub async fn next(&mut self) -> Option<Answer> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The answer of a model that gives exactly one.
    ///
    /// # Errors
    /// The answer's own error, or `Unsupported` if there were none or several.
    pub async fn single(&mut self) -> Result<Response> {
        poll_fn(|context| self.poll_single(context)).await
    }

    /// [`single`](Self::single), for whoever polls.
    pub fn poll_single(&mut self, context: &mut Context<'_>) -> Poll<Result<Response>> {
        let mut answers = self.inflight.lock();
        if !answers.finished && !answers.unread.has_several() {
            answers.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(answers);
        // All that there is has come, or more than there should be.
        Poll::Ready(match (self.poll_next(context), self.poll_next(context)) {
            (Poll::Ready(Some(Ok(_))), Poll::Ready(Some(_))) => Err(self.wrong_count("more than one answer")),
            (Poll::Ready(Some(answer)), _) => answer,
            _ => Err(self.wrong_count("no answer")),
        })
    }

    /// Whether the answer read last was given as the last: none follows, and the backend did not say so afterwards.
    pub fn ended_with_answer(&self) -> bool {
        let answers = self.inflight.lock();
        answers.finished_with_answer && answers.unread.is_empty()
    }

    fn wrong_count(&self, count: &str) -> Error {
        let model = self.inflight.model.name();
        Error::unsupported(format!("model '{model}' gave {count} where one was asked for"))
    }

    /// [`next`](Self::next), for whoever polls.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let mut answers = self.inflight.lock();
        if let Some(answer) = answers.unread.pop() {
            drop(answers);
            return Poll::Ready(Some(answer.and_then(|response| self.classified(response))));
        }
        if answers.finished {
            return Poll::Ready(None);
        }
        answers.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn classified(&self, mut response: Response) -> Result<Response> {
        let batched = self.inflight.model.signature().max_batch_size > 0;
        for (name, count) in &self.inflight.classes {
            if let Some(output) = response.outputs.iter_mut().find(|output| output.name == *name) {
                *output =
                    classification::top(output, *count as usize, batched, self.inflight.model.labels(name))?;
            }
        }
        Ok(response)
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if !self.inflight.lock().finished {
            self.canceller().cancel();
        }
    }
}

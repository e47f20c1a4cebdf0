//! A request between admission and its last answer: the sink that backends answer into, and the stream that the caller
//! reads from. Both share one allocation.
//!
//! States of the caller's side: waiting -> (answered)* -> finished. The stream dropped before it is finished cancels.
//! So does a caller that leaves more answers unread than the server keeps for one request: the backend never waits for
//! it.
//!
//! A plain request takes the lock three times: to register the reader, to deliver the answer, to read it. Delivering
//! updates everything, statistics included, under one lock, so nothing is counted twice. Traces are reported without
//! the lock, since they may call into a backend.

mod stream;
mod unread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, CancelSignal, Error, ErrorCode, ExecutionTimes, InferRequest, Phase, Request, RequestTrace,
    Response, ResponseKind, ResponseSink, ResponseTimes, Result, TensorActivity, TraceShare,
};

pub(crate) use self::stream::Place;
pub use self::stream::{Canceller, ResponseStream};
use self::unread::UnreadAnswers;
use crate::caller::Caller;
use crate::model::Model;
use nereid_scheduling::Ticket;
use nereid_statistics::{ComputeTimes, FailureReason, RequestOutcome};

/// The server's part of a request while a scheduler and a backend have the rest.
pub(crate) struct InFlight {
    model: Arc<Model>,
    id: String,
    batch_size: usize,
    /// Outputs to be answered as classes: name and how many.
    classes: Vec<(String, u32)>,
    /// Whether responses are counted by their index.
    is_decoupled: bool,
    /// Whether other models execute it.
    is_delegated: bool,
    arrived: Instant,
    /// Nanoseconds from `arrived` to the beginning of each phase; 0 if it was not reached.
    phases: [AtomicU64; 3],
    cancelled: CancelSignal,
    /// Whether the request has passed the interceptors. Requests answered before were not computed.
    queued: AtomicBool,
    /// Whether the backend reports the times of the execution, before or after the last answer. Otherwise the marked phases
    /// count.
    awaits_report: AtomicBool,
    state: Mutex<State>,
    /// How often the state was locked.
    #[cfg(test)]
    locked: std::sync::atomic::AtomicUsize,
    /// The trace, if the request is traced.
    trace: Option<Arc<TraceShare>>,
    caller: Caller,
}

#[derive(Default)]
struct State {
    unread: UnreadAnswers,
    finished: bool,
    /// Whether the last answer was given as the last.
    finished_with_answer: bool,
    /// Whether any answer was an error.
    failed: bool,
    /// Whether there was any answer.
    answered: bool,
    /// The number of answers of a decoupled model, and the time from `arrived` to the last one.
    responses: usize,
    last_response: Duration,
    /// The times of the execution as reported by the backend.
    reported: Option<ComputeTimes>,
    /// The request is counted as successful, and its backend has not reported yet.
    lacks_report: bool,
    reader: Option<Waker>,
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
            id: request.id.clone(),
            batch_size,
            classes,
            is_decoupled: model.is_decoupled(),
            is_delegated: model.is_composite(),
            arrived,
            phases: Default::default(),
            cancelled: CancelSignal::default(),
            queued: AtomicBool::new(false),
            awaits_report: AtomicBool::new(false),
            state: Mutex::default(),
            #[cfg(test)]
            locked: std::sync::atomic::AtomicUsize::new(0),
            trace: request.trace.as_ref().map(RequestTrace::share),
            caller,
            model,
        })
    }

    /// Hands the request to what executes it.
    ///
    /// # Errors
    /// The request is wrong, and was not answered.
    pub(crate) fn enqueue(&self, request: Request) -> Result<Option<Ticket>> {
        self.queued.store(true, Ordering::Relaxed);
        self.model.executor().submit(request)
    }

    /// The requested model.
    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The origin of the request.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        self.locked.fetch_add(1, Ordering::Relaxed);
        // Each change is one assignment or push, so a panic while it was locked leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether the answer exceeds the limit of unread answers.
    fn overruns(&self, state: &State, answer: Option<&Answer>) -> bool {
        answer.is_some_and(|answer| !state.unread.has_room(answer, self.model.max_unread()))
    }

    /// The answer, whose outputs count until the client has taken them.
    ///
    /// # Errors
    /// The budget has no room for it.
    fn held(&self, mut response: Response) -> Result<Response> {
        for output in &mut response.outputs {
            for buffer in output.buffers.iter_mut().filter(|buffer| !buffer.is_placed()) {
                buffer.try_replace(|bytes| self.model.bodies().hold(bytes))?;
            }
        }
        Ok(response)
    }

    fn overrun(&self) -> Error {
        Error::unavailable(format!(
            "model '{}': more than {} bytes of unread responses; read them faster, or raise \
             --max-unread-response-bytes",
            self.model.name(),
            self.model.max_unread(),
        ))
    }

    fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }

    #[expect(clippy::indexing_slicing, reason = "one place for each phase")]
    fn phase(&self, phase: Phase) -> &AtomicU64 {
        &self.phases[phase as usize]
    }

    /// Whether its execution has begun.
    fn is_started(&self) -> bool {
        self.phase(Phase::Started).load(Ordering::Relaxed) != 0
    }

    /// Whether the compute time follows from the marked phases.
    fn is_measured(&self, state: &State) -> bool {
        state.reported.is_none() && !self.awaits_report.load(Ordering::Acquire)
    }

    /// When each phase began. One that was not reached began when the next one did.
    fn beginnings(&self, ended: Duration) -> [Duration; 3] {
        let mut next = ended;
        let mut begins = [Duration::ZERO; 3];
        for (begin, phase) in begins.iter_mut().zip(&self.phases).rev() {
            let nanos = phase.load(Ordering::Relaxed);
            if nanos != 0 {
                next = Duration::from_nanos(nanos);
            }
            *begin = next;
        }
        begins
    }

    /// Counts the request, which ended so.
    fn record(&self, state: &mut State, ending: RequestOutcome, ended: Duration) {
        let [started, inputs_ready, outputs_ready] = self.beginnings(ended);
        let statistics = self.model.statistics();
        // What was answered before the queue was neither executed nor did it wait for that.
        let (items, waited) = if self.is_queued() { (self.batch_size, started) } else { (0, Duration::ZERO) };
        statistics.record(ending, items, ended, waited);
        if ending != RequestOutcome::Success || !self.is_queued() {
            return self.caller.computed(None);
        }
        let times = if self.is_measured(state) {
            ComputeTimes {
                input: inputs_ready.saturating_sub(started),
                infer: outputs_ready.saturating_sub(inputs_ready),
                output: ended.saturating_sub(outputs_ready),
            }
        } else if let Some(times) = state.reported {
            times
        } else {
            state.lacks_report = true;
            return;
        };
        statistics.record_compute(times);
        self.caller.computed(Some(times));
    }

    /// How the request ended, as metrics count it. Errors before execution come from the scheduler.
    fn ending(&self, last: Option<&Answer>, failed_before: bool, overrun: bool) -> RequestOutcome {
        let (code, retry_after) = match last {
            Some(Err(error)) => (Some(error.code()), error.retry_after()),
            _ if failed_before => (None, None),
            _ => return RequestOutcome::Success,
        };
        let reason = match code {
            _ if overrun || self.is_delegated && self.is_queued() => FailureReason::Other,
            _ if self.is_started() => FailureReason::Backend,
            Some(ErrorCode::Cancelled) => FailureReason::Cancelled,
            // Only load shedding knows when a queue will have room.
            Some(ErrorCode::Unavailable) if self.is_queued() && retry_after.is_some() => FailureReason::Shed,
            Some(ErrorCode::Unavailable) => FailureReason::Rejected,
            _ => FailureReason::Other,
        };
        if code == Some(ErrorCode::Cancelled) {
            RequestOutcome::Cancelled(reason)
        } else {
            RequestOutcome::Failure(reason)
        }
    }

    /// Reports an answer to the trace before it is delivered: its outputs and, with the last one, the execution's phases,
    /// unless it was not executed or the backend reports them itself.
    fn trace_answer(&self, share: &TraceShare, answer: Option<&Answer>, last: bool) {
        let state = self.lock();
        if state.finished {
            return;
        }
        let (overruns, measured) = (self.overruns(&state, answer), self.is_measured(&state));
        drop(state);
        if let Some(Ok(response)) = answer.filter(|_| !overruns) {
            share.trace().report_tensors(TensorActivity::BackendOutput, &response.outputs);
        }
        if (last || overruns) && measured && self.is_started() {
            let ended = self.arrived.elapsed();
            let [started, inputs_ready, outputs_ready] = self.beginnings(ended);
            share.trace().report_execution(&ExecutionTimes {
                started: self.arrived + started,
                inputs_ready: self.arrived + inputs_ready,
                outputs_ready: self.arrived + outputs_ready,
                ended: self.arrived + ended,
            });
        }
    }

    /// Counts a response of a decoupled model by its index.
    fn record_response(&self, state: &mut State, answer: Option<&Answer>, now: Duration) {
        let kind = match answer {
            None => ResponseKind::Nothing,
            Some(Ok(_)) => ResponseKind::Answer,
            Some(Err(error)) if error.code() == ErrorCode::Cancelled => ResponseKind::Cancelled,
            Some(Err(_)) => ResponseKind::Error,
        };
        let before = match state.responses {
            0 => Duration::from_nanos(self.phase(Phase::Started).load(Ordering::Relaxed)),
            _ => state.last_response,
        };
        // Outputs are forwarded as they are made, so no time passes between the two.
        let duration = now.saturating_sub(before);
        self.model.statistics().record_response(state.responses, kind, duration, Some(Duration::ZERO));
        state.responses += 1;
        state.last_response = now;
    }
}

impl ResponseSink for InFlight {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        let mut answer = answer.map(|answer| answer.map(|response| self.client_view(response)));
        if let Some(share) = &self.trace {
            self.trace_answer(share, answer.as_ref(), last);
        }
        let mut no_room = None;
        if self.caller.is_remote()
            && let Some(Ok(response)) = answer
        {
            let held = self.held(response);
            no_room = held.as_ref().err().cloned();
            answer = Some(held);
        }
        let now = self.arrived.elapsed();
        let mut dropped = UnreadAnswers::default();
        let mut state = self.lock();
        if state.finished {
            return;
        }
        let overrun = no_room.is_some() || self.overruns(&state, answer.as_ref());
        if overrun {
            // What waits is dropped: it would be kept for a client that perhaps never reads it.
            std::mem::swap(&mut dropped, &mut state.unread);
            answer = Some(Err(no_room.unwrap_or_else(|| self.overrun())));
        }
        let last = last || overrun;
        if self.is_decoupled && self.is_queued() && self.is_measured(&state) {
            self.record_response(&mut state, answer.as_ref(), now);
        }
        if answer.is_some()
            && !std::mem::replace(&mut state.answered, true)
            && let Some(latencies) = self.model.statistics().latencies()
        {
            latencies.answered_first(now);
        }
        if last {
            // Counted before the answer leaves, so a client that has its answer finds it in the statistics.
            let ending = self.ending(answer.as_ref(), state.failed, overrun);
            self.record(&mut state, ending, now);
        }
        state.finished = last;
        state.finished_with_answer = last && answer.is_some();
        if let Some(answer) = answer.take() {
            state.failed |= answer.is_err();
            state.unread.push(answer);
        }
        let reader = state.reader.take();
        drop(state);
        if overrun {
            self.cancelled.cancel();
        }
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn mark(&self, phase: Phase, at: Instant) {
        let since = at.saturating_duration_since(self.arrived).as_nanos();
        let nanos = u64::try_from(since).unwrap_or(u64::MAX).max(1);
        self.phase(phase).store(nanos, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    fn cancel_signal(&self) -> Option<&CancelSignal> {
        Some(&self.cancelled)
    }

    fn model_name(&self) -> &str {
        self.model.name()
    }

    fn await_report(&self) {
        self.awaits_report.store(true, Ordering::Release);
    }

    fn report(&self, times: ExecutionTimes) {
        // The times of an ensemble are the sum of its members', which have traces of their own.
        if let Some(share) = self.trace.as_ref().filter(|_| !self.is_delegated) {
            share.trace().report_execution(&times);
        }
        let times = ComputeTimes::from(times);
        let mut state = self.lock();
        state.reported = Some(times);
        if std::mem::take(&mut state.lacks_report) {
            self.model.statistics().record_compute(times);
            self.caller.computed(Some(times));
        }
    }

    fn report_response(&self, kind: ResponseKind, times: ResponseTimes) {
        let mut state = self.lock();
        let index = state.responses;
        state.responses += 1;
        drop(state);
        let duration = times.ended.saturating_duration_since(times.started);
        let output = times.output_started.map(|start| times.ended.saturating_duration_since(start));
        self.model.statistics().record_response(index, kind, duration, output);
    }
}

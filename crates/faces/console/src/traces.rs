//! Traces of single requests. The console captures the next request to a model on demand.
//!
//! A trace holds the times of the stages of a request and of the requests that it caused, and no contents of tensors. The last
//! traces are kept, one for each model.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nereid_core::backend_api::{Activity, Tensor, TensorActivity, Trace, TraceSink};

/// How long a capture waits for a request.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// Traces that are kept.
const MAX_TRACES: usize = 16;
/// Limits the points of a trace. Stages of requests may be twice as many. A trace takes at most 128 KiB.
const MAX_POINTS: usize = 500;
/// Bytes of a name that a client or a backend chose.
const MAX_NAME: usize = 64;

/// The captures of a server. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Captures(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// The number of the last capture.
    last: u64,
    /// The captures that wait for a request, and until when they do.
    waiting: BTreeMap<String, (u64, Instant)>,
    /// The last trace of each of some models, the newest at the end.
    traces: VecDeque<Arc<CapturedTrace>>,
}

/// The trace of a request and of those that it caused.
#[derive(Debug)]
pub(crate) struct CapturedTrace {
    /// The number of the capture.
    pub number: u64,
    pub model: String,
    /// When it began.
    pub at: SystemTime,
    pub request_id: String,
    /// Sorted by their beginnings; the first is the client's request.
    pub spans: Vec<Span>,
    /// Points beyond those that a trace may have.
    pub left_out: usize,
}

/// A request with the points that it passed.
#[derive(Debug)]
pub(crate) struct Span {
    pub id: u64,
    /// The id of the request that caused it, or 0.
    pub parent: u64,
    pub model: String,
    pub version: u64,
    /// Names and times since the first point of the trace.
    pub points: Vec<(Cow<'static, str>, Duration)>,
}

/// The state of the last capture of a model.
#[derive(Default)]
pub(crate) struct Capture {
    /// The time until the capture ends without a trace, if it still waits.
    pub left: Option<Duration>,
    pub trace: Option<Arc<CapturedTrace>>,
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A capture of a model, which waits from now on: its sink, and until when it waits.
    pub(crate) fn begin(&self, model: &str, now: Instant) -> (Arc<dyn TraceSink>, Instant) {
        let until = now + WAIT;
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        inner.waiting.retain(|_, (_, until)| now < *until);
        inner.waiting.insert(model.to_owned(), (number, until));
        let record =
            Record { captures: self.clone(), number, model: model.to_owned(), recorded: Mutex::default() };
        (Arc::new(record), until)
    }

    /// The capture of a model.
    pub(crate) fn of(&self, model: &str, now: Instant) -> Capture {
        let inner = self.lock();
        let until = inner.waiting.get(model).map(|(_, until)| *until);
        Capture {
            left: until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero()),
            trace: inner.traces.iter().find(|trace| trace.model == model).cloned(),
        }
    }

    fn keep(&self, trace: CapturedTrace) {
        let mut inner = self.lock();
        if inner.waiting.get(&trace.model).is_some_and(|(number, _)| *number == trace.number) {
            inner.waiting.remove(&trace.model);
        }
        inner.traces.retain(|kept| kept.model != trace.model);
        if inner.traces.len() == MAX_TRACES {
            inner.traces.pop_front();
        }
        inner.traces.push_back(Arc::new(trace));
    }
}

/// Records a trace, and keeps it when the last of its requests is over.
struct Record {
    captures: Captures,
    number: u64,
    model: String,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    request_id: String,
    spans: Vec<RecordedSpan>,
    points: usize,
    left_out: usize,
}

struct RecordedSpan {
    id: u64,
    parent: u64,
    model: String,
    version: u64,
    points: Vec<(Cow<'static, str>, Instant)>,
}

/// The beginning of a name.
fn short(name: &str) -> &str {
    name.get(..name.floor_char_boundary(MAX_NAME)).unwrap_or(name)
}

impl Record {
    fn add(&self, trace: &Trace, name: Cow<'static, str>, at: Instant) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        // A stream has many responses, and a backend may report anything. The end of a request is there in any case.
        let is_stage = matches!(name, Cow::Borrowed(name) if name != "INFER_RESPONSE_COMPLETE");
        if recorded.points >= if is_stage { 2 * MAX_POINTS } else { MAX_POINTS } {
            recorded.left_out += 1;
            return;
        }
        recorded.points += 1;
        let subject = trace.subject();
        if let Some(subject) = subject.filter(|_| trace.parent() == 0 && recorded.request_id.is_empty()) {
            recorded.request_id = short(&subject.request_id).to_owned();
        }
        let known = recorded.spans.iter().position(|span| span.id == trace.id());
        let index = known.unwrap_or(recorded.spans.len());
        if known.is_none() {
            let (id, parent) = (trace.id(), trace.parent());
            let (model, version, points) = (String::new(), 0, Vec::new());
            recorded.spans.push(RecordedSpan { id, parent, model, version, points });
        }
        let Some(span) = recorded.spans.get_mut(index) else { return };
        // Faces stamp before the server knows what the request is for.
        if let Some(subject) = subject.filter(|_| span.version == 0) {
            (span.model, span.version) = (subject.model_name.clone(), subject.model_version);
        }
        span.points.push((name, at));
    }
}

impl TraceSink for Record {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant) {
        let name = match activity {
            Activity::Custom(name) => Cow::Owned(short(name).to_owned()),
            Activity::RequestStart => "REQUEST_START".into(),
            Activity::QueueStart => "QUEUE_START".into(),
            Activity::ComputeStart => "COMPUTE_START".into(),
            Activity::ComputeInputEnd => "COMPUTE_INPUT_END".into(),
            Activity::ComputeOutputStart => "COMPUTE_OUTPUT_START".into(),
            Activity::ComputeEnd => "COMPUTE_END".into(),
            Activity::RequestEnd => "REQUEST_END".into(),
        };
        self.add(trace, name, at);
    }

    fn tensor(&self, _: &Arc<Trace>, _: TensorActivity, _: &Tensor) {}

    fn stamp(&self, trace: &Trace, name: &'static str, at: Instant) {
        self.add(trace, name.into(), at);
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let recorded = std::mem::take(&mut *self.recorded.lock().unwrap_or_else(PoisonError::into_inner));
        let points = recorded.spans.iter().flat_map(|span| &span.points);
        // A capture that another one replaced, or that no request came for, has no points.
        let Some(first) = points.map(|(_, at)| *at).min() else { return };
        let mut spans: Vec<_> = recorded
            .spans
            .into_iter()
            .map(|RecordedSpan { id, parent, model, version, points }| {
                let since = |(name, at): (_, Instant)| (name, at.saturating_duration_since(first));
                let mut points: Vec<_> = points.into_iter().map(since).collect();
                points.sort_by_key(|(_, at)| *at);
                Span { id, parent, model, version, points }
            })
            .collect();
        let began = |span: &Span| span.points.first().map_or(Duration::ZERO, |(_, at)| *at);
        spans.sort_by_key(|span| (span.parent != 0, began(span)));
        let at = SystemTime::now().checked_sub(first.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        self.captures.keep(CapturedTrace {
            number: self.number,
            model: std::mem::take(&mut self.model),
            at,
            request_id: recorded.request_id,
            spans,
            left_out: recorded.left_out,
        });
    }
}

#[cfg(test)]
mod tests;

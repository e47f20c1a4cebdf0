//! Traces of requests: the times of a request's stages, and its tensors.
//!
//! A [`Trace`] reports to a [`TraceSink`], which decides where to store it. A [`RequestTrace`] moves with its request
//! from owner to owner and creates the traces of inner requests. An untraced request has none.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Error, ExecutionTimes, Result, Tensor};

/// The traced properties of a request. With nothing set, tracing is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// The time of each stage.
    pub timestamps: bool,
    /// The tensors.
    pub tensors: bool,
}

impl TraceLevel {
    /// Whether nothing is traced.
    pub fn is_off(self) -> bool {
        self == Self::default()
    }

    /// The names of the traced properties; `OFF` if none is.
    pub fn names(self) -> Vec<&'static str> {
        let level = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        let names: Vec<_> = level.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        if names.is_empty() { vec!["OFF"] } else { names }
    }

    /// The level with these names; unknown names are ignored. `None` if none is known.
    ///
    /// # Errors
    /// `InvalidArg` for `OFF` together with others.
    pub fn named(names: &[&str]) -> Result<Option<Self>> {
        let mut level = Self::default();
        let mut known = false;
        for name in names {
            match *name {
                "OFF" if names.len() > 1 => {
                    return Err(Error::invalid_arg("trace_level 'OFF' cannot be combined with others"));
                }
                "OFF" => known = true,
                "TIMESTAMPS" => (level.timestamps, known) = (true, true),
                "TENSORS" => (level.tensors, known) = (true, true),
                _ => {}
            }
        }
        Ok(known.then_some(level))
    }
}

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity<'a> {
    /// The server accepted it.
    RequestStart,
    /// The request was queued for an instance.
    QueueStart,
    /// Gathering the inputs began.
    ComputeStart,
    /// The inputs were in place.
    ComputeInputEnd,
    /// The model finished.
    ComputeOutputStart,
    /// The outputs were sent.
    ComputeEnd,
    /// The request was released.
    RequestEnd,
    /// An activity that a backend reports.
    Custom(&'a str),
}

impl Activity<'_> {
    /// The name in Triton's traces.
    pub fn name(&self) -> &str {
        match self {
            Self::RequestStart => "REQUEST_START",
            Self::QueueStart => "QUEUE_START",
            Self::ComputeStart => "COMPUTE_START",
            Self::ComputeInputEnd => "COMPUTE_INPUT_END",
            Self::ComputeOutputStart => "COMPUTE_OUTPUT_START",
            Self::ComputeEnd => "COMPUTE_END",
            Self::RequestEnd => "REQUEST_END",
            Self::Custom(name) => name,
        }
    }
}

/// The point at which a tensor was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorActivity {
    /// An input, when the request was queued.
    QueueInput,
    /// An output, as returned by the backend.
    BackendOutput,
}

impl TensorActivity {
    /// The name in Triton's traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueInput => "TENSOR_QUEUE_INPUT",
            Self::BackendOutput => "TENSOR_BACKEND_OUTPUT",
        }
    }
}

/// Receives the reports of traces. Called while the request is processed, so it must not block.
pub trait TraceSink: Any + Send + Sync {
    /// The request reached a stage. Called only if the level has timestamps.
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant);

    /// A tensor was recorded. Its contents may change afterwards. Called only if the level has tensors.
    fn tensor(&self, trace: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor);

    /// The protocol face reached the point `name`. Called only if the level has timestamps.
    fn stamp(&self, _trace: &Trace, _name: &'static str, _at: Instant) {}

    /// The request is complete; no further reports follow.
    fn ended(&self, _trace: &Arc<Trace>) {}

    /// The sink of a trace derived from one of this sink's traces.
    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink>;
}

/// The id of the next trace. 0 means no trace.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// One trace.
pub struct Trace {
    id: u64,
    parent: u64,
    level: TraceLevel,
    subject: OnceLock<TraceSubject>,
    context: Mutex<Arc<str>>,
    sink: Arc<dyn TraceSink>,
}

/// The traced request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSubject {
    /// Name of the request's model.
    pub model_name: String,
    /// Version of that model.
    pub model_version: u64,
    /// The client's request id; may be empty.
    pub request_id: String,
    /// Name of the principal that sends the request; empty if it is unknown.
    pub principal: String,
}

impl Trace {
    /// A trace with a new id that reports to `sink`. `parent` is the id of the trace it is derived from, or 0.
    pub fn new(level: TraceLevel, parent: u64, sink: Arc<dyn TraceSink>) -> Arc<Self> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, parent, level, subject: OnceLock::new(), context: Mutex::default(), sink })
    }

    /// A trace for an inner request.
    pub fn derive(&self) -> Arc<Self> {
        Self::new(self.level, self.id, Arc::clone(&self.sink).derived())
    }

    /// The trace's id, unique in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The id of the parent trace; 0 without a parent.
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// The trace's level.
    pub fn level(&self) -> TraceLevel {
        self.level
    }

    /// The traced request; `None` before the server accepted one.
    pub fn subject(&self) -> Option<&TraceSubject> {
        self.subject.get()
    }

    /// The trace's sink.
    pub fn sink(&self) -> &dyn TraceSink {
        &*self.sink
    }

    /// The context for continuing this trace elsewhere, as JSON; may be empty.
    pub fn context(&self) -> Arc<str> {
        Arc::clone(&self.context.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// See [`context`](Self::context).
    pub fn set_context(&self, context: impl Into<Arc<str>>) {
        *self.context.lock().unwrap_or_else(PoisonError::into_inner) = context.into();
    }

    /// Reports that the request reached a stage.
    pub fn report(self: &Arc<Self>, activity: Activity<'_>, at: Instant) {
        if self.level.timestamps {
            self.sink.activity(self, activity, at);
        }
    }

    /// Reports tensors.
    pub fn report_tensors(self: &Arc<Self>, activity: TensorActivity, tensors: &[Tensor]) {
        if self.level.tensors {
            tensors.iter().for_each(|tensor| self.sink.tensor(self, activity, tensor));
        }
    }

    /// Reports the times of the execution.
    pub fn report_execution(self: &Arc<Self>, times: &ExecutionTimes) {
        self.report(Activity::ComputeStart, times.started);
        self.report(Activity::ComputeInputEnd, times.inputs_ready);
        self.report(Activity::ComputeOutputStart, times.outputs_ready);
        self.report(Activity::ComputeEnd, times.ended);
    }

    /// Reports that the protocol face reached a point.
    pub fn stamp(&self, name: &'static str, at: Instant) {
        if self.level.timestamps {
            self.sink.stamp(self, name, at);
        }
    }
}

/// Shared by all owners of parts of one traced request. Dropping the last share ends the trace.
pub struct TraceShare(Arc<Trace>);

impl TraceShare {
    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.0
    }
}

impl Drop for TraceShare {
    fn drop(&mut self) {
        self.0.sink.ended(&self.0);
    }
}

/// The trace of a request, which moves with the request. Dropping it reports the end of the request.
pub struct RequestTrace {
    share: Arc<TraceShare>,
    begun: bool,
}

impl RequestTrace {
    /// The trace for one request.
    pub fn new(trace: Arc<Trace>) -> Self {
        Self { share: Arc::new(TraceShare(trace)), begun: false }
    }

    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.share.0
    }

    /// A share that may outlive the request.
    pub fn share(&self) -> Arc<TraceShare> {
        Arc::clone(&self.share)
    }

    /// A trace for an inner request, such as a step of an ensemble: a child of this one that reports to the same
    /// sink.
    pub fn child(&self) -> Self {
        Self::new(self.share.0.derive())
    }

    /// Sets the request and reports that the server accepted it. For the server.
    pub fn begin(&mut self, subject: TraceSubject, at: Instant) {
        // A trace belongs to one request; if it is reused, the first one counts.
        self.share.0.subject.get_or_init(|| subject);
        self.begun = true;
        self.share.0.report(Activity::RequestStart, at);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if self.begun {
            self.share.0.report(Activity::RequestEnd, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;

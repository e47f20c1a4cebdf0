//! What is told of a request on its way, if it is traced: when it reached which stage, and its tensors.
//!
//! A [`Trace`] tells a [`TraceSink`]; what becomes of it there is not known here. The trace of a request is handed from
//! one owner to the next in a [`RequestTrace`], which also makes the traces of requests that are made for its sake. A
//! request that is not traced has none.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Error, ExecutionTimes, Result, Tensor};

/// What is traced of a request. Nothing of it means that tracing is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// When it reached which stage.
    pub timestamps: bool,
    /// Its tensors.
    pub tensors: bool,
}

impl TraceLevel {
    /// Whether nothing is traced.
    pub fn is_off(self) -> bool {
        self == Self::default()
    }

    /// The names of what is traced; `OFF` if nothing is.
    pub fn names(self) -> Vec<&'static str> {
        let level = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        let names: Vec<_> = level.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        if names.is_empty() { vec!["OFF"] } else { names }
    }

    /// The level that these names make; a name that is not known is passed over. `None` if none is known.
    ///
    /// # Errors
    /// `InvalidArg` for `OFF` beside others.
    pub fn named(names: &[&str]) -> Result<Option<Self>> {
        let mut level = Self::default();
        let mut known = false;
        for name in names {
            match *name {
                "OFF" if names.len() > 1 => {
                    return Err(Error::invalid_arg("trace_level 'OFF' does not go together with others"));
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

/// A stage that a request reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity<'a> {
    /// The server took it.
    RequestStart,
    /// It began to wait for an instance.
    QueueStart,
    /// Gathering of inputs began.
    ComputeStart,
    /// Inputs were in place.
    ComputeInputEnd,
    /// The model had run.
    ComputeOutputStart,
    /// Outputs were handed on.
    ComputeEnd,
    /// Nobody has a use for the request any more.
    RequestEnd,
    /// What a backend says.
    Custom(&'a str),
}

impl Activity<'_> {
    /// The name that Triton's traces have for it.
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

/// Where a tensor was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorActivity {
    /// An input, when the request was queued.
    QueueInput,
    /// An output, as the backend gave it.
    BackendOutput,
}

impl TensorActivity {
    /// The name that Triton's traces have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueInput => "TENSOR_QUEUE_INPUT",
            Self::BackendOutput => "TENSOR_BACKEND_OUTPUT",
        }
    }
}

/// Hears of what traces are told. It is called while the request is on its way, so it must not block.
pub trait TraceSink: Any + Send + Sync {
    /// The request reached a stage at that time. Called only where the level has timestamps.
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant);

    /// A tensor was seen. Its contents may change afterwards. Called only where the level has tensors.
    fn tensor(&self, trace: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor);

    /// The protocol that brought the request did what `name` says. Called only where the level has timestamps.
    fn stamp(&self, _trace: &Trace, _name: &'static str, _at: Instant) {}

    /// Nothing more will be told of the request that the trace went with.
    fn ended(&self, _trace: &Arc<Trace>) {}

    /// What hears of a trace that is derived from one of this sink's.
    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink>;
}

/// The id of the next trace. 0 says that there is none.
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

/// Which request is traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSubject {
    /// Name of the model that it goes to.
    pub model_name: String,
    /// Version of that model.
    pub model_version: u64,
    /// The client's id for the request; empty if it gave none.
    pub request_id: String,
}

impl Trace {
    /// A trace with a new id that tells `sink`. `parent` is the id of the one that it is derived from, or 0.
    pub fn new(level: TraceLevel, parent: u64, sink: Arc<dyn TraceSink>) -> Arc<Self> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, parent, level, subject: OnceLock::new(), context: Mutex::default(), sink })
    }

    /// A trace of a request that is made for the sake of this one's.
    pub fn derive(&self) -> Arc<Self> {
        Self::new(self.level, self.id, Arc::clone(&self.sink).derived())
    }

    /// Its id, which no other trace of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The id of the trace that it is derived from; 0 if there is none.
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// What is traced.
    pub fn level(&self) -> TraceLevel {
        self.level
    }

    /// Which request is traced; `None` before the server took one.
    pub fn subject(&self) -> Option<&TraceSubject> {
        self.subject.get()
    }

    /// Who hears of it.
    pub fn sink(&self) -> &dyn TraceSink {
        &*self.sink
    }

    /// What others need in order to go on with this trace, as JSON; empty if nothing was said.
    pub fn context(&self) -> Arc<str> {
        Arc::clone(&self.context.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// See [`context`](Self::context).
    pub fn set_context(&self, context: impl Into<Arc<str>>) {
        *self.context.lock().unwrap_or_else(PoisonError::into_inner) = context.into();
    }

    /// Tells that the request reached a stage.
    pub fn report(self: &Arc<Self>, activity: Activity<'_>, at: Instant) {
        if self.level.timestamps {
            self.sink.activity(self, activity, at);
        }
    }

    /// Tells of tensors.
    pub fn report_tensors(self: &Arc<Self>, activity: TensorActivity, tensors: &[Tensor]) {
        if self.level.tensors {
            tensors.iter().for_each(|tensor| self.sink.tensor(self, activity, tensor));
        }
    }

    /// Tells how long the execution took.
    pub fn report_execution(self: &Arc<Self>, times: &ExecutionTimes) {
        self.report(Activity::ComputeStart, times.started);
        self.report(Activity::ComputeInputEnd, times.inputs_ready);
        self.report(Activity::ComputeOutputStart, times.outputs_ready);
        self.report(Activity::ComputeEnd, times.ended);
    }

    /// Tells what the protocol did that brought the request.
    pub fn stamp(&self, name: &'static str, at: Instant) {
        if self.level.timestamps {
            self.sink.stamp(self, name, at);
        }
    }
}

/// What all those share who have to do with one traced request. The last of them ends it.
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

/// The trace of a request, as the request carries it from one owner to the next. Dropped with the request, it tells that
/// the request has ended.
pub struct RequestTrace {
    share: Arc<TraceShare>,
    begun: bool,
}

impl RequestTrace {
    /// A request goes with this trace.
    pub fn new(trace: Arc<Trace>) -> Self {
        Self { share: Arc::new(TraceShare(trace)), begun: false }
    }

    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.share.0
    }

    /// The part that others keep beside the request.
    pub fn share(&self) -> Arc<TraceShare> {
        Arc::clone(&self.share)
    }

    /// For a request that is made for the sake of this one, such as a step of an ensemble: its trace tells the same sink
    /// and has this one as its parent.
    pub fn child(&self) -> Self {
        Self::new(self.share.0.derive())
    }

    /// Says which request it is, and that the server took it. Made for the server.
    pub fn begin(&mut self, subject: TraceSubject, at: Instant) {
        // A trace goes with one request; of one that is used again the first request counts.
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

//! C objects of traces: of requests that the server traces, created by C with callbacks (`trace/callbacks.rs`), or
//! derived from either for inner requests.

mod callbacks;

use std::any::Any;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nereid_backend_api::{Activity, Error, RequestTrace, Result, Trace, TraceLevel};
use triton_sys::*;

use self::callbacks::Callbacks;
use crate::boundary::exports;
use crate::clock::instant;
use crate::handle::{Handle, LentHandle};
use crate::text::c_string;

/// A trace behind a C handle.
pub(crate) struct TraceObject {
    trace: Arc<Trace>,
    model_name: OnceLock<CString>,
    request_id: OnceLock<CString>,
    /// As last passed to C, which invalidates the previous text.
    context: Mutex<CString>,
}

impl TraceObject {
    pub(crate) fn new(trace: Arc<Trace>) -> Arc<Self> {
        let (model_name, request_id) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { trace, model_name, request_id, context: Mutex::default() })
    }

    /// C's callbacks, if the trace was created with any. They learn when C owns the trace again.
    fn callbacks(&self) -> Option<&Callbacks> {
        (self.trace.sink() as &dyn Any).downcast_ref()
    }
}

/// The trace of a sent request, and the handle to it unless C deletes it.
pub(crate) struct SentTrace {
    pub trace: RequestTrace,
    /// Kept until the request is answered.
    pub handle: Option<LentHandle<TraceObject>>,
}

/// Moves the trace to the server, which returns it to C, or drops it, after the last report.
pub(crate) fn send(handle: Handle<TraceObject>) -> Result<SentTrace> {
    let object = handle.get()?;
    let trace = RequestTrace::new(Arc::clone(&object.trace));
    let handle = object.callbacks().is_none().then(|| LentHandle::adopt(handle));
    Ok(SentTrace { trace, handle })
}

fn level(bits: TRITONSERVER_InferenceTraceLevel) -> TraceLevel {
    // The first two are deprecated names of the third.
    let timestamps = TRITONSERVER_TRACE_LEVEL_MIN.0
        | TRITONSERVER_TRACE_LEVEL_MAX.0
        | TRITONSERVER_TRACE_LEVEL_TIMESTAMPS.0;
    TraceLevel {
        timestamps: bits.0 & timestamps != 0,
        tensors: bits.0 & TRITONSERVER_TRACE_LEVEL_TENSORS.0 != 0,
    }
}

fn make(level: TraceLevel, parent: u64, callbacks: Callbacks) -> Result<Handle<TraceObject>> {
    let trace = Trace::new(level, parent, Arc::new(callbacks));
    handle_of(&trace)
}

/// A handle to a new trace.
fn handle_of(trace: &Arc<Trace>) -> Result<Handle<TraceObject>> {
    match (trace.sink() as &dyn Any).downcast_ref::<Callbacks>() {
        Some(callbacks) => callbacks.handle(trace),
        None => Handle::give(TraceObject::new(Arc::clone(trace))),
    }
}

exports! {
    fn TRITONSERVER_InferenceTraceNew(
        trace: *mut *mut TRITONSERVER_InferenceTrace,
        level: TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
        release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) {
        let callbacks = Callbacks::new(activity_fn, None, release_fn, trace_userp);
        trace.set(make(self::level(level), parent_id, callbacks)?.as_c())?;
    }

    fn TRITONSERVER_InferenceTraceTensorNew(
        trace: *mut *mut TRITONSERVER_InferenceTrace,
        level: TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
        tensor_activity_fn: TRITONSERVER_InferenceTraceTensorActivityFn_t,
        release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) {
        let callbacks = Callbacks::new(activity_fn, tensor_activity_fn, release_fn, trace_userp);
        trace.set(make(self::level(level), parent_id, callbacks)?.as_c())?;
    }

    fn TRITONSERVER_InferenceTraceReportActivity(
        trace: *mut TRITONSERVER_InferenceTrace,
        timestamp: u64,
        activity_name: *const c_char,
    ) {
        let object = trace.get()?;
        let name = activity_name.read()?;
        if name.is_empty() {
            return Err(Error::invalid_arg("a trace activity needs a name"));
        }
        object.trace.report(Activity::Custom(&name), instant(timestamp));
    }

    fn TRITONSERVER_InferenceTraceDelete(trace: *mut TRITONSERVER_InferenceTrace) {
        trace.delete()?;
    }

    fn TRITONSERVER_InferenceTraceId(trace: *mut TRITONSERVER_InferenceTrace, id: *mut u64) {
        id.set(trace.get()?.trace.id())?;
    }

    fn TRITONSERVER_InferenceTraceParentId(trace: *mut TRITONSERVER_InferenceTrace, parent_id: *mut u64) {
        parent_id.set(trace.get()?.trace.parent())?;
    }

    /// A trace that was sent with no request has no model.
    fn TRITONSERVER_InferenceTraceModelName(
        trace: *mut TRITONSERVER_InferenceTrace,
        model_name: *mut *const c_char,
    ) {
        let object = trace.get()?;
        let name = object.trace.subject().map(|subject| {
            object.model_name.get_or_init(|| c_string(&subject.model_name)).as_ptr()
        });
        model_name.set(name.unwrap_or(c"".as_ptr()))?;
    }

    fn TRITONSERVER_InferenceTraceModelVersion(trace: *mut TRITONSERVER_InferenceTrace, model_version: *mut i64) {
        let version = trace.get()?.trace.subject().map(|subject| subject.model_version);
        model_version.set(version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX)))?;
    }

    fn TRITONSERVER_InferenceTraceRequestId(
        trace: *mut TRITONSERVER_InferenceTrace,
        request_id: *mut *const c_char,
    ) {
        let object = trace.get()?;
        let id = object.trace.subject().map(|subject| {
            object.request_id.get_or_init(|| c_string(&subject.request_id)).as_ptr()
        });
        request_id.set(id.unwrap_or(c"".as_ptr()))?;
    }

    fn TRITONSERVER_InferenceTraceSpawnChildTrace(
        trace: *mut TRITONSERVER_InferenceTrace,
        child_trace: *mut *mut TRITONSERVER_InferenceTrace,
    ) {
        child_trace.set(ptr::null_mut())?;
        let child = trace.get()?.trace.derive();
        child_trace.set(handle_of(&child)?.as_c())?;
    }

    fn TRITONSERVER_InferenceTraceSetContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *const c_char,
    ) {
        trace.get()?.trace.set_context(&*trace_context.read()?);
    }

    fn TRITONSERVER_InferenceTraceContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *mut *const c_char,
    ) {
        let object = trace.get()?;
        let text = object.trace.context();
        let mut context = object.context.lock().unwrap_or_else(PoisonError::into_inner);
        if context.to_bytes() != text.as_bytes() {
            *context = c_string(&text);
        }
        trace_context.set(context.as_ptr())?;
    }
}

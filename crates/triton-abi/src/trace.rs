//! Traces, as far as they are objects: who makes one may name it, derive others from it and report events of its own.
//!
//! Requests are not traced: nothing else is reported to a trace.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::boundary::exports;
use crate::handle::Handle;
use crate::text::c_string;

/// The id of the next trace.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A trace in C's hands.
pub(crate) struct Trace {
    id: u64,
    parent: u64,
    level: TRITONSERVER_InferenceTraceLevel,
    activity: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: AtomicPtr<c_void>,
    context: Mutex<CString>,
}

impl Trace {
    fn new(
        level: TRITONSERVER_InferenceTraceLevel,
        parent: u64,
        activity: TRITONSERVER_InferenceTraceActivityFn_t,
        tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
        release: TRITONSERVER_InferenceTraceReleaseFn_t,
        userp: *mut c_void,
    ) -> Arc<Self> {
        let (id, userp) = (NEXT.fetch_add(1, Relaxed), AtomicPtr::new(userp));
        Arc::new(Self {
            id,
            parent,
            level,
            activity,
            tensor_activity,
            release,
            userp,
            context: Mutex::default(),
        })
    }
}

/// Says that nothing more will be reported: the trace is its maker's again.
pub(crate) fn end(handle: Handle<Trace>) -> Result<()> {
    let trace = handle.get()?;
    if let Some(release) = trace.release {
        // SAFETY: the function was given for this call, with these arguments.
        unsafe { release(handle.as_c(), trace.userp.load(Relaxed)) }
    }
    Ok(())
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
        let object = Trace::new(level, parent_id, activity_fn, None, release_fn, trace_userp);
        trace.set(Handle::give(object)?.as_c())?;
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
        let object = Trace::new(level, parent_id, activity_fn, tensor_activity_fn, release_fn, trace_userp);
        trace.set(Handle::give(object)?.as_c())?;
    }

    fn TRITONSERVER_InferenceTraceReportActivity(
        trace: *mut TRITONSERVER_InferenceTrace,
        timestamp: u64,
        activity_name: *const c_char,
    ) {
        let object = trace.get()?;
        if activity_name.read()?.is_empty() {
            return Err(Error::invalid_arg("an activity of a trace needs a name"));
        }
        if object.level.0 & TRITONSERVER_TRACE_LEVEL_TIMESTAMPS.0 == 0 {
            return Ok(());
        }
        if let Some(tell) = object.activity {
            let activity = TRITONSERVER_TRACE_CUSTOM_ACTIVITY;
            // SAFETY: the function was given for this call, with these arguments.
            unsafe { tell(trace.as_c(), activity, timestamp, object.userp.load(Relaxed)) }
        }
    }

    fn TRITONSERVER_InferenceTraceDelete(trace: *mut TRITONSERVER_InferenceTrace) {
        trace.delete()?;
    }

    fn TRITONSERVER_InferenceTraceId(trace: *mut TRITONSERVER_InferenceTrace, id: *mut u64) {
        id.set(trace.get()?.id)?;
    }

    fn TRITONSERVER_InferenceTraceParentId(trace: *mut TRITONSERVER_InferenceTrace, parent_id: *mut u64) {
        parent_id.set(trace.get()?.parent)?;
    }

    /// A trace that no request was sent with is of no model.
    fn TRITONSERVER_InferenceTraceModelName(
        trace: *mut TRITONSERVER_InferenceTrace,
        model_name: *mut *const c_char,
    ) {
        trace.get()?;
        model_name.set(c"".as_ptr())?;
    }

    fn TRITONSERVER_InferenceTraceModelVersion(trace: *mut TRITONSERVER_InferenceTrace, model_version: *mut i64) {
        trace.get()?;
        model_version.set(-1)?;
    }

    fn TRITONSERVER_InferenceTraceRequestId(
        trace: *mut TRITONSERVER_InferenceTrace,
        request_id: *mut *const c_char,
    ) {
        trace.get()?;
        request_id.set(c"".as_ptr())?;
    }

    fn TRITONSERVER_InferenceTraceSpawnChildTrace(
        trace: *mut TRITONSERVER_InferenceTrace,
        child_trace: *mut *mut TRITONSERVER_InferenceTrace,
    ) {
        child_trace.set(ptr::null_mut())?;
        let parent = trace.get()?;
        let userp = parent.userp.load(Relaxed);
        let child = Trace::new(
            parent.level,
            parent.id,
            parent.activity,
            parent.tensor_activity,
            parent.release,
            userp,
        );
        child_trace.set(Handle::give(child)?.as_c())?;
    }

    fn TRITONSERVER_InferenceTraceSetContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *const c_char,
    ) {
        let context = c_string(&trace_context.read()?);
        *trace.get()?.context.lock().unwrap_or_else(PoisonError::into_inner) = context;
    }

    fn TRITONSERVER_InferenceTraceContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *mut *const c_char,
    ) {
        let trace = trace.get()?;
        let context = trace.context.lock().unwrap_or_else(PoisonError::into_inner);
        trace_context.set(context.as_ptr())?;
    }
}

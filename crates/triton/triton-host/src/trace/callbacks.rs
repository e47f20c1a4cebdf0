//! Traces created by C: its callbacks run on the thread that reports.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use nereid_backend_api::{Activity, Result, Tensor, TensorActivity, Trace, TraceSink};
use serde_json::{Map, Value};
use triton_sys::*;

use super::TraceObject;
use crate::attributes::address;
use crate::clock;
use crate::handle::Handle;
use crate::names::{data_type_to_c, memory_to_c};
use crate::text::c_string;

/// The callbacks of one trace.
pub(super) struct Callbacks {
    activity: TRITONSERVER_InferenceTraceActivityFn_t,
    tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
    release: TRITONSERVER_InferenceTraceReleaseFn_t,
    userp: AtomicPtr<c_void>,
    /// C's handle of the trace. The release callback deletes it.
    handle: OnceLock<Handle<TraceObject>>,
    /// Locked while the name of an activity is put into the trace's context.
    naming: Mutex<()>,
}

impl Callbacks {
    pub(super) fn new(
        activity: TRITONSERVER_InferenceTraceActivityFn_t,
        tensor_activity: TRITONSERVER_InferenceTraceTensorActivityFn_t,
        release: TRITONSERVER_InferenceTraceReleaseFn_t,
        userp: *mut c_void,
    ) -> Self {
        let (userp, handle) = (AtomicPtr::new(userp), OnceLock::new());
        Self { activity, tensor_activity, release, userp, handle, naming: Mutex::default() }
    }

    /// C's handle of the trace, created on first use.
    pub(super) fn handle(&self, trace: &Arc<Trace>) -> Result<Handle<TraceObject>> {
        if let Some(handle) = self.handle.get() {
            return Ok(*handle);
        }
        let created = Handle::give(TraceObject::new(Arc::clone(trace)))?;
        let handle = *self.handle.get_or_init(|| created);
        if handle.as_c() != created.as_c() {
            // Another thread won the race.
            created.delete()?;
        }
        Ok(handle)
    }

    fn known(&self, trace: &Arc<Trace>) -> Option<Handle<TraceObject>> {
        self.handle(trace).inspect_err(|error| tracing::error!("cannot report a trace: {error}")).ok()
    }

    /// Stores the name of a backend's custom activity in the trace's context, under its time, where C finds it.
    fn name(&self, trace: &Trace, name: &str, nanos: u64) {
        let _naming = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = serde_json::from_str::<Map<String, Value>>(&trace.context()).unwrap_or_default();
        context.insert(nanos.to_string(), name.into());
        trace.set_context(Value::Object(context).to_string());
    }
}

impl TraceSink for Callbacks {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, at: Instant) {
        let Some(callback) = self.activity else { return };
        let Some(handle) = self.known(trace) else { return };
        let nanos = clock::nanos(at);
        let code = match activity {
            Activity::RequestStart => TRITONSERVER_TRACE_REQUEST_START,
            Activity::QueueStart => TRITONSERVER_TRACE_QUEUE_START,
            Activity::ComputeStart => TRITONSERVER_TRACE_COMPUTE_START,
            Activity::ComputeInputEnd => TRITONSERVER_TRACE_COMPUTE_INPUT_END,
            Activity::ComputeOutputStart => TRITONSERVER_TRACE_COMPUTE_OUTPUT_START,
            Activity::ComputeEnd => TRITONSERVER_TRACE_COMPUTE_END,
            Activity::RequestEnd => TRITONSERVER_TRACE_REQUEST_END,
            Activity::Custom(name) => {
                self.name(trace, name, nanos);
                TRITONSERVER_TRACE_CUSTOM_ACTIVITY
            }
        };
        // SAFETY: the function was registered for this call, with these arguments.
        unsafe { callback(handle.as_c(), code, nanos, self.userp.load(Relaxed)) }
    }

    fn tensor(&self, trace: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor) {
        let Some(callback) = self.tensor_activity else { return };
        let Some(handle) = self.known(trace) else { return };
        let code = match activity {
            TensorActivity::QueueInput => TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT,
            TensorActivity::BackendOutput => TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT,
        };
        let joined;
        let (base, memory) = match tensor.buffers.as_slice() {
            [buffer] => {
                let Ok(address) = address(buffer) else { return };
                (address, buffer.memory())
            }
            _ => {
                // Pieces in device memory have no single address to report.
                let Ok(contents) = tensor.contiguous() else { return };
                joined = contents;
                (joined.as_ptr().cast(), nereid_backend_api::Memory::HOST)
            }
        };
        let (name, userp) = (c_string(&tensor.name), self.userp.load(Relaxed));
        // SAFETY: the function was registered for this call, with these arguments; name, contents and shape outlive it.
        unsafe {
            callback(
                handle.as_c(),
                code,
                name.as_ptr(),
                data_type_to_c(tensor.data_type),
                base,
                tensor.byte_size(),
                tensor.shape.as_ptr(),
                tensor.shape.len() as u64,
                memory_to_c(memory),
                memory.device,
                userp,
            );
        }
    }

    fn ended(&self, trace: &Arc<Trace>) {
        let Some(release) = self.release else { return };
        if let Some(handle) = self.known(trace) {
            // SAFETY: the function was registered for this call, with these arguments.
            unsafe { release(handle.as_c(), self.userp.load(Relaxed)) }
        }
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        let userp = self.userp.load(Relaxed);
        Arc::new(Self::new(self.activity, self.tensor_activity, self.release, userp))
    }
}

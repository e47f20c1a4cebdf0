//! A request as a backend sees it. The backend owns it until its release, perhaps long after the answer.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nereid_backend_api::{CorrelationId, Error, InferRequest, Request, Result, SequenceStates, Turn};
use triton_sys::*;

use crate::boundary::exports;
use crate::handle::{Handle, LentHandle};
use crate::health::Facts;
use crate::input::InputObject;
use crate::list::{at, count};
use crate::names::memory_to_c;
use crate::parameter::{self, Parameter};
use crate::reply::Reply;
use crate::state::{self, State};
use crate::text::c_string;
use crate::trace::TraceObject;

/// The contents of a request, shared with its inputs.
pub(crate) struct RequestData {
    pub request: InferRequest,
    pub reply: Arc<Reply>,
}

/// A request behind a C handle.
pub(crate) struct RequestObject {
    data: Arc<RequestData>,
    /// Created on first use.
    id: OnceLock<CString>,
    correlation_id: OnceLock<CString>,
    inputs: Vec<(Arc<InputObject>, LentHandle<InputObject>)>,
    /// Created on first use.
    parameters: OnceLock<Vec<Parameter>>,
    output_names: OnceLock<Vec<CString>>,
    trace: OnceLock<LentHandle<TraceObject>>,
    /// New state values created for the request.
    states: Mutex<Vec<LentHandle<State>>>,
    batch_size: usize,
    // Last, so that the request is dropped before its turn ends.
    turn: Option<Turn>,
}

impl RequestObject {
    /// Passes a request to C.
    ///
    /// # Errors
    /// The handle table is full, or memory for a state cannot be allocated. The request is answered with an error.
    pub(crate) fn give(request: Request, facts: Arc<Facts>) -> Result<Handle<Self>> {
        let batch_size = request.batch_size();
        let (mut request, responder, turn) = request.into_parts();
        if let Some(states) = turn.as_ref().and_then(Turn::states) {
            state::place(states, &mut request)?;
        }
        let object = Self::new(request, Reply::new(responder, facts))?;
        Handle::give(Arc::new(Self { batch_size, turn, ..object }))
    }

    /// Reschedules the request. Objects that C derived from it are dropped.
    ///
    /// # Errors
    /// The request is in use on another thread; it is then released.
    pub(crate) fn reschedule(self: Arc<Self>) -> Result<()> {
        let in_use = || Error::invalid_arg("the request is in use and cannot be rescheduled; it is released");
        let Self { data, inputs, states, batch_size, turn, .. } = Arc::into_inner(self).ok_or_else(in_use)?;
        drop((inputs, states));
        let data = Arc::into_inner(data).ok_or_else(in_use)?;
        let RequestData { request, reply } = data;
        let responder = reply.into_responder(request.allocator.clone());
        Request::from_parts(request, batch_size, responder, turn).reschedule();
        Ok(())
    }

    pub(crate) fn new(request: InferRequest, reply: Arc<Reply>) -> Result<Self> {
        let (id, correlation_id) = (OnceLock::new(), OnceLock::new());
        let data = Arc::new(RequestData { request, reply });
        let input = |index| {
            let input = Arc::new(InputObject::new(Arc::clone(&data), index));
            Ok((Arc::clone(&input), LentHandle::new(input)?))
        };
        let inputs = (0..data.request.inputs.len()).map(input).collect::<Result<_>>()?;
        let (parameters, output_names, states) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        let (trace, batch_size, turn) = (OnceLock::new(), 1, None);
        Ok(Self {
            data,
            id,
            correlation_id,
            inputs,
            parameters,
            output_names,
            trace,
            states,
            batch_size,
            turn,
        })
    }

    /// The states of the request's sequence, if its model has any.
    pub(crate) fn states(&self) -> Option<Arc<SequenceStates>> {
        self.turn.as_ref()?.states().cloned()
    }

    /// Keeps the new value of a state until the request is released.
    pub(crate) fn keep_state(&self, state: State) -> Result<Handle<State>> {
        let lent = LentHandle::new(Arc::new(state))?;
        let handle = lent.handle();
        self.states.lock().unwrap_or_else(PoisonError::into_inner).push(lent);
        Ok(handle)
    }

    /// The request's reply.
    pub(crate) fn reply(&self) -> &Arc<Reply> {
        &self.data.reply
    }

    /// The name of the requested model.
    pub(crate) fn model_name(&self) -> &str {
        self.data.reply.sink().model_name()
    }

    fn parameters(&self) -> &[Parameter] {
        self.parameters.get_or_init(|| parameter::all(&self.data.request.parameters))
    }

    /// The requested outputs: all of the model's if the client names none. A filler requests none.
    fn output_names(&self) -> &[CString] {
        self.output_names.get_or_init(|| match &self.data.request.outputs[..] {
            _ if self.turn.as_ref().is_some_and(Turn::is_filler) => Vec::new(),
            [] => self.reply().outputs().iter().map(|name| c_string(name)).collect(),
            named => named.iter().map(|output| c_string(&output.name)).collect(),
        })
    }
}

exports! {
    fn TRITONBACKEND_RequestId(request: *mut TRITONBACKEND_Request, id: *mut *const c_char) {
        let request = request.get()?;
        id.set(request.id.get_or_init(|| c_string(&request.data.request.id)).as_ptr())?;
    }

    fn TRITONBACKEND_RequestIsCancelled(request: *mut TRITONBACKEND_Request, is_cancelled: *mut bool) {
        is_cancelled.set(request.get()?.reply().is_cancelled())?;
    }

    fn TRITONBACKEND_RequestCorrelationId(request: *mut TRITONBACKEND_Request, id: *mut u64) {
        id.set(match request.get()?.data.request.correlation_id {
            CorrelationId::None => 0,
            CorrelationId::Number(number) => number,
            CorrelationId::Text(_) => {
                return Err(Error::invalid_arg("the request's correlation id is a string, not a number"));
            }
        })?;
    }

    fn TRITONBACKEND_RequestCorrelationIdString(request: *mut TRITONBACKEND_Request, id: *mut *const c_char) {
        let request = request.get()?;
        match &request.data.request.correlation_id {
            CorrelationId::Text(text) => id.set(request.correlation_id.get_or_init(|| c_string(text)).as_ptr())?,
            CorrelationId::None | CorrelationId::Number(_) => {
                return Err(Error::invalid_arg("the request's correlation id is a number, not a string"));
            }
        }
    }

    fn TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
        request: *mut TRITONBACKEND_Request,
        timeout: *mut u64,
    ) {
        let limit = request.get()?.data.request.timeout.unwrap_or_default();
        timeout.set(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX))?;
    }

    fn TRITONBACKEND_RequestFlags(request: *mut TRITONBACKEND_Request, flags: *mut u32) {
        let sequence = request.get()?.data.request.sequence;
        let start = if sequence.start { TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 } else { 0 };
        let end = if sequence.end { TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 } else { 0 };
        flags.set(start | end)?;
    }

    fn TRITONBACKEND_RequestParameterCount(request: *mut TRITONBACKEND_Request, count: *mut u32) {
        count.set(self::count(request.get()?.parameters()))?;
    }

    fn TRITONBACKEND_RequestParameter(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        key: *mut *const c_char,
        r#type: *mut TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) {
        let request = request.get()?;
        let parameter = at(request.parameters(), index, "parameters")?;
        key.set(parameter.name().as_ptr())?;
        r#type.set(parameter.kind())?;
        vvalue.set(parameter.address())?;
    }

    fn TRITONBACKEND_RequestInputCount(request: *mut TRITONBACKEND_Request, count: *mut u32) {
        count.set(self::count(&request.get()?.inputs))?;
    }

    fn TRITONBACKEND_RequestInputName(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        input_name: *mut *const c_char,
    ) {
        input_name.set(ptr::null())?;
        let request = request.get()?;
        let (input, _) = at(&request.inputs, index, "inputs")?;
        input_name.set(input.name().as_ptr())?;
    }

    fn TRITONBACKEND_RequestInput(
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        input: *mut *mut TRITONBACKEND_Input,
    ) {
        input.set(ptr::null_mut())?;
        let (request, name) = (request.get()?, name.read()?);
        let found = request.inputs.iter().find(|(input, _)| input.name().to_bytes() == name.as_bytes());
        let (_, handle) = found.ok_or_else(|| Error::invalid_arg(format!("the request has no input '{name}'")))?;
        input.set(handle.handle().as_c())?;
    }

    fn TRITONBACKEND_RequestInputByIndex(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        input: *mut *mut TRITONBACKEND_Input,
    ) {
        let request = request.get()?;
        let (_, handle) = at(&request.inputs, index, "inputs")?;
        input.set(handle.handle().as_c())?;
    }

    fn TRITONBACKEND_RequestOutputCount(request: *mut TRITONBACKEND_Request, count: *mut u32) {
        count.set(self::count(request.get()?.output_names()))?;
    }

    fn TRITONBACKEND_RequestOutputName(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        output_name: *mut *const c_char,
    ) {
        output_name.set(ptr::null())?;
        let request = request.get()?;
        output_name.set(at(request.output_names(), index, "requested outputs")?.as_ptr())?;
    }

    fn TRITONBACKEND_RequestOutputBufferProperties(
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let request = request.get()?;
        let name = name.read_optional().unwrap_or_default();
        let size = byte_size.get().ok();
        let memory = request.reply().preferred_memory(&name, size);
        memory_type.set(memory_to_c(memory))?;
        memory_type_id.set(memory.device)?;
    }

    fn TRITONBACKEND_RequestRelease(request: *mut TRITONBACKEND_Request, release_flags: u32) {
        let known = TRITONSERVER_REQUEST_RELEASE_ALL.0 | TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.0;
        if release_flags & !known != 0 {
            return Err(Error::invalid_arg(format!("{release_flags} is not a valid combination of release flags")));
        }
        let request = request.take()?;
        let again = release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.0 != 0;
        // Requests of models that do not iterate are released in either case.
        if again && request.turn.as_ref().is_some_and(Turn::iterates) {
            request.reschedule()?;
        }
    }

    fn TRITONBACKEND_RequestTrace(
        request: *mut TRITONBACKEND_Request,
        trace: *mut *mut TRITONSERVER_InferenceTrace,
    ) {
        trace.set(ptr::null_mut())?;
        let request = request.get()?;
        let Some(traced) = &request.data.request.trace else { return Ok(()) };
        let handle = match request.trace.get() {
            Some(handle) => handle,
            None => {
                let lent = LentHandle::new(TraceObject::new(Arc::clone(traced.trace())))?;
                request.trace.get_or_init(|| lent)
            }
        };
        trace.set(handle.handle().as_c())?;
    }
}

//! A request in progress, and its responses as they arrive.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTimeoutError, PyTypeError};
use pyo3::prelude::*;
use triton_sys::*;

use crate::errors::{InvalidArgumentError, UnavailableError, UnsupportedError, check};
use crate::handle::{SIGNAL_CHECK, ServerHandle};
use crate::inputs::{RequestArguments, Value};
use crate::response::{RawResponse, Response, allocator};
use crate::signal::{Queue, Signal};
use crate::tensor::Tensor;
use crate::text::c_text;

/// A request of the C interface. Its last owner deletes it.
struct RawRequest(AtomicPtr<TRITONSERVER_InferenceRequest>);

impl RawRequest {
    fn get(&self) -> *mut TRITONSERVER_InferenceRequest {
        self.0.load(Relaxed)
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        // SAFETY: this is the only owner: the server has released the request, or never took it.
        drop(check(unsafe { TRITONSERVER_InferenceRequestDelete(self.get()) }));
    }
}

/// Resources that must live until the server releases the request.
struct RequestResources {
    _request: Arc<RawRequest>,
    /// The tensors that the request reads. Dropped by the next Python thread that runs here: server threads never
    /// take the interpreter's lock.
    _inputs: Vec<Py<Tensor>>,
}

/// Responses that have arrived.
#[derive(Default)]
struct ResponseQueue {
    responses: VecDeque<RawResponse>,
    last: bool,
    /// The event loop to wake, with its key.
    listener: Option<(Arc<Queue>, u64)>,
}

/// The destination of responses.
#[derive(Default)]
struct Mailbox {
    arrived: Mutex<ResponseQueue>,
    changed: Condvar,
}

impl Mailbox {
    fn arrived(&self) -> MutexGuard<'_, ResponseQueue> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, response: Option<RawResponse>, last: bool) {
        let mut arrived = self.arrived();
        arrived.responses.extend(response);
        arrived.last |= last;
        self.changed.notify_all();
        if let Some((queue, key)) = &arrived.listener {
            queue.push(*key);
        }
    }
}

/// The server calls this with each response.
///
/// # Safety
/// `userp` is a mailbox that was passed with the request; the flags mark the last call.
unsafe extern "C" fn complete(response: *mut TRITONSERVER_InferenceResponse, flags: u32, userp: *mut c_void) {
    let last = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 != 0;
    let mailbox = userp.cast::<Mailbox>().cast_const();
    let response = (!response.is_null()).then(|| RawResponse::new(response));
    // SAFETY: `Arc::into_raw` made it, and the last response returns it, once.
    unsafe {
        (*mailbox).put(response, last);
        if last {
            drop(Arc::from_raw(mailbox));
        }
    }
}

/// The server calls this when it no longer needs a request and its inputs.
///
/// # Safety
/// `userp` was passed with the request; this is called once.
unsafe extern "C" fn release(_: *mut TRITONSERVER_InferenceRequest, _: u32, userp: *mut c_void) {
    // SAFETY: `Box::into_raw` made it, and this call returns it, once.
    drop(unsafe { Box::from_raw(userp.cast::<RequestResources>()) });
}

/// The responses to a request. Dropping them cancels it.
#[pyclass(module = "nereid.nereid_native", frozen)]
pub struct Responses {
    mailbox: Arc<Mailbox>,
    request: Arc<RawRequest>,
    /// The server owns the request.
    server: Arc<ServerHandle>,
}

/// Sends a request.
pub fn send(
    python: Python<'_>,
    server: &Arc<ServerHandle>,
    arguments: &RequestArguments<'_, '_>,
) -> PyResult<Responses> {
    let (request, inputs) = prepare(server, arguments)?;
    let request = Arc::new(request);
    let held = RequestResources { _request: Arc::clone(&request), _inputs: inputs };
    let mailbox = Arc::new(Mailbox::default());
    let (held, kept) = (Box::into_raw(Box::new(held)), Arc::into_raw(Arc::clone(&mailbox)));
    let responses = Responses { mailbox, request, server: Arc::clone(server) };
    let (held, kept) = (AtomicPtr::new(held), AtomicPtr::new(kept.cast_mut()));
    let sent = python.detach(|| {
        let (held, kept) = (held.load(Relaxed), kept.load(Relaxed));
        let request = responses.request.get();
        // SAFETY: server and request are alive; the user pointers match the callbacks.
        unsafe {
            check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, Some(release), held.cast()))?;
            check(TRITONSERVER_InferenceRequestSetResponseCallback(
                request,
                allocator()?,
                ptr::null_mut(),
                Some(complete),
                kept.cast(),
            ))?;
            check(TRITONSERVER_ServerInferAsync(responses.server.get()?, request, ptr::null_mut()))
        }
    });
    if let Err(error) = sent {
        // SAFETY: the server did not take ownership.
        unsafe {
            drop(Box::from_raw(held.into_inner()));
            drop(Arc::from_raw(kept.into_inner()));
        }
        responses.mailbox.arrived().last = true;
        return Err(error);
    }
    Ok(responses)
}

/// A request of the C interface, and the tensors that it reads.
fn prepare(
    server: &ServerHandle,
    arguments: &RequestArguments<'_, '_>,
) -> PyResult<(RawRequest, Vec<Py<Tensor>>)> {
    let model = c_text(arguments.model)?;
    let mut made = ptr::null_mut();
    // SAFETY: the server is alive, and the string until the function returns.
    check(unsafe {
        TRITONSERVER_InferenceRequestNew(&raw mut made, server.get()?, model.as_ptr(), arguments.version)
    })?;
    let request = RawRequest(AtomicPtr::new(made));
    set_properties(made, arguments)?;
    let mut inputs = Vec::with_capacity(arguments.inputs.len());
    for (name, tensor) in &arguments.inputs {
        let name: String = name.extract()?;
        let tensor = tensor
            .cast_into::<Tensor>()
            .map_err(|error| PyTypeError::new_err(format!("input '{name}': expected a Tensor: {error}")))?;
        let (name, this) = (c_text(&name)?, tensor.get());
        let (data, length) = this.elements(tensor.py())?;
        let (shape, data_type) = (this.shape(), TRITONSERVER_DataType(u32::from(this.data_type().number())));
        // SAFETY: the request is alive; the elements stay in place as long as the tensor, which is held until the
        // server releases the request.
        unsafe {
            let (shape, count) = (shape.as_ptr(), shape.len() as u64);
            check(TRITONSERVER_InferenceRequestAddInput(made, name.as_ptr(), data_type, shape, count))?;
            check(TRITONSERVER_InferenceRequestAppendInputData(
                made,
                name.as_ptr(),
                data.cast_const().cast(),
                length,
                TRITONSERVER_MEMORY_CPU,
                0,
            ))?;
        }
        inputs.push(tensor.unbind());
    }
    Ok((request, inputs))
}

fn set_properties(
    request: *mut TRITONSERVER_InferenceRequest,
    arguments: &RequestArguments<'_, '_>,
) -> PyResult<()> {
    if let Some(id) = &arguments.id {
        let id = c_text(id)?;
        // SAFETY: the request is alive, and the string until the function returns.
        check(unsafe { TRITONSERVER_InferenceRequestSetId(request, id.as_ptr()) })?;
    }
    for output in arguments.outputs.iter().flatten() {
        let name = c_text(output)?;
        // SAFETY: as above.
        check(unsafe { TRITONSERVER_InferenceRequestAddRequestedOutput(request, name.as_ptr()) })?;
    }
    if arguments.priority > 0 {
        // SAFETY: as above.
        check(unsafe { TRITONSERVER_InferenceRequestSetPriorityUInt64(request, arguments.priority) })?;
    }
    if arguments.timeout > 0 {
        // SAFETY: as above.
        check(unsafe { TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, arguments.timeout) })?;
    }
    if let Some((id, start, end)) = &arguments.sequence {
        set_sequence(request, id, *start, *end)?;
    }
    for (name, value) in arguments.parameters.iter().flatten() {
        let name: String = name.extract()?;
        let key = c_text(&name)?;
        let key: *const c_char = key.as_ptr();
        // SAFETY: as above.
        check(unsafe {
            match Value::of(&value)? {
                Value::Bool(value) => TRITONSERVER_InferenceRequestSetBoolParameter(request, key, value),
                Value::Int(value) => TRITONSERVER_InferenceRequestSetIntParameter(request, key, value),
                Value::Double(value) => TRITONSERVER_InferenceRequestSetDoubleParameter(request, key, value),
                Value::Text(value) => {
                    let value = c_text(&value)?;
                    TRITONSERVER_InferenceRequestSetStringParameter(request, key, value.as_ptr())
                }
            }
        })?;
    }
    Ok(())
}

/// Makes a request part of a sequence, whose id is a number or a string.
fn set_sequence(
    request: *mut TRITONSERVER_InferenceRequest,
    id: &Bound<'_, PyAny>,
    start: bool,
    end: bool,
) -> PyResult<()> {
    let first = if start { TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 } else { 0 };
    let last = if end { TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 } else { 0 };
    // SAFETY: the request is alive, and the string until the function returns.
    unsafe {
        match id.extract::<u64>() {
            Ok(number) => check(TRITONSERVER_InferenceRequestSetCorrelationId(request, number))?,
            Err(_) => {
                let wrong =
                    |_| InvalidArgumentError::new_err("a sequence's id must be a positive int or a str");
                let text = c_text(&id.extract::<String>().map_err(wrong)?)?;
                check(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, text.as_ptr()))?;
            }
        }
        check(TRITONSERVER_InferenceRequestSetFlags(request, first | last))
    }
}

/// The next step for a reader of responses.
enum Next {
    Take(RawResponse),
    End,
    Wait,
}

impl Responses {
    fn peek(&self) -> Next {
        let mut arrived = self.mailbox.arrived();
        match arrived.responses.pop_front() {
            Some(response) => Next::Take(response),
            None if arrived.last => Next::End,
            None => Next::Wait,
        }
    }

    /// Waits without the interpreter's lock until a response arrives or the limit is reached.
    fn wait(&self, limit: Duration) {
        let arrived = self.mailbox.arrived();
        if arrived.responses.is_empty() && !arrived.last {
            drop(self.mailbox.changed.wait_timeout(arrived, limit));
        }
    }

    /// The next response of the C interface; `None` after the last one.
    fn next_raw(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Option<RawResponse>> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            match self.peek() {
                Next::Take(response) => return Ok(Some(response)),
                Next::End => return Ok(None),
                Next::Wait => self.server.get().map(drop)?,
            }
            let left = end.map_or(SIGNAL_CHECK, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(PyTimeoutError::new_err("no response within the timeout"));
            }
            python.detach(|| self.wait(left.min(SIGNAL_CHECK)));
            python.check_signals()?;
        }
    }
}

#[pymethods]
impl Responses {
    /// Waits for the next response; `None` after the last one.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Response>> {
        let response = self.next_raw(python, timeout)?;
        response.map(|response| Response::new(python, response)).transpose()
    }

    /// Waits for the single response of a model that is not decoupled.
    #[pyo3(signature = (timeout = None))]
    fn single(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Response> {
        let none = || UnavailableError::new_err("the model sent no response");
        let first = self.next_raw(python, timeout)?.ok_or_else(none)?;
        let first = Response::new(python, first)?;
        match self.next_raw(python, timeout)? {
            None => Ok(first),
            Some(_) => Err(UnsupportedError::new_err("the model sent several responses: use stream()")),
        }
    }

    /// The next response if it has arrived, and whether the last one was taken.
    fn poll(&self, python: Python<'_>) -> PyResult<(Option<Response>, bool)> {
        match self.peek() {
            Next::Take(response) => Ok((Some(Response::new(python, response)?), false)),
            Next::End => Ok((None, true)),
            Next::Wait => self.server.get().map(|_| (None, false)),
        }
    }

    /// Makes the signal fire with this key when a response arrives, and at once if one has.
    fn listen(&self, signal: &Bound<'_, Signal>, key: u64) {
        let queue = signal.get().queue();
        let mut arrived = self.mailbox.arrived();
        if arrived.last || !arrived.responses.is_empty() {
            queue.push(key);
        }
        arrived.listener = Some((Arc::clone(queue), key));
    }

    /// Cancels the request. If the model supports that, the request ends with an error.
    fn cancel(&self, python: Python<'_>) -> PyResult<()> {
        self.server.get()?;
        let request = Arc::clone(&self.request);
        // SAFETY: the request is alive.
        python.detach(move || check(unsafe { TRITONSERVER_InferenceRequestCancel(request.get()) }))
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        let finished = {
            let mut arrived = self.mailbox.arrived();
            arrived.listener = None;
            arrived.last
        };
        if !finished && self.server.get().is_ok() {
            // SAFETY: the request is alive. It may have been answered by now.
            drop(check(unsafe { TRITONSERVER_InferenceRequestCancel(self.request.get()) }));
        }
    }
}

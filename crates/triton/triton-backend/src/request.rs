//! A request to a model.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use triton_sys::*;

use crate::answer::{Answer, Responder};
use crate::data::to_c;
use crate::error::{Error, Result, c_string, check, text};
use crate::execution::Execution;
use crate::input::Input;
use crate::property::{property, text_lossy};
use crate::response::Response;
use crate::state::State;
use tensor_types::DataType;

/// The properties of a request, borrowed from the server for as long as the request lives.
pub struct RequestInfo {
    handle: *mut TRITONBACKEND_Request,
}

/// The value of a request's parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Parameter<'a> {
    /// A string.
    String(&'a str),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A floating-point number.
    Double(f64),
    /// A value that cannot be read: bytes, which the interface passes without their length, or a string that is not UTF-8.
    Opaque,
}

/// The sequence that a request belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CorrelationId<'a> {
    /// A number; 0 means no sequence.
    Number(u64),
    /// A string. Bytes that are not UTF-8 are replaced by U+FFFD.
    Text(Cow<'a, str>),
}

impl RequestInfo {
    /// # Safety
    /// `handle` lives as long as the value.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Request) -> Self {
        Self { handle }
    }

    /// The client's id, or an empty string. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub fn id(&self) -> Cow<'_, str> {
        // SAFETY: the request lives, and its id with it.
        unsafe { text_lossy(property(ptr::null(), |id| TRITONBACKEND_RequestId(self.handle, id))) }
    }

    /// The sequence that the request belongs to.
    pub fn correlation_id(&self) -> CorrelationId<'_> {
        let mut number = 0;
        // SAFETY: the request lives, and the address may be written.
        let numbered = unsafe { check(TRITONBACKEND_RequestCorrelationId(self.handle, &mut number)) };
        if numbered.is_ok() {
            return CorrelationId::Number(number);
        }
        // The server refuses to return a string as a number, which distinguishes the two.
        // SAFETY: the request lives, and its id with it.
        CorrelationId::Text(unsafe {
            text_lossy(property(ptr::null(), |id| TRITONBACKEND_RequestCorrelationIdString(self.handle, id)))
        })
    }

    /// Whether the request begins its sequence.
    pub fn is_sequence_start(&self) -> bool {
        self.flags() & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0
    }

    /// Whether the request ends its sequence.
    pub fn is_sequence_end(&self) -> bool {
        self.flags() & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0
    }

    /// Whether the client cancelled the request. An answer is still required.
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: the request lives.
        unsafe { property(false, |cancelled| TRITONBACKEND_RequestIsCancelled(self.handle, cancelled)) }
    }

    /// The client's timeout, if it set one.
    pub fn timeout(&self) -> Option<Duration> {
        // SAFETY: the request lives.
        let microseconds = unsafe {
            property(0, |timeout| TRITONBACKEND_InferenceRequestTimeoutMicroseconds(self.handle, timeout))
        };
        (microseconds > 0).then(|| Duration::from_micros(microseconds))
    }

    /// The request's parameters, in the order of the request, without those whose names are not UTF-8.
    pub fn parameters(&self) -> Vec<(&str, Parameter<'_>)> {
        // SAFETY: the request lives.
        let count = unsafe { property(0, |count| TRITONBACKEND_RequestParameterCount(self.handle, count)) };
        let read = |index| {
            let empty = (ptr::null(), TRITONSERVER_PARAMETER_BYTES, ptr::null());
            // SAFETY: the request lives, and so do its parameters. The value has the returned kind.
            unsafe {
                let (key, kind, value) = property(empty, |(key, kind, value)| {
                    TRITONBACKEND_RequestParameter(self.handle, index, key, kind, value)
                });
                Some((text(key).ok()?, parameter(kind, value)))
            }
        };
        (0..count).filter_map(read).collect()
    }

    /// One parameter.
    pub fn parameter(&self, name: &str) -> Option<Parameter<'_>> {
        self.parameters().into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The number of inputs.
    pub fn input_count(&self) -> u32 {
        // SAFETY: the request lives.
        unsafe { property(0, |count| TRITONBACKEND_RequestInputCount(self.handle, count)) }
    }

    /// An input by its name.
    ///
    /// # Errors
    /// `InvalidArgument` if the request has no input of that name.
    pub fn input(&self, name: &str) -> Result<Input<'_>> {
        let name = c_string(name)?;
        let mut input = ptr::null_mut();
        // SAFETY: the request lives, and its inputs with it.
        unsafe {
            check(TRITONBACKEND_RequestInput(self.handle, name.as_ptr(), &mut input))?;
            Input::new(input)
        }
    }

    /// An input by its index, which is unrelated to the order in the configuration.
    ///
    /// # Errors
    /// `InvalidArgument` if the index is out of range.
    pub fn input_at(&self, index: u32) -> Result<Input<'_>> {
        let mut input = ptr::null_mut();
        // SAFETY: the request lives, and its inputs with it.
        unsafe {
            check(TRITONBACKEND_RequestInputByIndex(self.handle, index, &mut input))?;
            Input::new(input)
        }
    }

    /// All inputs.
    ///
    /// # Errors
    /// The server's error.
    pub fn inputs(&self) -> Result<Vec<Input<'_>>> {
        (0..self.input_count()).map(|index| self.input_at(index)).collect()
    }

    /// The names of the requested outputs: all of them if the client names none.
    pub fn requested_outputs(&self) -> Vec<&str> {
        // SAFETY: the request lives.
        let count = unsafe { property(0, |count| TRITONBACKEND_RequestOutputCount(self.handle, count)) };
        let read = |index| {
            // SAFETY: the request lives, and the names of its outputs with it.
            unsafe {
                text(property(ptr::null(), |name| TRITONBACKEND_RequestOutputName(self.handle, index, name)))
                    .ok()
            }
        };
        // A configuration is UTF-8, and so are the names in it.
        (0..count).filter_map(read).collect()
    }

    /// Whether an output is requested. The others need not be computed.
    pub fn wants(&self, output: &str) -> bool {
        self.requested_outputs().contains(&output)
    }

    /// Records an event of the backend in the request's trace, with the current time. Has no effect without a trace.
    ///
    /// # Errors
    /// The server's error.
    pub fn trace(&self, event: &str) -> Result<()> {
        let event = c_string(event)?;
        let mut trace = ptr::null_mut();
        // SAFETY: the request lives, and its trace with it; the name is copied.
        unsafe {
            check(TRITONBACKEND_RequestTrace(self.handle, &mut trace))?;
            if trace.is_null() {
                return Ok(());
            }
            check(TRITONSERVER_InferenceTraceReportActivity(trace, crate::clock::now(), event.as_ptr()))
        }
    }

    /// The request's rows in a batch: the first dimension of its first input.
    pub(crate) fn rows(&self) -> u64 {
        let rows = self.input_at(0).ok().and_then(|input| input.shape().first().copied());
        rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(1)
    }

    fn flags(&self) -> u32 {
        // SAFETY: the request lives.
        unsafe { property(0, |flags| TRITONBACKEND_RequestFlags(self.handle, flags)) }
    }
}

/// # Safety
/// `value` points to a value of this kind that lives during `'a`.
unsafe fn parameter<'a>(kind: TRITONSERVER_ParameterType, value: *const c_void) -> Parameter<'a> {
    if value.is_null() {
        return Parameter::Opaque;
    }
    // SAFETY: as the caller promises; C's bool is one byte that is 0 or 1, read as a byte all the same.
    unsafe {
        match kind {
            TRITONSERVER_PARAMETER_STRING => {
                CStr::from_ptr(value.cast::<c_char>()).to_str().map_or(Parameter::Opaque, Parameter::String)
            }
            TRITONSERVER_PARAMETER_INT => Parameter::Int(value.cast::<i64>().read_unaligned()),
            TRITONSERVER_PARAMETER_BOOL => Parameter::Bool(value.cast::<u8>().read() != 0),
            TRITONSERVER_PARAMETER_DOUBLE => Parameter::Double(value.cast::<f64>().read_unaligned()),
            _ => Parameter::Opaque,
        }
    }
}

/// A request. It is answered through [`respond`](Self::respond), [`fail`](Self::fail) or a
/// [`responder`](Self::responder); if it is dropped unanswered, the client gets an error. Dropping it releases it to
/// the server, and reports its statistics.
///
/// A request may be kept after `execute` returned and answered from any thread.
pub struct Request {
    info: RequestInfo,
    answer: Arc<Answer>,
    execution: Arc<Execution>,
}

// SAFETY: the interface lets any thread read, answer and release a request, one at a time. The other fields are
// `Arc`s of types that are Send and Sync.
unsafe impl Send for Request {}

impl Deref for Request {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.info
    }
}

impl Request {
    /// # Safety
    /// The caller owns the request and transfers it. The request's instance and model outlive it.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Request, execution: Arc<Execution>) -> Self {
        // SAFETY: the request lives until it is released when this value is dropped.
        let info = unsafe { RequestInfo::new(handle) };
        let answer = Arc::new(Answer::new(&execution));
        Self { info, answer, execution }
    }

    /// A new response to this request.
    ///
    /// # Errors
    /// `AlreadyExists` after the final response; otherwise the server's error.
    pub fn respond(&self) -> Result<Response<'_>> {
        if self.execution.handling.decoupled {
            self.answer.open(self.info.handle)?;
        }
        // SAFETY: the request lives, and the address may be written.
        self.answer.new_response(|response| unsafe { TRITONBACKEND_ResponseNew(response, self.info.handle) })
    }

    /// Sends an error as the final response.
    ///
    /// # Errors
    /// `AlreadyExists` after the final response; otherwise the server's error.
    pub fn fail(&self, error: Error) -> Result<()> {
        self.respond()?.send_error(error)
    }

    /// A responder that is independent of the request: it may answer later, on another thread, after the request was
    /// released.
    ///
    /// # Errors
    /// The server's error.
    pub fn responder(&self) -> Result<Responder> {
        self.answer.open(self.info.handle)?;
        Ok(Responder::new(Arc::clone(&self.answer)))
    }

    /// Whether the server prefers host memory for an output of this size.
    ///
    /// # Errors
    /// `AlreadyExists` after the final response, `Unavailable` if the server does not know.
    pub fn prefers_host_memory(&self, output: &str, byte_size: usize) -> Result<bool> {
        let name = c_string(output)?;
        let (mut size, mut kind, mut id) = (byte_size, TRITONSERVER_MEMORY_CPU, 0);
        // SAFETY: the request lives, and the addresses may be written. The allocator is alive until the final
        // response.
        self.answer.while_open(|| unsafe {
            check(TRITONBACKEND_RequestOutputBufferProperties(
                self.info.handle,
                name.as_ptr(),
                &mut size,
                &mut kind,
                &mut id,
            ))
        })?;
        Ok(kind != TRITONSERVER_MEMORY_GPU)
    }

    /// A state that the server keeps for the request's sequence, for writing and updating.
    ///
    /// # Errors
    /// `InvalidArgument` if the configuration has no state of that name.
    pub fn state(&self, name: &str, data_type: DataType, shape: &[i64]) -> Result<State<'_>> {
        let c_name = c_string(name)?;
        let dimensions = u32::try_from(shape.len())
            .map_err(|_| Error::invalid_argument(format!("state '{name}' has too many dimensions")))?;
        let mut state = ptr::null_mut();
        // SAFETY: the request lives, and so do its states; the shape matches its number of dimensions.
        unsafe {
            check(TRITONBACKEND_StateNew(
                &mut state,
                self.info.handle,
                c_name.as_ptr(),
                to_c(data_type),
                shape.as_ptr(),
                dimensions,
            ))?;
            Ok(State::new(state))
        }
    }

    /// Reschedules the request, for iterative sequences.
    ///
    /// # Errors
    /// `Unsupported` if the model's configuration has no iterative sequences. The error also answers the request.
    pub fn reschedule(self) -> Result<()> {
        // A server may accept the request nevertheless, which would leave it unanswered.
        if !self.execution.handling.iterative {
            let error = Error::unsupported("only models with iterative sequences can reschedule a request");
            self.fail(error.clone())?;
            return Err(error);
        }
        self.report_statistics(true);
        let handle = self.info.handle;
        // SAFETY: the request is ours, and becomes the server's only if the call succeeds.
        let outcome =
            unsafe { check(TRITONBACKEND_RequestRelease(handle, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.0)) };
        match outcome {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                this.answer.mark_rescheduled();
                // SAFETY: both are valid, dropped once, and not used after this; the request itself is released.
                unsafe {
                    ptr::drop_in_place(&mut this.answer);
                    ptr::drop_in_place(&mut this.execution);
                }
                Ok(())
            }
            Err(error) => {
                drop(self.fail(error.clone()));
                Err(error)
            }
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answer.is_finished()
    }

    fn report_statistics(&self, success: bool) {
        let execution = &self.execution;
        // SAFETY: the instance outlives its requests, and the request is not released yet.
        let outcome = unsafe {
            check(TRITONBACKEND_ModelInstanceReportStatistics(
                execution.instance(),
                self.info.handle,
                success,
                execution.start,
                execution.compute_start(),
                execution.compute_end(),
                crate::clock::now(),
            ))
        };
        if let Err(error) = outcome {
            crate::warning!("statistics of a request could not be reported: {error}");
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Other owners of the answer may still send it.
        if Arc::get_mut(&mut self.answer).is_some() && !self.answer.is_finished() {
            let error = Error::internal("the backend returned the request without an answer");
            if let Err(error) = self.fail(error) {
                crate::error!("cannot answer a request: {error}");
            }
        }
        let success = !self.answer.has_failed.load(Ordering::Acquire);
        self.report_statistics(success);
        if success {
            self.execution.any_success.store(true, Ordering::Release);
        }
        // SAFETY: the request is ours and not used after this.
        let released = unsafe {
            check(TRITONBACKEND_RequestRelease(self.info.handle, TRITONSERVER_REQUEST_RELEASE_ALL.0))
        };
        if let Err(error) = released {
            crate::error!("a request could not be given back: {error}");
        }
    }
}

/// Ties a value to the life of a request without owning it.
pub(crate) type Borrowed<'a> = PhantomData<&'a RequestInfo>;

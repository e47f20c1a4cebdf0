//! A request to a model.

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
use crate::batch::Execution;
use crate::data::DataType;
use crate::error::{Error, Result, c_string, check, text};
use crate::input::Input;
use crate::response::Response;
use crate::state::State;

/// The properties of a request, borrowed from the server for as long as the request lives.
pub struct RequestInfo {
    handle: *mut TRITONBACKEND_Request,
}

/// The value of a request's parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Parameter<'a> {
    /// A text.
    String(&'a str),
    /// A whole number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A number.
    Double(f64),
    /// A value that cannot be read: the interface passes bytes without their number.
    Opaque,
}

/// The sequence that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CorrelationId<'a> {
    /// A number; 0 is none.
    Number(u64),
    /// A text.
    Text(&'a str),
}

impl RequestInfo {
    /// # Safety
    /// `handle` lives as long as the value.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Request) -> Self {
        Self { handle }
    }

    /// The id that the client gave, or an empty text.
    ///
    /// # Errors
    /// `InvalidArgument` where it is not UTF-8. Other errors of all functions here are what the server says.
    pub fn id(&self) -> Result<&str> {
        let mut id = ptr::null();
        // SAFETY: the request lives, and its id with it.
        unsafe {
            check(TRITONBACKEND_RequestId(self.handle, &mut id))?;
            text(id)
        }
    }

    /// The sequence that the request belongs to.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn correlation_id(&self) -> Result<CorrelationId<'_>> {
        let mut number = 0;
        // SAFETY: the request lives, and the address may be written.
        let numbered = unsafe { check(TRITONBACKEND_RequestCorrelationId(self.handle, &mut number)) };
        if numbered.is_ok() {
            return Ok(CorrelationId::Number(number));
        }
        // A string is not a number: that is how the server distinguishes them.
        let mut id = ptr::null();
        // SAFETY: the request lives, and its id with it.
        unsafe {
            check(TRITONBACKEND_RequestCorrelationIdString(self.handle, &mut id))?;
            Ok(CorrelationId::Text(text(id)?))
        }
    }

    /// Whether the request begins its sequence.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn is_sequence_start(&self) -> Result<bool> {
        Ok(self.flags()? & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0)
    }

    /// Whether the request ends its sequence.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn is_sequence_end(&self) -> Result<bool> {
        Ok(self.flags()? & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0)
    }

    /// Whether the client cancelled the request. It must be answered all the same.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn is_cancelled(&self) -> Result<bool> {
        let mut cancelled = false;
        // SAFETY: the request lives, and the address may be written.
        unsafe { check(TRITONBACKEND_RequestIsCancelled(self.handle, &mut cancelled))? };
        Ok(cancelled)
    }

    /// The client's timeout, if it set one.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn timeout(&self) -> Result<Option<Duration>> {
        let mut microseconds = 0;
        // SAFETY: the request lives, and the address may be written.
        unsafe {
            check(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(self.handle, &mut microseconds))?;
        }
        Ok((microseconds > 0).then(|| Duration::from_micros(microseconds)))
    }

    /// The request's parameters, in the order of the request.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn parameters(&self) -> Result<Vec<(&str, Parameter<'_>)>> {
        let mut count = 0;
        // SAFETY: the request lives, and the address may be written.
        unsafe { check(TRITONBACKEND_RequestParameterCount(self.handle, &mut count))? };
        (0..count)
            .map(|index| {
                let (mut key, mut kind, mut value) = (ptr::null(), TRITONSERVER_PARAMETER_BYTES, ptr::null());
                // SAFETY: the request lives, and its parameters with it. The value is of the kind that is said.
                unsafe {
                    check(TRITONBACKEND_RequestParameter(
                        self.handle,
                        index,
                        &mut key,
                        &mut kind,
                        &mut value,
                    ))?;
                    Ok((text(key)?, parameter(kind, value)?))
                }
            })
            .collect()
    }

    /// One parameter.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn parameter(&self, name: &str) -> Result<Option<Parameter<'_>>> {
        Ok(self.parameters()?.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value))
    }

    /// The number of inputs.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn input_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the request lives, and the address may be written.
        unsafe { check(TRITONBACKEND_RequestInputCount(self.handle, &mut count))? };
        Ok(count)
    }

    /// An input by its name.
    ///
    /// # Errors
    /// `InvalidArgument` where the request has none of that name.
    pub fn input(&self, name: &str) -> Result<Input<'_>> {
        let name = c_string(name)?;
        let mut input = ptr::null_mut();
        // SAFETY: the request lives, and its inputs with it.
        unsafe {
            check(TRITONBACKEND_RequestInput(self.handle, name.as_ptr(), &mut input))?;
            Input::new(input)
        }
    }

    /// An input by its place, which has nothing to do with the order in the configuration.
    ///
    /// # Errors
    /// `InvalidArgument` if there are fewer.
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
    /// Whatever the server says.
    pub fn inputs(&self) -> Result<Vec<Input<'_>>> {
        (0..self.input_count()?).map(|index| self.input_at(index)).collect()
    }

    /// The names of the requested outputs: all of them if the client names none.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn requested_outputs(&self) -> Result<Vec<&str>> {
        let mut count = 0;
        // SAFETY: the request lives, and the address may be written.
        unsafe { check(TRITONBACKEND_RequestOutputCount(self.handle, &mut count))? };
        (0..count)
            .map(|index| {
                let mut name = ptr::null();
                // SAFETY: the request lives, and the names of its outputs with it.
                unsafe {
                    check(TRITONBACKEND_RequestOutputName(self.handle, index, &mut name))?;
                    text(name)
                }
            })
            .collect()
    }

    /// Whether an output is requested. Others need not be computed.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn wants(&self, output: &str) -> Result<bool> {
        Ok(self.requested_outputs()?.contains(&output))
    }

    /// Notes an event of the backend's own in the request's trace, now. Without a trace nothing happens.
    ///
    /// # Errors
    /// Whatever the server says.
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

    /// The rows that the request has in a batch, by the first dimension of its first input.
    pub(crate) fn rows(&self) -> u64 {
        let rows = self.input_at(0).ok().and_then(|input| input.shape().first().copied());
        rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(1)
    }

    fn flags(&self) -> Result<u32> {
        let mut flags = 0;
        // SAFETY: the request lives, and the address may be written.
        unsafe { check(TRITONBACKEND_RequestFlags(self.handle, &mut flags))? };
        Ok(flags)
    }
}

/// # Safety
/// `value` points to a value of this kind that lives during `'a`, as the server hands it out.
unsafe fn parameter<'a>(kind: TRITONSERVER_ParameterType, value: *const c_void) -> Result<Parameter<'a>> {
    if value.is_null() {
        return Ok(Parameter::Opaque);
    }
    // SAFETY: as the caller promises; C's bool is one byte that is 0 or 1, read as a byte all the same.
    unsafe {
        Ok(match kind {
            TRITONSERVER_PARAMETER_STRING => {
                Parameter::String(CStr::from_ptr(value.cast::<c_char>()).to_str()?)
            }
            TRITONSERVER_PARAMETER_INT => Parameter::Int(value.cast::<i64>().read_unaligned()),
            TRITONSERVER_PARAMETER_BOOL => Parameter::Bool(value.cast::<u8>().read() != 0),
            TRITONSERVER_PARAMETER_DOUBLE => Parameter::Double(value.cast::<f64>().read_unaligned()),
            _ => Parameter::Opaque,
        })
    }
}

/// A request. It is answered through [`respond`](Self::respond), [`fail`](Self::fail) or a
/// [`responder`](Self::responder); dropped unanswered, it is answered with an error. Dropping it gives it back to the
/// server, together with its statistics.
///
/// A request may be kept after `execute` returned and answered from any thread.
pub struct Request {
    info: RequestInfo,
    answer: Arc<Answer>,
    execution: Arc<Execution>,
}

// SAFETY: the interface lets a request be read, answered and released on any thread, one after the other. The rest is
// shared behind `Arc`s of what is Send and Sync.
unsafe impl Send for Request {}

impl Deref for Request {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.info
    }
}

impl Request {
    /// # Safety
    /// The caller owns the request and gives it away. Its instance and model outlive it.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Request, execution: Arc<Execution>) -> Self {
        // SAFETY: the request lives until it is released when this value is dropped.
        let info = unsafe { RequestInfo::new(handle) };
        let answer = Arc::new(Answer::new(&execution));
        Self { info, answer, execution }
    }

    /// A new response to this request.
    ///
    /// # Errors
    /// `AlreadyExists` after the last answer, or whatever the server says.
    pub fn respond(&self) -> Result<Response<'_>> {
        if self.execution.handling.decoupled {
            self.answer.open(self.info.handle)?;
        }
        // SAFETY: the request lives, and the address may be written.
        self.answer.make(|response| unsafe { TRITONBACKEND_ResponseNew(response, self.info.handle) })
    }

    /// Answers with an error, as the last answer.
    ///
    /// # Errors
    /// Where the request was answered already, or whatever the server says.
    pub fn fail(&self, error: Error) -> Result<()> {
        self.respond()?.send_error(error)
    }

    /// A responder that is separate from the request: it may answer later, on another thread, after the request was released.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn responder(&self) -> Result<Responder> {
        self.answer.open(self.info.handle)?;
        Ok(Responder::new(Arc::clone(&self.answer)))
    }

    /// Where the server prefers an output of this size, if it knows: whether that is memory that the processor reads.
    ///
    /// # Errors
    /// `AlreadyExists` after the last answer, `Unavailable` where the server does not know.
    pub fn prefers_host_memory(&self, output: &str, byte_size: usize) -> Result<bool> {
        let name = c_string(output)?;
        let (mut size, mut kind, mut id) = (byte_size, TRITONSERVER_MEMORY_CPU, 0);
        // SAFETY: the request lives, and the addresses may be written. What is asked is there until the last answer.
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

    /// A state that the server keeps for the request's sequence, to be written and then updated.
    ///
    /// # Errors
    /// `InvalidArgument` where the configuration has no state of that name.
    pub fn state(&self, name: &str, data_type: DataType, shape: &[i64]) -> Result<State<'_>> {
        let c_name = c_string(name)?;
        let dimensions = u32::try_from(shape.len())
            .map_err(|_| Error::invalid_argument(format!("state '{name}' has too many dimensions")))?;
        let mut state = ptr::null_mut();
        // SAFETY: the request lives, and its states with it; the shape has as many dimensions as said.
        unsafe {
            check(TRITONBACKEND_StateNew(
                &mut state,
                self.info.handle,
                c_name.as_ptr(),
                data_type.into_c(),
                shape.as_ptr(),
                dimensions,
            ))?;
            Ok(State::new(state))
        }
    }

    /// Reschedules the request, as iterative sequences do.
    ///
    /// # Errors
    /// `Unsupported` where the model's configuration has no iterative sequences. The request is answered with the
    /// error.
    pub fn reschedule(self) -> Result<()> {
        // A server may take it back all the same, and then nobody would answer.
        if !self.execution.handling.iterative {
            let error = Error::unsupported("only models with iterative sequences can reschedule a request");
            self.fail(error.clone())?;
            return Err(error);
        }
        self.report_statistics(true);
        let handle = self.info.handle;
        // SAFETY: the request is ours. Only where the call succeeds does it belong to the server.
        let outcome =
            unsafe { check(TRITONBACKEND_RequestRelease(handle, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.0)) };
        match outcome {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                this.answer.leave_open();
                // SAFETY: both are valid, dropped once, and not used after this; the request itself is gone.
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

/// Ties a value to the life of a request without holding it.
pub(crate) type Borrowed<'a> = PhantomData<&'a RequestInfo>;

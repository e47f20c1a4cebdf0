//! Inner requests: inferences with other models of the server.
//!
//! The server holds two boxes of ours per request: one with the inputs, until it releases the request, and one with
//! the channel for responses, until the last response. Outputs are placed in our memory and copied out.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{ptr, slice};

use tensor_types::DataType;
use triton_sys::*;

use crate::cancel::{Canceller, OwnRequest};
use crate::data::{self, Element, element_count, join_bytes, split_bytes};
use crate::error::{Error, Result, c_string, check, copy, text};
use crate::server::{Server, number};

/// A request to another model.
#[derive(Debug, Clone)]
pub struct InferRequest {
    model: String,
    version: Option<u32>,
    id: String,
    timeout: Option<Duration>,
    priority: u64,
    correlation_id: u64,
    flags: u32,
    inputs: Vec<(String, DataType, Vec<i64>, Vec<u8>)>,
    outputs: Vec<String>,
}

/// The responses to a request: zero, one or many, or errors. Reading blocks until the next one arrives.
#[derive(Debug)]
pub struct Responses {
    receiver: Receiver<Result<InferResponse>>,
    canceller: Canceller,
}

/// One response of another model.
#[derive(Debug, Clone, PartialEq)]
pub struct InferResponse {
    /// The model that answered.
    pub model: String,
    /// The model's version.
    pub version: i64,
    /// The response's outputs.
    pub outputs: Vec<OutputTensor>,
}

/// An output of another model.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTensor {
    /// The output's name.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The output's shape.
    pub shape: Vec<i64>,
    /// The elements in the protocol's encoding.
    pub bytes: Vec<u8>,
}

impl InferRequest {
    /// A request to the newest version of a model.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            version: None,
            id: String::new(),
            timeout: None,
            priority: 0,
            correlation_id: 0,
            flags: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Requests one version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// Sets the request's id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Limits the time that the request may wait, if the model's queue policy allows that.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The request's priority; 0 is the model's default, 1 the highest.
    #[must_use]
    pub fn priority(mut self, priority: u64) -> Self {
        self.priority = priority;
        self
    }

    /// Makes the request part of a sequence.
    #[must_use]
    pub fn sequence(mut self, id: u64, starts: bool, ends: bool) -> Self {
        self.correlation_id = id;
        self.flags = if starts { TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 } else { 0 }
            | if ends { TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 } else { 0 };
        self
    }

    /// Adds an input. The first dimension is the batch if the model supports batching.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape and the number of values differ.
    pub fn input<T: Element>(self, name: &str, shape: &[i64], values: &[T]) -> Result<Self> {
        expect_count(name, shape, values.len())?;
        Ok(self.raw_input(name, T::DATA_TYPE, shape, T::bytes(values).into_owned()))
    }

    /// Adds an input of type `Bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape and the number of values differ.
    pub fn bytes_input(self, name: &str, shape: &[i64], values: &[impl AsRef<[u8]>]) -> Result<Self> {
        expect_count(name, shape, values.len())?;
        Ok(self.raw_input(name, DataType::Bytes, shape, join_bytes(values)?))
    }

    /// Adds an input whose elements are already in the protocol's encoding.
    #[must_use]
    pub fn raw_input(mut self, name: &str, data_type: DataType, shape: &[i64], bytes: Vec<u8>) -> Self {
        self.inputs.push((name.to_owned(), data_type, shape.to_vec(), bytes));
        self
    }

    /// Requests an output. Without any, all are returned.
    #[must_use]
    pub fn output(mut self, name: &str) -> Self {
        self.outputs.push(name.to_owned());
        self
    }

    pub(crate) fn start(self, server: &Server) -> Result<Responses> {
        let request = Arc::new(new_request(&self, server)?);
        let mut released = Box::new(RequestState { inputs: Vec::new(), _request: Arc::clone(&request) });
        for (name, data_type, shape, bytes) in self.inputs {
            let name = c_string(&name)?;
            // SAFETY: the request is ours; name and shape are copied; the bytes are kept until the request is released
            // or deleted, since the box below holds them and moving a vector does not move its bytes.
            unsafe {
                check(TRITONSERVER_InferenceRequestAddInput(
                    request.handle(),
                    name.as_ptr(),
                    data::to_c(data_type),
                    shape.as_ptr(),
                    shape.len() as u64,
                ))?;
                if !bytes.is_empty() {
                    check(TRITONSERVER_InferenceRequestAppendInputData(
                        request.handle(),
                        name.as_ptr(),
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        TRITONSERVER_MEMORY_CPU,
                        0,
                    ))?;
                }
            }
            released.inputs.push(bytes);
        }
        for output in &self.outputs {
            let output = c_string(output)?;
            // SAFETY: the request is ours, and the name is copied.
            unsafe {
                check(TRITONSERVER_InferenceRequestAddRequestedOutput(request.handle(), output.as_ptr()))?
            };
        }
        send(&request, server, released)
    }
}

/// Creates a request, which the server does not own yet.
fn new_request(source: &InferRequest, server: &Server) -> Result<OwnRequest> {
    let (model, id): (CString, CString) = (c_string(&source.model)?, c_string(&source.id)?);
    let timeout = source.timeout.map_or(0, |timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
    let mut handle = ptr::null_mut();
    // SAFETY: the server lives; the new request is ours; texts are copied.
    unsafe {
        check(TRITONSERVER_InferenceRequestNew(
            &mut handle,
            server.handle(),
            model.as_ptr(),
            number(source.version),
        ))?;
        let request = OwnRequest::new(handle);
        check(TRITONSERVER_InferenceRequestSetId(handle, id.as_ptr()))?;
        check(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(handle, timeout))?;
        check(TRITONSERVER_InferenceRequestSetPriorityUInt64(handle, source.priority))?;
        check(TRITONSERVER_InferenceRequestSetCorrelationId(handle, source.correlation_id))?;
        check(TRITONSERVER_InferenceRequestSetFlags(handle, source.flags))?;
        Ok(request)
    }
}

fn send(request: &Arc<OwnRequest>, server: &Server, released: Box<RequestState>) -> Result<Responses> {
    let (sender, receiver) = channel();
    let mut allocator = ptr::null_mut();
    // SAFETY: the address may be written; the functions match the interface.
    unsafe {
        check(TRITONSERVER_ResponseAllocatorNew(
            &mut allocator,
            Some(place_output),
            Some(release_output),
            None,
        ))?
    };
    let answered =
        Box::into_raw(Box::new(ResponseState { sender, allocator, _request: Arc::clone(request) }));
    let released = Box::into_raw(released);
    // SAFETY: the request is ours; the boxes and the allocator stay alive until the server's last callback, or are
    // freed below if it never calls back.
    let started = unsafe {
        check(TRITONSERVER_InferenceRequestSetReleaseCallback(
            request.handle(),
            Some(release),
            released.cast(),
        ))
        .and_then(|()| {
            check(TRITONSERVER_InferenceRequestSetResponseCallback(
                request.handle(),
                allocator,
                ptr::null_mut(),
                Some(respond),
                answered.cast(),
            ))
        })
        .and_then(|()| {
            check(TRITONSERVER_ServerInferAsync(server.handle(), request.handle(), ptr::null_mut()))
        })
    };
    match started {
        Ok(()) => Ok(Responses { receiver, canceller: Canceller::new(request) }),
        Err(error) => {
            // SAFETY: the server refused the request, so it calls neither of the functions.
            unsafe {
                drop(Box::from_raw(released));
                drop(Box::from_raw(answered));
            }
            Err(error)
        }
    }
}

/// State that lives until the request is released.
struct RequestState {
    inputs: Vec<Vec<u8>>,
    _request: Arc<OwnRequest>,
}

/// State that lives until the last response.
struct ResponseState {
    sender: Sender<Result<InferResponse>>,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    _request: Arc<OwnRequest>,
}

impl Drop for ResponseState {
    fn drop(&mut self) {
        // SAFETY: the allocator is ours, and no response uses it any more.
        drop(unsafe { check(TRITONSERVER_ResponseAllocatorDelete(self.allocator)) });
    }
}

/// Callback: the server releases a request.
///
/// # Safety
/// Called only by the server, with the user pointer set in `send`.
unsafe extern "C" fn release(_request: *mut TRITONSERVER_InferenceRequest, flags: u32, userp: *mut c_void) {
    if flags & TRITONSERVER_REQUEST_RELEASE_ALL.0 == 0 {
        return;
    }
    // SAFETY: `send` passed the box with the request, and only this call returns it. The server no longer reads the
    // inputs, so they may be freed before the request.
    drop(unsafe { Box::from_raw(userp.cast::<RequestState>()) });
}

/// Callback: the server delivers a response, or reports that no more follow.
///
/// # Safety
/// Called only by the server, with the user pointer set in `send`.
unsafe extern "C" fn respond(response: *mut TRITONSERVER_InferenceResponse, flags: u32, userp: *mut c_void) {
    let answered = userp.cast::<ResponseState>();
    if !response.is_null() {
        // SAFETY: the response is ours from here on and not used after its deletion.
        let read = unsafe {
            let read = read(response);
            drop(check(TRITONSERVER_InferenceResponseDelete(response)));
            read
        };
        // SAFETY: the box lives until the last response. Without a receiver, the response is dropped.
        drop(unsafe { &*answered }.sender.send(read));
    }
    if flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 != 0 {
        // SAFETY: this is the last call, so the box is ours again.
        drop(unsafe { Box::from_raw(answered) });
    }
}

/// # Safety
/// The response lives during the call.
unsafe fn read(response: *mut TRITONSERVER_InferenceResponse) -> Result<InferResponse> {
    // SAFETY: the response lives, and so does everything it owns; everything is copied. The error of a failed
    // response belongs to the response.
    unsafe {
        let error = TRITONSERVER_InferenceResponseError(response);
        if !error.is_null() {
            return Err(copy(error));
        }
        let (mut model, mut version, mut count) = (ptr::null(), 0, 0);
        check(TRITONSERVER_InferenceResponseModel(response, &mut model, &mut version))?;
        check(TRITONSERVER_InferenceResponseOutputCount(response, &mut count))?;
        let outputs = (0..count).map(|index| read_output(response, index)).collect::<Result<_>>()?;
        Ok(InferResponse { model: text(model)?.to_owned(), version, outputs })
    }
}

/// # Safety
/// The response lives during the call.
unsafe fn read_output(response: *mut TRITONSERVER_InferenceResponse, index: u32) -> Result<OutputTensor> {
    let (mut name, mut data_type, mut shape, mut dimensions) =
        (ptr::null::<c_char>(), TRITONSERVER_TYPE_INVALID, ptr::null(), 0);
    let (mut base, mut byte_size, mut kind, mut id) = (ptr::null(), 0, TRITONSERVER_MEMORY_CPU, 0);
    let mut userp = ptr::null_mut();
    // SAFETY: the response lives, and so does everything it owns; everything is copied. `place` put the output into
    // host memory.
    unsafe {
        check(TRITONSERVER_InferenceResponseOutput(
            response,
            index,
            &mut name,
            &mut data_type,
            &mut shape,
            &mut dimensions,
            &mut base,
            &mut byte_size,
            &mut kind,
            &mut id,
            &mut userp,
        ))?;
        let shape = if shape.is_null() {
            Vec::new()
        } else {
            slice::from_raw_parts(shape, usize::try_from(dimensions).unwrap_or(0)).to_vec()
        };
        let bytes = if base.is_null() || byte_size == 0 {
            Vec::new()
        } else {
            slice::from_raw_parts(base.cast::<u8>(), byte_size).to_vec()
        };
        let name = CStr::from_ptr(name).to_str()?.to_owned();
        Ok(OutputTensor { name, data_type: data::from_c(data_type)?, shape, bytes })
    }
}

/// Alignment of outputs, sufficient for every element type and for the widest vectors.
const ALIGNMENT: usize = 64;

/// Places an output in host memory.
///
/// # Safety
/// Called only by the server, with the user pointer set in `send`.
unsafe extern "C" fn place_output(
    _allocator: *mut TRITONSERVER_ResponseAllocator,
    _name: *const c_char,
    byte_size: usize,
    _wanted: TRITONSERVER_MemoryType,
    _wanted_id: i64,
    _userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    kind: *mut TRITONSERVER_MemoryType,
    id: *mut i64,
) -> *mut TRITONSERVER_Error {
    let memory = match Layout::from_size_align(byte_size, ALIGNMENT) {
        Ok(layout) if byte_size > 0 => {
            // SAFETY: the layout is not empty.
            let memory = unsafe { alloc(layout) };
            if memory.is_null() {
                return Error::internal(format!("no memory for an output of {byte_size} bytes")).into_c();
            }
            memory
        }
        Ok(_) => ptr::null_mut(),
        Err(_) => return Error::internal(format!("an output cannot have {byte_size} bytes")).into_c(),
    };
    // SAFETY: the server passes addresses that may be written.
    unsafe {
        *buffer = memory.cast();
        *buffer_userp = ptr::null_mut();
        *kind = TRITONSERVER_MEMORY_CPU;
        *id = 0;
    }
    ptr::null_mut()
}

/// Frees the memory of an output.
///
/// # Safety
/// Called only by the server, with the user pointer set in `send`.
unsafe extern "C" fn release_output(
    _allocator: *mut TRITONSERVER_ResponseAllocator,
    buffer: *mut c_void,
    _buffer_userp: *mut c_void,
    byte_size: usize,
    _kind: TRITONSERVER_MemoryType,
    _id: i64,
) -> *mut TRITONSERVER_Error {
    if let (false, true, Ok(layout)) =
        (buffer.is_null(), byte_size > 0, Layout::from_size_align(byte_size, ALIGNMENT))
    {
        // SAFETY: `place_output` made this memory with the same layout.
        unsafe { dealloc(buffer.cast(), layout) };
    }
    ptr::null_mut()
}

impl Responses {
    /// A canceller of the request, usable while another thread waits for its responses.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Waits for the only response.
    ///
    /// # Errors
    /// The response's error, or `Internal` unless exactly one response arrives.
    pub fn one(mut self) -> Result<InferResponse> {
        let first = self.next().unwrap_or_else(|| Err(Error::internal("the model sent no response")))?;
        match self.next() {
            None => Ok(first),
            Some(_) => Err(Error::internal("the model sent more than one response")),
        }
    }
}

impl Iterator for Responses {
    type Item = Result<InferResponse>;

    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.recv().ok()
    }
}

impl InferResponse {
    /// An output by its name.
    ///
    /// # Errors
    /// `NotFound` if the response has no output of that name.
    pub fn output(&self, name: &str) -> Result<&OutputTensor> {
        self.outputs.iter().find(|output| output.name == name).ok_or_else(|| {
            Error::new(
                crate::error::ErrorCode::NotFound,
                format!("the response of model '{}' has no output '{name}'", self.model),
            )
        })
    }
}

impl OutputTensor {
    /// The elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the output has another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect(T::DATA_TYPE)?;
        Ok(T::read(&self.bytes))
    }

    /// The elements of a `Bytes` output.
    ///
    /// # Errors
    /// `InvalidArgument` if the output has another type or is malformed.
    pub fn to_byte_strings(&self) -> Result<Vec<&[u8]>> {
        self.expect(DataType::Bytes)?;
        split_bytes(&self.bytes)
    }

    fn expect(&self, expected: DataType) -> Result<()> {
        if self.data_type == expected {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "output '{}' has type {}, expected {}",
            self.name,
            self.data_type.protocol_name(),
            expected.protocol_name()
        )))
    }
}

fn expect_count(name: &str, shape: &[i64], count: usize) -> Result<()> {
    if element_count(shape)? == count {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("input '{name}' of shape {shape:?} cannot hold {count} values")))
}

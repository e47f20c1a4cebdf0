//! A request for an inference that a backend starts itself: what it sets before it hands it to the server.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, Buffers, CorrelationId, DataType, DeviceBuffer, Error, ErrorCode, InferRequest, IpcHandle,
    Memory, ParameterValue, Parameters, RequestedOutput, Result, SequenceFlags, Tensor,
};
use nereid_core::Server;
use nereid_cuda::{Cuda, ForeignMemory};
use triton_sys::*;

use crate::allocator::{Allocator, Placement};
use crate::boundary::exports;
use crate::call::Canceller;
use crate::handle::Handle;
use crate::names::{data_type_from_c, memory_from_c};
use crate::text::c_string;

/// A request in the hands of who makes it. It may be sent again when it was given back.
pub(crate) struct InferenceRequest {
    fields: Mutex<Fields>,
    /// What the memory of GPUs is copied with.
    cuda: Option<Arc<Cuda>>,
}

/// What was set.
pub(crate) struct Fields {
    pub model_name: String,
    /// -1 leaves the choice to the server.
    pub model_version: i64,
    id: CString,
    correlation_id: CorrelationId,
    correlation_text: CString,
    flags: u32,
    priority: u64,
    timeout_us: u64,
    inputs: BTreeMap<String, Input>,
    /// The one input whose type and shape follow from the model and from its size.
    raw: Option<String>,
    outputs: Vec<String>,
    parameters: Parameters,
    release: TRITONSERVER_InferenceRequestReleaseFn_t,
    release_userp: AtomicPtr<c_void>,
    allocator: Handle<Allocator>,
    allocator_userp: AtomicPtr<c_void>,
    pub complete: TRITONSERVER_InferenceResponseCompleteFn_t,
    pub complete_userp: AtomicPtr<c_void>,
    /// Of when it was last sent.
    pub canceller: Option<Canceller>,
}

struct Input {
    data_type: DataType,
    shape: Vec<i64>,
    /// Addresses and lengths. They are the caller's, who keeps them until the request is given back.
    pieces: Vec<GivenPiece>,
}

struct GivenPiece {
    address: AtomicPtr<c_void>,
    len: usize,
    memory: Memory,
    ipc_handle: Option<IpcHandle>,
}

/// Gives the request back to who made it, when nothing uses what belongs to it any more.
pub(crate) struct Release {
    function: TRITONSERVER_InferenceRequestReleaseFn_t,
    request: Handle<InferenceRequest>,
    userp: AtomicPtr<c_void>,
    /// Cleared where the server did not take the request, and so does not give it back.
    armed: AtomicBool,
}

impl Release {
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Some(function) = self.function.filter(|_| self.armed.load(Relaxed)) else { return };
        let flags = TRITONSERVER_REQUEST_RELEASE_ALL.0;
        // SAFETY: the function was given for this call, with these arguments; it is called once.
        unsafe { function(self.request.as_c(), flags, self.userp.load(Relaxed)) }
    }
}

/// A piece of an input.
struct Piece {
    address: AtomicPtr<c_void>,
    len: usize,
    _release: Arc<Release>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: who made the request keeps so many bytes there until it is given back, which this holds off; null
        // was refused when they were set.
        unsafe { std::slice::from_raw_parts(self.address.load(Relaxed).cast::<u8>(), self.len) }
    }
}

impl Input {
    fn buffers(&self, release: &Arc<Release>, cuda: Option<&Arc<Cuda>>) -> Buffers {
        let buffer = |piece: &GivenPiece| {
            let GivenPiece { len, memory, ipc_handle, .. } = *piece;
            let address = piece.address.load(Relaxed);
            if memory.is_host() {
                let address = AtomicPtr::new(address);
                return Buffer::host(Bytes::from_owner(Piece {
                    address,
                    len,
                    _release: Arc::clone(release),
                }));
            }
            let (address, device) = (address.addr() as u64, memory.device);
            // SAFETY: who made the request keeps so many bytes there until it is given back, which the release holds
            // off. Inputs are only read.
            let owner = unsafe { ForeignMemory::new(cuda, device, address, len, Arc::clone(release)) };
            let owner = Arc::new(owner.with_ipc_handle(ipc_handle));
            Buffer::device(DeviceBuffer { address, len, owner }, device)
        };
        self.pieces.iter().map(buffer).collect()
    }
}

impl InferenceRequest {
    pub(crate) fn new(model_name: String, model_version: i64, cuda: Option<Arc<Cuda>>) -> Self {
        let fields = Mutex::new(Fields {
            model_name,
            model_version,
            id: CString::default(),
            correlation_id: CorrelationId::None,
            correlation_text: CString::default(),
            flags: 0,
            priority: 0,
            timeout_us: 0,
            inputs: BTreeMap::new(),
            raw: None,
            outputs: Vec::new(),
            parameters: Parameters::default(),
            release: None,
            release_userp: AtomicPtr::default(),
            allocator: Handle::null(),
            allocator_userp: AtomicPtr::default(),
            complete: None,
            complete_userp: AtomicPtr::default(),
            canceller: None,
        });
        Self { fields, cuda }
    }

    /// The driver of the GPUs, if there is one.
    pub(crate) fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    pub(crate) fn fields(&self) -> MutexGuard<'_, Fields> {
        // Each change is one assignment, insertion or removal.
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A version as C has it; -1 leaves the choice to the server.
pub(crate) fn version(version: i64) -> Result<Option<u64>> {
    match version {
        -1 => Ok(None),
        version => u64::try_from(version).map(Some).map_err(|_| {
            Error::invalid_arg(format!("{version} is not a version; -1 leaves the choice to the server"))
        }),
    }
}

impl Fields {
    /// The request as the server takes it, where its outputs are placed, and what gives it back.
    pub(crate) fn build(
        &self,
        server: &Server,
        handle: Handle<InferenceRequest>,
        cuda: Option<&Arc<Cuda>>,
    ) -> Result<(InferRequest, Arc<Placement>, Arc<Release>)> {
        let release = Arc::new(Release {
            function: self.release,
            request: handle,
            userp: AtomicPtr::new(self.release_userp.load(Relaxed)),
            armed: AtomicBool::new(false),
        });
        let userp = self.allocator_userp.load(Relaxed);
        let placement = Placement::new(self.allocator, userp, Arc::clone(&release), cuda.cloned())?;
        let placement = Arc::new(placement);
        let model_version = version(self.model_version)?;
        let input = |(name, input): (&String, &Input)| {
            let buffers = input.buffers(&release, cuda);
            if self.raw.as_ref() == Some(name) {
                return server.model(&self.model_name, model_version)?.signature().raw_input(buffers);
            }
            Ok(Tensor {
                name: name.clone(),
                data_type: input.data_type,
                shape: input.shape[..].into(),
                buffers,
            })
        };
        let request = InferRequest {
            model_name: self.model_name.clone(),
            model_version,
            id: self.id.to_string_lossy().into_owned(),
            inputs: self.inputs.iter().map(input).collect::<Result<_>>()?,
            outputs: self.outputs.iter().map(RequestedOutput::new).collect(),
            parameters: self.parameters.clone(),
            correlation_id: self.correlation_id.clone(),
            sequence: SequenceFlags {
                start: self.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0,
                end: self.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0,
            },
            priority: self.priority,
            timeout: (self.timeout_us > 0).then(|| Duration::from_micros(self.timeout_us)),
            allocator: Some(Arc::clone(&placement) as _),
            trace: None,
        };
        release.armed.store(true, Relaxed);
        Ok((request, placement, release))
    }

    fn input(&mut self, name: &str) -> Result<&mut Input> {
        self.inputs
            .get_mut(name)
            .ok_or_else(|| Error::invalid_arg(format!("the request has no input '{name}' yet")))
    }

    fn append(
        &mut self,
        name: &str,
        address: *const c_void,
        (len, memory): (usize, Memory),
        ipc_handle: Option<IpcHandle>,
    ) -> Result<()> {
        if address.is_null() && len > 0 {
            return Err(Error::invalid_arg(format!("the data of input '{name}' is null")));
        }
        let address = AtomicPtr::new(address.cast_mut());
        self.input(name)?.pieces.push(GivenPiece { address, len, memory, ipc_handle });
        Ok(())
    }
}

exports! {
    fn TRITONSERVER_InferenceRequestNew(
        inference_request: *mut *mut TRITONSERVER_InferenceRequest,
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
    ) {
        let name = model_name.read()?.into_owned();
        let server = server.get()?;
        server.server()?.model(&name, version(model_version)?)?;
        let request = Arc::new(InferenceRequest::new(name, model_version, server.cuda().cloned()));
        inference_request.set(Handle::give(request)?.as_c())?;
    }

    fn TRITONSERVER_InferenceRequestDelete(inference_request: *mut TRITONSERVER_InferenceRequest) {
        inference_request.delete()?;
    }

    fn TRITONSERVER_InferenceRequestId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *mut *const c_char,
    ) {
        id.set(inference_request.get()?.fields().id.as_ptr())?;
    }

    fn TRITONSERVER_InferenceRequestSetId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *const c_char,
    ) {
        inference_request.get()?.fields().id = c_string(&id.read()?);
    }

    fn TRITONSERVER_InferenceRequestFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: *mut u32,
    ) {
        flags.set(inference_request.get()?.fields().flags)?;
    }

    fn TRITONSERVER_InferenceRequestSetFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: u32,
    ) {
        inference_request.get()?.fields().flags = flags;
    }

    fn TRITONSERVER_InferenceRequestCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut u64,
    ) {
        correlation_id.set(match inference_request.get()?.fields().correlation_id {
            CorrelationId::None => 0,
            CorrelationId::Number(number) => number,
            CorrelationId::Text(_) => {
                return Err(Error::invalid_arg("the request's correlation id is text and no number"));
            }
        })?;
    }

    fn TRITONSERVER_InferenceRequestCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut *const c_char,
    ) {
        let request = inference_request.get()?;
        let fields = request.fields();
        match fields.correlation_id {
            CorrelationId::Text(_) => correlation_id.set(fields.correlation_text.as_ptr())?,
            CorrelationId::None | CorrelationId::Number(_) => {
                return Err(Error::invalid_arg("the request's correlation id is a number and no text"));
            }
        }
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: u64,
    ) {
        inference_request.get()?.fields().correlation_id = match correlation_id {
            0 => CorrelationId::None,
            number => CorrelationId::Number(number),
        };
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *const c_char,
    ) {
        let (request, text) = (inference_request.get()?, correlation_id.read()?.into_owned());
        let mut fields = request.fields();
        fields.correlation_text = c_string(&text);
        fields.correlation_id = if text.is_empty() { CorrelationId::None } else { CorrelationId::Text(text) };
    }

    fn TRITONSERVER_InferenceRequestCancel(inference_request: *mut TRITONSERVER_InferenceRequest) {
        // Cancelled when nothing is locked: the answer may come on this very thread.
        let canceller = inference_request.get()?.fields().canceller.clone();
        canceller.ok_or_else(|| Error::invalid_arg("the request was not sent"))?.cancel();
    }

    fn TRITONSERVER_InferenceRequestIsCancelled(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        is_cancelled: *mut bool,
    ) {
        let request = inference_request.get()?;
        let fields = request.fields();
        is_cancelled.set(fields.canceller.as_ref().is_some_and(Canceller::is_cancelled))?;
    }

    fn TRITONSERVER_InferenceRequestPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u32,
    ) {
        let level = inference_request.get()?.fields().priority;
        priority.set(u32::try_from(level).unwrap_or(u32::MAX))?;
    }

    fn TRITONSERVER_InferenceRequestPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u64,
    ) {
        priority.set(inference_request.get()?.fields().priority)?;
    }

    fn TRITONSERVER_InferenceRequestSetPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u32,
    ) {
        inference_request.get()?.fields().priority = priority.into();
    }

    fn TRITONSERVER_InferenceRequestSetPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u64,
    ) {
        inference_request.get()?.fields().priority = priority;
    }

    fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: *mut u64,
    ) {
        timeout_us.set(inference_request.get()?.fields().timeout_us)?;
    }

    fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: u64,
    ) {
        inference_request.get()?.fields().timeout_us = timeout_us;
    }

    fn TRITONSERVER_InferenceRequestSetStringParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: *const c_char,
    ) {
        let value = ParameterValue::String(value.read()?.into_owned().into());
        request.get()?.fields().parameters.set(key.read()?.into_owned(), value);
    }

    fn TRITONSERVER_InferenceRequestSetIntParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: i64,
    ) {
        request.get()?.fields().parameters.set(key.read()?.into_owned(), ParameterValue::Int(value));
    }

    fn TRITONSERVER_InferenceRequestSetBoolParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: bool,
    ) {
        request.get()?.fields().parameters.set(key.read()?.into_owned(), ParameterValue::Bool(value));
    }

    fn TRITONSERVER_InferenceRequestSetDoubleParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: f64,
    ) {
        request.get()?.fields().parameters.set(key.read()?.into_owned(), ParameterValue::Double(value));
    }

    fn TRITONSERVER_InferenceRequestAddInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dim_count: u64,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let data_type = data_type_from_c(datatype)?;
        let input = Input { data_type, shape: shape.elements(dim_count)?, pieces: Vec::new() };
        let mut fields = request.fields();
        if let Some(raw) = &fields.raw {
            return Err(Error::invalid_arg(format!("the input '{name}' does not go with the raw input '{raw}'")));
        }
        if fields.inputs.contains_key(&*name) {
            return Err(Error::new(ErrorCode::InvalidArg, format!("the request has an input '{name}' already")));
        }
        fields.inputs.insert(name.into_owned(), input);
    }

    /// What the input's type and shape are is asked of the model when the request is sent.
    fn TRITONSERVER_InferenceRequestAddRawInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?.into_owned());
        let mut fields = request.fields();
        if !fields.inputs.is_empty() {
            return Err(Error::invalid_arg(format!("the raw input '{name}' goes with no other input")));
        }
        fields.raw = Some(name.clone());
        fields.inputs.insert(name, Input { data_type: DataType::Uint8, shape: Vec::new(), pieces: Vec::new() });
    }

    fn TRITONSERVER_InferenceRequestRemoveInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let mut fields = request.fields();
        fields.input(&name)?;
        fields.inputs.remove(&*name);
        fields.raw = fields.raw.take().filter(|raw| *raw != name);
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputs(inference_request: *mut TRITONSERVER_InferenceRequest) {
        let request = inference_request.get()?;
        let mut fields = request.fields();
        fields.inputs.clear();
        fields.raw = None;
    }

    fn TRITONSERVER_InferenceRequestAppendInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) {
        let memory = memory_from_c(memory_type, memory_type_id)?;
        inference_request.get()?.fields().append(&name.read()?, base.address(), (byte_size, memory), None)?;
    }

    /// Inputs are held once, for all host policies: what is given for one of them only is given for none.
    fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        host_policy_name: *const c_char,
    ) {
        let memory = memory_from_c(memory_type, memory_type_id)?;
        let (request, name) = (inference_request.get()?, name.read()?);
        if let Some(policy) = host_policy_name.read_if_given() {
            return Err(Error::unsupported(format!(
                "the data of input '{name}' is for host policy '{policy}', but this server holds inputs once, for all \
                 policies; append it without one"
            )));
        }
        request.fields().append(&name, base.address(), (byte_size, memory), None)?;
    }

    fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let attributes = buffer_attributes.get()?;
        let ((memory, byte_size), ipc_handle) = (attributes.place(), attributes.ipc_handle());
        let request = inference_request.get()?;
        request.fields().append(&name.read()?, base.address(), (byte_size, memory), ipc_handle)?;
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        inference_request.get()?.fields().input(&name.read()?)?.pieces.clear();
    }

    fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let mut fields = request.fields();
        if fields.outputs.iter().all(|known| *known != name) {
            fields.outputs.push(name.into_owned());
        }
    }

    fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        request.fields().outputs.retain(|known| *known != name);
    }

    fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) {
        inference_request.get()?.fields().outputs.clear();
    }

    fn TRITONSERVER_InferenceRequestSetReleaseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        request_release_fn: TRITONSERVER_InferenceRequestReleaseFn_t,
        request_release_userp: *mut c_void,
    ) {
        let request = inference_request.get()?;
        let mut fields = request.fields();
        fields.release = request_release_fn;
        fields.release_userp = AtomicPtr::new(request_release_userp);
    }

    fn TRITONSERVER_InferenceRequestSetResponseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        response_allocator: *mut TRITONSERVER_ResponseAllocator,
        response_allocator_userp: *mut c_void,
        response_fn: TRITONSERVER_InferenceResponseCompleteFn_t,
        response_userp: *mut c_void,
    ) {
        response_allocator.get()?;
        let request = inference_request.get()?;
        let mut fields = request.fields();
        fields.allocator = response_allocator;
        fields.allocator_userp = AtomicPtr::new(response_allocator_userp);
        fields.complete = response_fn;
        fields.complete_userp = AtomicPtr::new(response_userp);
    }
}

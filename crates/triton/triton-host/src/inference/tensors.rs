//! Tensors of an inner request: its inputs, whose bytes stay with the backend, and its requested outputs. Does not
//! know the model's signature, except for raw inputs, which need it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, Buffers, DataType, DeviceBuffer, Error, ErrorCode, IpcHandle, Memory, MemoryKind, PolicyContents,
    RequestedOutput, Result, Tensor,
};
use nereid_cuda::{Cuda, ForeignMemory};
use triton_sys::*;

use crate::boundary::exports;
use crate::names::{data_type_from_c, memory_from_c};
use crate::release::Release;

/// The request's tensors.
#[derive(Default)]
pub(super) struct Tensors {
    inputs: BTreeMap<String, Input>,
    /// The one input whose type and shape follow from the model and from its size.
    raw: Option<String>,
    outputs: Vec<String>,
}

impl Tensors {
    /// The inputs in the server's form, and their contents for single host policies. They hold off `release`.
    ///
    /// # Errors
    /// `InvalidArg` if contents for a host policy differ in length from the contents for all; the errors of `raw`,
    /// which makes a tensor from contents alone.
    pub(super) fn inputs(
        &self,
        release: &Arc<Release>,
        cuda: Option<&Arc<Cuda>>,
        raw: impl Fn(Buffers) -> Result<Tensor>,
    ) -> Result<(Vec<Tensor>, Vec<PolicyContents>)> {
        let (mut inputs, mut policies) = (Vec::with_capacity(self.inputs.len()), Vec::new());
        for (name, input) in &self.inputs {
            let tensor = |pieces: &[CallerPiece]| {
                let buffers = pieces.iter().map(|piece| piece.buffer(release, cuda)).collect();
                if self.raw.as_ref() == Some(name) {
                    return raw(buffers);
                }
                let (data_type, shape) = (input.data_type, input.shape[..].into());
                Ok(Tensor { name: name.clone(), data_type, shape, buffers })
            };
            let for_all = tensor(&input.pieces)?;
            for (policy, pieces) in &input.by_policy {
                let (own, size) = (tensor(pieces)?, for_all.byte_size());
                if own.byte_size() != size {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has {} bytes of data for host policy '{policy}', but {size} for all others; \
                         they have to be as many",
                        own.byte_size()
                    )));
                }
                let (input, policy) = (own.name, policy.clone());
                policies.push(PolicyContents { input, policy, buffers: own.buffers });
            }
            inputs.push(for_all);
        }
        Ok((inputs, policies))
    }

    /// The requested outputs.
    pub(super) fn outputs(&self) -> Vec<RequestedOutput> {
        self.outputs.iter().map(RequestedOutput::new).collect()
    }

    fn input(&mut self, name: &str) -> Result<&mut Input> {
        self.inputs
            .get_mut(name)
            .ok_or_else(|| Error::invalid_arg(format!("the request has no input '{name}' yet")))
    }

    fn append(&mut self, name: &str, policy: Option<&str>, piece: CallerPiece) -> Result<()> {
        let CallerPiece { address, len, .. } = &piece;
        if address.load(Relaxed).is_null() && *len > 0 {
            return Err(Error::invalid_arg(format!("the data of input '{name}' is null")));
        }
        if isize::try_from(*len).is_err() {
            return Err(Error::invalid_arg(format!(
                "input '{name}': {len} bytes of data exceed the address space"
            )));
        }
        let input = self.input(name)?;
        let pieces = match policy {
            Some(policy) => input.by_policy.entry(policy.to_owned()).or_default(),
            None => &mut input.pieces,
        };
        // As in the reference, empty data adds no piece.
        if piece.len > 0 {
            pieces.push(piece);
        }
        Ok(())
    }
}

struct Input {
    data_type: DataType,
    shape: Vec<i64>,
    /// Addresses and lengths of the caller's memory, which stays valid until the request is released.
    pieces: Vec<CallerPiece>,
    /// The data for instances under one host policy, by its name.
    by_policy: BTreeMap<String, Vec<CallerPiece>>,
}

impl Input {
    fn new(data_type: DataType, shape: Vec<i64>) -> Self {
        Self { data_type, shape, pieces: Vec::new(), by_policy: BTreeMap::new() }
    }
}

struct CallerPiece {
    address: AtomicPtr<c_void>,
    len: usize,
    memory: Memory,
    ipc_handle: Option<IpcHandle>,
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
        // SAFETY: the requester keeps this many bytes there until the release, which this holds off; null was refused
        // when they were set.
        unsafe { std::slice::from_raw_parts(self.address.load(Relaxed).cast::<u8>(), self.len) }
    }
}

impl CallerPiece {
    fn new(address: *const c_void, len: usize, memory: Memory, ipc_handle: Option<IpcHandle>) -> Self {
        Self { address: AtomicPtr::new(address.cast_mut()), len, memory, ipc_handle }
    }

    fn buffer(&self, release: &Arc<Release>, cuda: Option<&Arc<Cuda>>) -> Buffer {
        let Self { len, memory, ipc_handle, .. } = *self;
        let (address, device, release) = (self.address.load(Relaxed), memory.device, Arc::clone(release));
        let piece =
            || Bytes::from_owner(Piece { address: AtomicPtr::new(address), len, _release: release.clone() });
        match memory.kind {
            MemoryKind::Cpu => Buffer::host(piece()),
            MemoryKind::CpuPinned => Buffer::pinned(piece(), device),
            MemoryKind::Gpu => {
                let address = address.addr() as u64;
                // SAFETY: the requester keeps this many bytes there until the release, which the release holds off.
                // Inputs are only read.
                let owner = unsafe { ForeignMemory::new(cuda, device, address, len, release) };
                let owner = Arc::new(owner.with_ipc_handle(ipc_handle));
                Buffer::device(DeviceBuffer { address, len, owner }, device)
            }
        }
    }
}

exports! {
    fn TRITONSERVER_InferenceRequestAddInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dim_count: u64,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let data_type = data_type_from_c(datatype)?;
        let input = Input::new(data_type, shape.elements(dim_count)?);
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        if let Some(raw) = &tensors.raw {
            return Err(Error::invalid_arg(format!("input '{name}' cannot be combined with raw input '{raw}'")));
        }
        if tensors.inputs.contains_key(&*name) {
            return Err(Error::new(ErrorCode::InvalidArg, format!("duplicate input '{name}'")));
        }
        tensors.inputs.insert(name.into_owned(), input);
    }

    /// The model supplies the input's type and shape when the request is sent.
    fn TRITONSERVER_InferenceRequestAddRawInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?.into_owned());
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        if !tensors.inputs.is_empty() {
            return Err(Error::invalid_arg(format!("raw input '{name}' cannot be combined with other inputs")));
        }
        tensors.raw = Some(name.clone());
        tensors.inputs.insert(name, Input::new(DataType::Uint8, Vec::new()));
    }

    fn TRITONSERVER_InferenceRequestRemoveInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        tensors.input(&name)?;
        tensors.inputs.remove(&*name);
        tensors.raw = tensors.raw.take().filter(|raw| *raw != name);
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputs(inference_request: *mut TRITONSERVER_InferenceRequest) {
        let request = inference_request.get()?;
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        tensors.inputs.clear();
        tensors.raw = None;
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
        let piece = CallerPiece::new(base.address(), byte_size, memory, None);
        inference_request.get()?.fields().tensors.append(&name.read()?, None, piece)?;
    }

    /// Data without a policy is for all instances.
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
        let piece = CallerPiece::new(base.address(), byte_size, memory, None);
        let policy = host_policy_name.read_optional();
        inference_request.get()?.fields().tensors.append(&name.read()?, policy.as_deref(), piece)?;
    }

    fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) {
        let attributes = buffer_attributes.get()?;
        let (memory, byte_size) = attributes.place();
        let piece = CallerPiece::new(base.address(), byte_size, memory, attributes.ipc_handle());
        inference_request.get()?.fields().tensors.append(&name.read()?, None, piece)?;
    }

    /// Data for single host policies is added to the others.
    fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let request = inference_request.get()?;
        let mut fields = request.fields();
        let input = fields.tensors.input(&name.read()?)?;
        input.pieces.clear();
        input.by_policy.clear();
    }

    fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let mut fields = request.fields();
        let outputs = &mut fields.tensors.outputs;
        if outputs.iter().any(|known| *known == name) {
            return Err(Error::invalid_arg(format!("output '{name}' already exists in request")));
        }
        outputs.push(name.into_owned());
    }

    fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        request.fields().tensors.outputs.retain(|known| *known != name);
    }

    fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) {
        inference_request.get()?.fields().tensors.outputs.clear();
    }
}

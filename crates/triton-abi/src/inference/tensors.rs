//! The inputs of a request for an inference, whose bytes stay where who made the request has them, and the outputs it
//! wants. What a model takes is not known here, but for raw inputs, of which it is asked.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, Buffers, DataType, DeviceBuffer, Error, ErrorCode, IpcHandle, Memory, RequestedOutput, Result,
    Tensor,
};
use nereid_cuda::{Cuda, ForeignMemory};
use triton_sys::*;

use super::callbacks::Release;
use crate::boundary::exports;
use crate::names::{data_type_from_c, memory_from_c};

/// What was set.
#[derive(Default)]
pub(super) struct Tensors {
    inputs: BTreeMap<String, Input>,
    /// The one input whose type and shape follow from the model and from its size.
    raw: Option<String>,
    outputs: Vec<String>,
}

impl Tensors {
    /// The inputs as the server takes them. They hold off `release`.
    ///
    /// # Errors
    /// What `raw` says, which makes a tensor of contents alone.
    pub(super) fn inputs(
        &self,
        release: &Arc<Release>,
        cuda: Option<&Arc<Cuda>>,
        raw: impl Fn(Buffers) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let input = |(name, input): (&String, &Input)| {
            let buffers = input.buffers(release, cuda);
            if self.raw.as_ref() == Some(name) {
                return raw(buffers);
            }
            Ok(Tensor {
                name: name.clone(),
                data_type: input.data_type,
                shape: input.shape[..].into(),
                buffers,
            })
        };
        self.inputs.iter().map(input).collect()
    }

    /// The outputs that are wanted.
    pub(super) fn outputs(&self) -> Vec<RequestedOutput> {
        self.outputs.iter().map(RequestedOutput::new).collect()
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
        let input = Input { data_type, shape: shape.elements(dim_count)?, pieces: Vec::new() };
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        if let Some(raw) = &tensors.raw {
            return Err(Error::invalid_arg(format!("the input '{name}' does not go with the raw input '{raw}'")));
        }
        if tensors.inputs.contains_key(&*name) {
            return Err(Error::new(ErrorCode::InvalidArg, format!("the request has an input '{name}' already")));
        }
        tensors.inputs.insert(name.into_owned(), input);
    }

    /// What the input's type and shape are is asked of the model when the request is sent.
    fn TRITONSERVER_InferenceRequestAddRawInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?.into_owned());
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        if !tensors.inputs.is_empty() {
            return Err(Error::invalid_arg(format!("the raw input '{name}' goes with no other input")));
        }
        tensors.raw = Some(name.clone());
        tensors.inputs.insert(name, Input { data_type: DataType::Uint8, shape: Vec::new(), pieces: Vec::new() });
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
        inference_request.get()?.fields().tensors.append(&name.read()?, base.address(), (byte_size, memory), None)?;
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
        request.fields().tensors.append(&name, base.address(), (byte_size, memory), None)?;
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
        request.fields().tensors.append(&name.read()?, base.address(), (byte_size, memory), ipc_handle)?;
    }

    fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        inference_request.get()?.fields().tensors.input(&name.read()?)?.pieces.clear();
    }

    fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) {
        let (request, name) = (inference_request.get()?, name.read()?);
        let mut fields = request.fields();
        let tensors = &mut fields.tensors;
        if tensors.outputs.iter().all(|known| *known != name) {
            tensors.outputs.push(name.into_owned());
        }
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

//! A response that a backend makes, and its outputs.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, DataType, Error, ErrorCode, Memory, OutputBuffer, OutputSpec, ParameterValue, Parameters,
    Response, Result, Shape, Tensor,
};
use triton_sys::*;

use crate::attributes::{BufferAttributes, address};
use crate::boundary::{Out, exports};
use crate::factory::is_final;
use crate::handle::{Handle, LentHandle};
use crate::list::at;
use crate::names::{data_type_from_c, data_type_to_c, memory_from_c, memory_to_c};
use crate::reply::Reply;
use crate::text::c_string;

/// A response behind a C handle, until it is sent or deleted.
pub(crate) struct ResponseObject {
    reply: Arc<Reply>,
    outputs: Mutex<Vec<(Arc<OutputObject>, LentHandle<OutputObject>)>>,
    parameters: Mutex<Parameters>,
}

/// An output behind a C handle, until its response is sent or deleted.
pub(crate) struct OutputObject {
    reply: Arc<Reply>,
    name: CString,
    data_type: DataType,
    shape: Shape,
    /// With its length in bytes.
    buffer: Mutex<Option<(OutputBuffer, usize)>>,
    /// Attributes of the buffer, created on first use.
    attributes: OnceLock<LentHandle<BufferAttributes>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment or push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ResponseObject {
    fn give(reply: &Arc<Reply>) -> Result<Handle<Self>> {
        reply.begin_response()?;
        let reply = Arc::clone(reply);
        Handle::give(Arc::new(Self { reply, outputs: Mutex::default(), parameters: Mutex::default() }))
    }

    fn add_output(&self, name: &str, data_type: DataType, shape: Vec<i64>) -> Result<Handle<OutputObject>> {
        self.reply.check_output(name)?;
        let output = Arc::new(OutputObject {
            reply: Arc::clone(&self.reply),
            name: c_string(name),
            data_type,
            shape: shape.into_iter().collect(),
            buffer: Mutex::default(),
            attributes: OnceLock::new(),
        });
        let lent = LentHandle::new(Arc::clone(&output))?;
        let handle = lent.handle();
        lock(&self.outputs).push((output, lent));
        Ok(handle)
    }

    fn finish(&self) -> Result<Response> {
        let outputs = std::mem::take(&mut *lock(&self.outputs));
        let outputs = outputs.iter().map(|(output, _)| output.finish()).collect::<Result<_>>()?;
        Ok(Response { outputs, parameters: std::mem::take(&mut *lock(&self.parameters)) })
    }

    fn set_parameter(&self, name: &str, value: ParameterValue) {
        lock(&self.parameters).set(name.to_owned(), value);
    }
}

impl OutputObject {
    /// Allocates memory for the contents, once, and returns its address.
    fn allocate(&self, byte_size: u64, preferred: Memory) -> Result<(*mut c_void, Memory)> {
        let mut buffer = lock(&self.buffer);
        let name = self.name.to_string_lossy();
        if buffer.is_some() {
            let message = format!("output '{name}' has its memory already");
            return Err(Error::new(ErrorCode::AlreadyExists, message));
        }
        let byte_size = usize::try_from(byte_size)
            .map_err(|_| Error::invalid_arg(format!("output '{name}' cannot have {byte_size} bytes")))?;
        let (data_type, shape) = (self.data_type, &self.shape);
        // The reference places outputs even for backends that read them back.
        let is_read_back = false;
        let spec = OutputSpec { name: &name, data_type, shape, byte_size, preferred, is_read_back };
        let mut allocated = self.reply.allocate(&spec)?;
        let given = allocated.as_device();
        let (address, length) = match (&given, allocated.as_mut_slice()) {
            (Some(memory), _) => (address(memory)?.cast_mut(), memory.len()),
            (None, Some(contents)) => (contents.as_mut_ptr().cast(), contents.len()),
            (None, None) => {
                return Err(Error::internal(format!("the memory for output '{name}' has no address")));
            }
        };
        if length != byte_size {
            return Err(Error::internal(format!(
                "output '{name}' needs {byte_size} bytes, but {length} were allocated"
            )));
        }
        let memory = given.as_ref().map_or(Memory::HOST, Buffer::memory);
        *buffer = Some((allocated, byte_size));
        Ok((address, memory))
    }

    /// The attributes of the output's memory.
    fn attributes(&self) -> Result<&LentHandle<BufferAttributes>> {
        let buffer = lock(&self.buffer);
        let no_memory =
            || Error::invalid_arg(format!("output '{}' has no memory yet", self.name.to_string_lossy()));
        let (buffer, byte_size) = buffer.as_ref().ok_or_else(no_memory)?;
        if let Some(attributes) = self.attributes.get() {
            return Ok(attributes);
        }
        let attributes = match buffer.as_device() {
            Some(memory) => BufferAttributes::of(&memory),
            None => BufferAttributes::new(Memory::HOST, *byte_size),
        };
        let lent = LentHandle::new(attributes)?;
        Ok(self.attributes.get_or_init(|| lent))
    }

    fn finish(&self) -> Result<Tensor> {
        let buffer = lock(&self.buffer).take();
        let buffer = buffer.map_or_else(|| Ok(Buffer::host(Bytes::new())), |(buffer, _)| buffer.freeze())?;
        Ok(Tensor {
            name: self.name.to_string_lossy().into_owned(),
            data_type: self.data_type,
            shape: self.shape.clone(),
            buffers: [buffer].into_iter().collect(),
        })
    }

    fn describe(
        &self,
        datatype: &Out<TRITONSERVER_DataType>,
        shape: &Out<*const i64>,
        dim_count: &Out<u64>,
    ) -> Result<()> {
        datatype.set(data_type_to_c(self.data_type))?;
        shape.set(self.shape.as_ptr())?;
        dim_count.set(self.shape.len() as u64)
    }
}

exports! {
    fn TRITONBACKEND_ResponseNew(
        response: *mut *mut TRITONBACKEND_Response,
        request: *mut TRITONBACKEND_Request,
    ) {
        response.set(ptr::null_mut())?;
        response.set(ResponseObject::give(request.get()?.reply())?.as_c())?;
    }

    fn TRITONBACKEND_ResponseNewFromFactory(
        response: *mut *mut TRITONBACKEND_Response,
        factory: *mut TRITONBACKEND_ResponseFactory,
    ) {
        response.set(ptr::null_mut())?;
        response.set(ResponseObject::give(factory.get()?.reply())?.as_c())?;
    }

    fn TRITONBACKEND_ResponseDelete(response: *mut TRITONBACKEND_Response) {
        response.delete()?;
    }

    fn TRITONBACKEND_ResponseSetStringParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: *const c_char,
    ) {
        let value = value.read()?.into_owned();
        response.get()?.set_parameter(&name.read()?, ParameterValue::String(value.into()));
    }

    fn TRITONBACKEND_ResponseSetIntParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: i64,
    ) {
        response.get()?.set_parameter(&name.read()?, ParameterValue::Int(value));
    }

    fn TRITONBACKEND_ResponseSetBoolParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: bool,
    ) {
        response.get()?.set_parameter(&name.read()?, ParameterValue::Bool(value));
    }

    fn TRITONBACKEND_ResponseSetDoubleParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: f64,
    ) {
        response.get()?.set_parameter(&name.read()?, ParameterValue::Double(value));
    }

    fn TRITONBACKEND_ResponseOutput(
        response: *mut TRITONBACKEND_Response,
        output: *mut *mut TRITONBACKEND_Output,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        output.set(ptr::null_mut())?;
        let (response, name) = (response.get()?, name.read()?);
        let shape = shape.elements(dims_count.into())?;
        output.set(response.add_output(&name, data_type_from_c(datatype)?, shape)?.as_c())?;
    }

    fn TRITONBACKEND_ResponseSend(
        response: *mut TRITONBACKEND_Response,
        send_flags: u32,
        error: *mut TRITONSERVER_Error,
    ) {
        // Sending takes the response from the backend, even if it fails.
        let response = response.take()?;
        let last = is_final(send_flags)?;
        response.reply.check_open()?;
        // The backend keeps the error.
        let answer = match error.is_null() {
            true => response.finish(),
            false => Err(error.get().map_or_else(|wrong| wrong, |error| error.as_error())),
        };
        if let Err(error) = &answer {
            response.reply.note(error);
        }
        if last {
            response.reply.finish_with(answer);
        } else {
            response.reply.send(answer);
        }
    }

    fn TRITONBACKEND_OutputBuffer(
        output: *mut TRITONBACKEND_Output,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        buffer.set(ptr::null_mut())?;
        let preferred = memory_from_c(memory_type.get()?, memory_type_id.get()?)?;
        let (address, memory) = output.get()?.allocate(buffer_byte_size, preferred)?;
        memory_type.set(memory_to_c(memory))?;
        memory_type_id.set(memory.device)?;
        buffer.set(address)?;
    }

    fn TRITONBACKEND_OutputBufferAttributes(
        output: *mut TRITONBACKEND_Output,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let output = output.get()?;
        buffer_attributes.set(output.attributes()?.handle().as_c())?;
    }

    fn TRITONBACKEND_InferenceResponseOutputByName(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let (response, name) = (response.get()?, name.read()?);
        let outputs = lock(&response.outputs);
        let found = outputs.iter().find(|(output, _)| output.name.to_bytes() == name.as_bytes());
        let (output, _) =
            found.ok_or_else(|| Error::not_found(format!("the response has no output '{name}'")))?;
        output.describe(&datatype, &shape, &dim_count)?;
    }

    fn TRITONBACKEND_InferenceResponseOutput(
        response: *mut TRITONBACKEND_Response,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let response = response.get()?;
        let outputs = lock(&response.outputs);
        let (output, _) = at(&outputs, index, "outputs")?;
        name.set(output.name.as_ptr())?;
        output.describe(&datatype, &shape, &dim_count)?;
    }
}

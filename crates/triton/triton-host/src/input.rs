//! An input of a request as a backend sees it.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use nereid_backend_api::{Buffer, Buffers, Result, Tensor};
use triton_sys::*;

use crate::attributes::{BufferAttributes, address};
use crate::boundary::{Out, exports};
use crate::handle::LentHandle;
use crate::list::count;
use crate::names::{data_type_to_c, memory_to_c};
use crate::request::RequestData;
use crate::text::c_string;

/// An input behind a C handle. It keeps the request's tensors alive, not the request.
pub(crate) struct InputObject {
    data: Arc<RequestData>,
    index: usize,
    name: CString,
    /// Created on first use.
    attributes: OnceLock<Vec<LentHandle<BufferAttributes>>>,
}

impl InputObject {
    pub(crate) fn new(data: Arc<RequestData>, index: usize) -> Self {
        let name = c_string(&data.request.inputs[index].name);
        Self { data, index, name, attributes: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &CString {
        &self.name
    }

    fn tensor(&self) -> &Tensor {
        &self.data.request.inputs[self.index]
    }

    /// `None` past the last buffer.
    fn buffer(&self, index: u32) -> Option<&Buffer> {
        self.tensor().buffers.get(index as usize)
    }

    /// The contents for instances under a host policy; the common contents if the policy has none or is not named.
    fn contents(&self, policy: Option<&str>) -> &Buffers {
        let tensor = self.tensor();
        let own = policy.and_then(|policy| {
            let given = &self.data.request.policy_contents;
            given.iter().find(|contents| contents.input == tensor.name && contents.policy == policy)
        });
        own.map_or(&tensor.buffers, |contents| &contents.buffers)
    }

    fn attributes(&self, index: u32) -> Option<&LentHandle<BufferAttributes>> {
        let all =
            || self.tensor().buffers.iter().flat_map(|buffer| LentHandle::new(BufferAttributes::of(buffer)));
        self.attributes.get_or_init(|| all().collect()).get(index as usize)
    }
}

fn properties(
    (input, contents): (&InputObject, &Buffers),
    name: &Out<*const c_char>,
    datatype: &Out<TRITONSERVER_DataType>,
    shape: &Out<*const i64>,
    dims_count: &Out<u32>,
    byte_size: &Out<u64>,
    buffer_count: &Out<u32>,
) {
    let tensor = input.tensor();
    name.set_optional(input.name.as_ptr());
    datatype.set_optional(data_type_to_c(tensor.data_type));
    shape.set_optional(tensor.shape.as_ptr());
    dims_count.set_optional(count(&tensor.shape));
    byte_size.set_optional(contents.iter().map(Buffer::len).sum::<usize>() as u64);
    buffer_count.set_optional(count(contents));
}

fn contents(
    contents: &Buffers,
    index: u32,
    buffer: &Out<*const c_void>,
    byte_size: &Out<u64>,
    memory_type: &Out<TRITONSERVER_MemoryType>,
    memory_type_id: &Out<i64>,
) -> Result<()> {
    buffer.set(ptr::null())?;
    byte_size.set(0)?;
    // As in Triton, an index past the last buffer is not an error.
    let Some(contents) = contents.get(index as usize) else { return Ok(()) };
    memory_type.set(memory_to_c(contents.memory()))?;
    memory_type_id.set(contents.memory().device)?;
    byte_size.set(contents.len() as u64)?;
    buffer.set(address(contents)?)
}

exports! {
    fn TRITONBACKEND_InputProperties(
        input: *mut TRITONBACKEND_Input,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let input = input.get()?;
        properties((&input, input.contents(None)), &name, &datatype, &shape, &dims_count, &byte_size, &buffer_count);
    }

    fn TRITONBACKEND_InputPropertiesForHostPolicy(
        input: *mut TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let (input, policy) = (input.get()?, host_policy_name.read_optional());
        let contents = input.contents(policy.as_deref());
        properties((&input, contents), &name, &datatype, &shape, &dims_count, &byte_size, &buffer_count);
    }

    fn TRITONBACKEND_InputBuffer(
        input: *mut TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        buffer_byte_size: *mut u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let input = input.get()?;
        contents(input.contents(None), index, &buffer, &buffer_byte_size, &memory_type, &memory_type_id)?;
    }

    fn TRITONBACKEND_InputBufferForHostPolicy(
        input: *mut TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        index: u32,
        buffer: *mut *const c_void,
        buffer_byte_size: *mut u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let (input, policy) = (input.get()?, host_policy_name.read_optional());
        contents(input.contents(policy.as_deref()), index, &buffer, &buffer_byte_size, &memory_type, &memory_type_id)?;
    }

    fn TRITONBACKEND_InputBufferAttributes(
        input: *mut TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        buffer.set(ptr::null())?;
        buffer_attributes.set(ptr::null_mut())?;
        let input = input.get()?;
        if let (Some(contents), Some(attributes)) = (input.buffer(index), input.attributes(index)) {
            buffer.set(address(contents)?)?;
            buffer_attributes.set(attributes.handle().as_c())?;
        }
    }
}

//! A response to an inner request.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Answer, Answers, Buffer, DataType, Error, Memory, OutputLabels, Result, Shape, Tensor,
};
use triton_sys::*;

use crate::allocator::Placement;
use crate::attributes::address;
use crate::boundary::exports;
use crate::list::{at, count};
use crate::names::{data_type_to_c, memory_to_c};
use crate::parameter::{self, Parameter};
use crate::text::c_string;

/// A response, owned by the maker of the request. It owns its outputs' memory until it is deleted.
pub(crate) struct InferenceResponse {
    model_name: CString,
    model_version: i64,
    id: CString,
    outputs: Vec<Output>,
    parameters: Vec<Parameter>,
    error: Option<Error>,
    /// The model's labels, if it has any.
    labels: Option<Arc<OutputLabels>>,
    /// Labels that C has read, by the index of their output and class. Their addresses stay valid.
    read_labels: Mutex<BTreeMap<(u32, usize), CString>>,
}

struct Output {
    name: CString,
    data_type: DataType,
    shape: Shape,
    contents: Buffer,
    /// User data that the allocator attached to the memory.
    user_data: AtomicPtr<c_void>,
}

impl Output {
    fn new(tensor: Tensor, placement: &Placement) -> Result<Self> {
        let mut buffers = tensor.buffers.into_iter();
        let (Some(contents), None) = (buffers.next(), buffers.next()) else {
            return Err(Error::internal(format!("output '{}' is not contiguous", tensor.name)));
        };
        let user_data = AtomicPtr::new(placement.take_user_data(address(&contents)?));
        let name = c_string(&tensor.name);
        Ok(Self { name, data_type: tensor.data_type, shape: tensor.shape, contents, user_data })
    }
}

impl InferenceResponse {
    /// An answer of the server.
    pub(crate) fn new(answer: Answer, stream: &dyn Answers, placement: &Placement) -> Result<Self> {
        let outputs = |tensors: Vec<Tensor>| -> Result<Vec<_>> {
            tensors.into_iter().map(|tensor| Output::new(tensor, placement)).collect()
        };
        let contents = answer
            .and_then(|response| Ok((outputs(response.outputs)?, parameter::all(&response.parameters))));
        let (outputs, parameters, error) = match contents {
            Ok((outputs, parameters)) => (outputs, parameters, None),
            Err(error) => (Vec::new(), Vec::new(), Some(error)),
        };
        Ok(Self {
            model_name: c_string(stream.model_name()),
            model_version: i64::try_from(stream.model_version()).unwrap_or(i64::MAX),
            id: c_string(stream.request_id()),
            outputs,
            parameters,
            error,
            labels: stream.labels(),
            read_labels: Mutex::default(),
        })
    }

    /// The label of a class of an output; null if it has none.
    fn label(&self, index: u32, class: usize) -> Result<*const c_char> {
        let output = at(&self.outputs, index, "outputs")?;
        let name = output.name.to_string_lossy();
        let label = self.labels.as_ref().and_then(|labels| labels.get(&*name)?.get(class));
        let Some(label) = label.filter(|label| !label.is_empty()) else { return Ok(ptr::null()) };
        // Each change is one insertion.
        let mut read = self.read_labels.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(read.entry((index, class)).or_insert_with(|| c_string(label)).as_ptr())
    }
}

exports! {
    fn TRITONSERVER_InferenceResponseDelete(inference_response: *mut TRITONSERVER_InferenceResponse) {
        inference_response.delete()?;
    }

    fn TRITONSERVER_InferenceResponseModel(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        model_name: *mut *const c_char,
        model_version: *mut i64,
    ) {
        let response = inference_response.get()?;
        model_name.set(response.model_name.as_ptr())?;
        model_version.set(response.model_version)?;
    }

    fn TRITONSERVER_InferenceResponseId(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        request_id: *mut *const c_char,
    ) {
        request_id.set(inference_response.get()?.id.as_ptr())?;
    }

    fn TRITONSERVER_InferenceResponseParameterCount(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) {
        count.set(self::count(&inference_response.get()?.parameters))?;
    }

    fn TRITONSERVER_InferenceResponseParameter(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        r#type: *mut TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) {
        let response = inference_response.get()?;
        let parameter = at(&response.parameters, index, "parameters")?;
        name.set(parameter.name().as_ptr())?;
        r#type.set(parameter.kind())?;
        vvalue.set(parameter.address())?;
    }

    fn TRITONSERVER_InferenceResponseOutputCount(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) {
        count.set(self::count(&inference_response.get()?.outputs))?;
    }

    fn TRITONSERVER_InferenceResponseOutput(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
        base: *mut *const c_void,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
        userp: *mut *mut c_void,
    ) {
        let response = inference_response.get()?;
        let output = at(&response.outputs, index, "outputs")?;
        let memory: Memory = output.contents.memory();
        name.set(output.name.as_ptr())?;
        datatype.set(data_type_to_c(output.data_type))?;
        shape.set(output.shape.as_ptr())?;
        dim_count.set(output.shape.len() as u64)?;
        base.set(address(&output.contents)?)?;
        byte_size.set(output.contents.len())?;
        memory_type.set(memory_to_c(memory))?;
        memory_type_id.set(memory.device)?;
        userp.set(output.user_data.load(Relaxed))?;
    }

    /// The label stays valid until the response is deleted.
    fn TRITONSERVER_InferenceResponseOutputClassificationLabel(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        class_index: usize,
        label: *mut *const c_char,
    ) {
        label.set(inference_response.get()?.label(index, class_index)?)?;
    }
}

/// Each call returns a new error, or null for success.
mod failure {
    use triton_sys::*;

    use crate::boundary::values;

    values! {
        fn TRITONSERVER_InferenceResponseError(
            inference_response: *mut TRITONSERVER_InferenceResponse,
        ) -> *mut TRITONSERVER_Error = std::ptr::null_mut(); {
            match inference_response.get() {
                Ok(response) => response.error.as_ref().map_or(std::ptr::null_mut(), crate::error::to_c_unclaimed),
                Err(error) => crate::error::to_c(&error),
            }
        }
    }
}

pub(crate) use failure::VALUES;

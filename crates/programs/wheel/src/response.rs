//! Responses, whose outputs stay where the server wrote them.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use pyo3::types::PyDict;
use triton_sys::*;

use crate::errors::{check, to_exception};
use crate::tensor::{OutputMemory, Tensor};
use crate::text::text_of_c;

/// Alignment of outputs, as vectorised code prefers.
const ALIGNMENT: usize = 64;

/// A response of the C interface. Its last owner deletes it, together with its outputs.
pub struct RawResponse(AtomicPtr<TRITONSERVER_InferenceResponse>);

impl RawResponse {
    /// Takes ownership of a response.
    pub fn new(response: *mut TRITONSERVER_InferenceResponse) -> Self {
        Self(AtomicPtr::new(response))
    }

    fn get(&self) -> *mut TRITONSERVER_InferenceResponse {
        self.0.load(Relaxed)
    }
}

impl Drop for RawResponse {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the response.
        drop(check(unsafe { TRITONSERVER_InferenceResponseDelete(self.get()) }));
    }
}

/// The allocator of outputs, shared by all requests.
///
/// # Errors
/// The allocator cannot be made.
pub fn allocator() -> PyResult<*mut TRITONSERVER_ResponseAllocator> {
    static ALLOCATOR: AtomicPtr<TRITONSERVER_ResponseAllocator> = AtomicPtr::new(ptr::null_mut());
    let known = ALLOCATOR.load(Relaxed);
    if !known.is_null() {
        return Ok(known);
    }
    let mut made = ptr::null_mut();
    // SAFETY: the functions follow the rules of allocators.
    check(unsafe {
        TRITONSERVER_ResponseAllocatorNew(&raw mut made, Some(place), Some(release_output), None)
    })?;
    // Another thread may have created one at the same time. Both work, and neither is ever deleted.
    ALLOCATOR.store(made, Relaxed);
    Ok(made)
}

fn layout(byte_size: usize) -> Option<Layout> {
    Layout::from_size_align(byte_size, ALIGNMENT).ok().filter(|layout| layout.size() > 0)
}

/// Allocates memory for an output.
///
/// # Safety
/// The last four arguments are valid pointers for results.
unsafe extern "C" fn place(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *const c_char,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
    _: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    actual_memory_type: *mut TRITONSERVER_MemoryType,
    actual_memory_type_id: *mut i64,
) -> *mut TRITONSERVER_Error {
    // SAFETY: the layout is not empty; the caller guarantees the pointers.
    unsafe {
        let memory = layout(byte_size).map_or(ptr::null_mut(), |layout| alloc(layout));
        if memory.is_null() && byte_size > 0 {
            let message = c"no memory for an output";
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, message.as_ptr());
        }
        *buffer = memory.cast();
        *buffer_userp = ptr::null_mut();
        *actual_memory_type = TRITONSERVER_MEMORY_CPU;
        *actual_memory_type_id = 0;
    }
    ptr::null_mut()
}

/// Frees memory that [`place`] allocated.
///
/// # Safety
/// `buffer` comes from [`place`], with the same size, and is not used after this.
unsafe extern "C" fn release_output(
    _: *mut TRITONSERVER_ResponseAllocator,
    buffer: *mut c_void,
    _: *mut c_void,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
) -> *mut TRITONSERVER_Error {
    if let Some(layout) = layout(byte_size).filter(|_| !buffer.is_null()) {
        // SAFETY: guaranteed by the caller.
        unsafe { dealloc(buffer.cast(), layout) }
    }
    ptr::null_mut()
}

/// A model's response.
#[pyclass(module = "nereid", frozen)]
pub struct Response {
    /// The name of the model that answered.
    #[pyo3(get)]
    model: String,
    /// The version of that model.
    #[pyo3(get)]
    version: i64,
    /// The request's id.
    #[pyo3(get)]
    id: String,
    /// Parameters by name.
    #[pyo3(get)]
    parameters: Py<PyDict>,
    /// Tensors by name, in the model's order.
    #[pyo3(get)]
    outputs: Py<PyDict>,
}

impl Response {
    /// Reads a response.
    ///
    /// # Errors
    /// The error that the response carries.
    pub fn new(python: Python<'_>, raw: RawResponse) -> PyResult<Self> {
        let response = raw.get();
        // SAFETY: the response is alive, and so are its error, its names and its values.
        unsafe {
            let error = TRITONSERVER_InferenceResponseError(response);
            if !error.is_null() {
                return Err(to_exception(error));
            }
            let (mut name, mut version, mut id) = (ptr::null(), 0, ptr::null());
            check(TRITONSERVER_InferenceResponseModel(response, &raw mut name, &raw mut version))?;
            check(TRITONSERVER_InferenceResponseId(response, &raw mut id))?;
            let (model, id) = (text_of_c(name), text_of_c(id));
            let parameters = parameters(python, response)?;
            let outputs = outputs(python, raw)?;
            Ok(Self { model, version, id, parameters, outputs })
        }
    }
}

/// # Safety
/// The response is alive.
unsafe fn parameters(
    python: Python<'_>,
    response: *mut TRITONSERVER_InferenceResponse,
) -> PyResult<Py<PyDict>> {
    let (found, mut count) = (PyDict::new(python), 0);
    // SAFETY: the response is alive, and so are the parameters' names and values, whose types the calls report.
    unsafe {
        check(TRITONSERVER_InferenceResponseParameterCount(response, &raw mut count))?;
        for index in 0..count {
            let (mut name, mut kind, mut value) = (ptr::null(), TRITONSERVER_PARAMETER_STRING, ptr::null());
            let (name_at, kind_at, value_at) = (&raw mut name, &raw mut kind, &raw mut value);
            check(TRITONSERVER_InferenceResponseParameter(response, index, name_at, kind_at, value_at))?;
            let name = text_of_c(name);
            match kind {
                TRITONSERVER_PARAMETER_INT => found.set_item(name, value.cast::<i64>().read_unaligned())?,
                TRITONSERVER_PARAMETER_BOOL => found.set_item(name, value.cast::<bool>().read())?,
                TRITONSERVER_PARAMETER_DOUBLE => {
                    found.set_item(name, value.cast::<f64>().read_unaligned())?
                }
                _ => found.set_item(name, text_of_c(value.cast()))?,
            }
        }
    }
    Ok(found.unbind())
}

/// # Safety
/// The response is alive.
unsafe fn outputs(python: Python<'_>, raw: RawResponse) -> PyResult<Py<PyDict>> {
    let (raw, found, mut count) = (Arc::new(raw), PyDict::new(python), 0);
    // SAFETY: the response is alive, and so are the outputs, their names and shapes.
    unsafe {
        check(TRITONSERVER_InferenceResponseOutputCount(raw.get(), &raw mut count))?;
        for index in 0..count {
            let (mut name, mut data_type) = (ptr::null(), TRITONSERVER_TYPE_INVALID);
            let (mut shape, mut dimensions) = (ptr::null(), 0);
            let (mut base, mut length) = (ptr::null(), 0);
            let (mut memory, mut memory_id, mut userp) = (TRITONSERVER_MEMORY_CPU, 0, ptr::null_mut());
            check(TRITONSERVER_InferenceResponseOutput(
                raw.get(),
                index,
                &raw mut name,
                &raw mut data_type,
                &raw mut shape,
                &raw mut dimensions,
                &raw mut base,
                &raw mut length,
                &raw mut memory,
                &raw mut memory_id,
                &raw mut userp,
            ))?;
            let name = text_of_c(name);
            let shape = match dimensions {
                0 => Vec::new(),
                count => std::slice::from_raw_parts(shape, count as usize).to_vec(),
            };
            let memory = OutputMemory::new(Arc::clone(&raw), base.cast_mut().cast(), length);
            let number = u8::try_from(data_type.0).unwrap_or(0);
            let tensor = Tensor::of_output(python, number, shape, memory)?
                .ok_or_else(|| PyValueError::new_err(format!("output '{name}' does not fit its shape")))?;
            found.set_item(name, tensor)?;
        }
    }
    Ok(found.unbind())
}

#[pymethods]
impl Response {
    /// An output by name.
    fn __getitem__<'py>(&self, python: Python<'py>, name: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.outputs.bind(python).as_any().get_item(name)
    }

    fn __repr__(&self, python: Python<'_>) -> PyResult<String> {
        let outputs = self.outputs.bind(python).repr()?;
        Ok(format!("Response(model='{}', version={}, outputs={outputs})", self.model, self.version))
    }
}

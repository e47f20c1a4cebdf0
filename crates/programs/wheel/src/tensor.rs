//! Tensors: elements in an array of the program, in another library's memory, or in a response.

use std::slice;
use std::sync::Arc;

use nereid_python_arrays::data_type::{element_size, numpy_number};
use nereid_python_arrays::dlpack::{self, Device, ImportedTensor, ManagedTensor, Refusal};
use nereid_python_arrays::numpy::UNICODE;
use nereid_python_arrays::{Array, DataType, Numpy, byte_length, elements};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::response::RawResponse;

/// An input or output of a model.
#[pyclass(module = "nereid", frozen)]
pub struct Tensor {
    data_type: DataType,
    shape: Vec<i64>,
    contents: Contents,
    array: PyOnceLock<Py<PyAny>>,
}

/// The elements, contiguous.
enum Contents {
    /// In `array`.
    Array,
    /// Encoded, in this object.
    Wire(Box<[u8]>),
    /// In memory that this object keeps alive.
    Memory(Py<Memory>),
}

/// Memory that arrays view. They keep this object alive.
#[pyclass(module = "nereid.nereid_native", frozen)]
pub struct Memory(Kind);

enum Kind {
    Output(OutputMemory),
    Managed(ManagedTensor, usize),
}

/// An output's elements, in its response.
pub struct OutputMemory {
    _response: Arc<RawResponse>,
    data: *mut u8,
    length: usize,
}

// SAFETY: the response owns the memory, which any thread may use; only Python's threads write to it, as to any array.
unsafe impl Send for OutputMemory {}
// SAFETY: as above.
unsafe impl Sync for OutputMemory {}

impl OutputMemory {
    /// # Safety
    /// While the response lives, `data` points to this many bytes, and no other code writes to them.
    pub unsafe fn new(response: Arc<RawResponse>, data: *mut u8, length: usize) -> Self {
        Self { _response: response, data, length }
    }
}

impl Memory {
    fn elements(&self) -> (*mut u8, usize) {
        match &self.0 {
            Kind::Output(output) => (output.data, output.length),
            Kind::Managed(managed, length) => (managed.data(), *length),
        }
    }
}

impl Tensor {
    /// An output, given Triton's number of its type; `None` if its shape does not match its length.
    ///
    /// # Errors
    /// Python is out of memory.
    pub fn of_output(
        python: Python<'_>,
        number: u8,
        shape: Vec<i64>,
        memory: OutputMemory,
    ) -> PyResult<Option<Self>> {
        let Some(data_type) = DataType::from_number(number) else { return Ok(None) };
        let fits = |length| element_size(data_type) == 0 || length == memory.length;
        if !byte_length(&shape, data_type).is_some_and(fits) {
            return Ok(None);
        }
        let contents = Contents::Memory(Py::new(python, Memory(Kind::Output(memory)))?);
        Ok(Some(Self { data_type, shape, contents, array: PyOnceLock::new() }))
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The address of the elements, and their length in bytes. They stay in place as long as the tensor, unless the
    /// program changes the array's shape.
    ///
    /// # Errors
    /// The program changed the shape of the array.
    pub fn elements(&self, python: Python<'_>) -> PyResult<(*mut u8, usize)> {
        match &self.contents {
            Contents::Wire(bytes) => Ok((bytes.as_ptr().cast_mut(), bytes.len())),
            Contents::Memory(memory) => Ok(memory.get().elements()),
            Contents::Array => {
                let array = self.array.get(python).map(|array| Array::of(array.bind(python)));
                let elements = array
                    .transpose()?
                    .flatten()
                    .and_then(|array| array.elements(&self.shape, self.data_type));
                elements.ok_or_else(|| PyValueError::new_err("the shape of a tensor's array was changed"))
            }
        }
    }

    /// A tensor over an array. Copies it only if its elements are not contiguous in native byte order, or are strings
    /// or objects.
    fn of_array(array: &Bound<'_, PyAny>, data_type: Option<DataType>) -> PyResult<Self> {
        let python = array.py();
        let own = Array::of(array)?.ok_or_else(|| PyTypeError::new_err("expected an array of numpy"))?;
        let found = match own.data_type()? {
            Some(found) => found,
            None if own.number() == UNICODE => DataType::Bytes,
            None => {
                let dtype = array.getattr("dtype")?.str()?.to_string();
                let what = format!("unsupported element type: numpy's '{dtype}'");
                return Err(PyTypeError::new_err(what));
            }
        };
        let is_bits = data_type == Some(DataType::Bf16) && found == DataType::Uint16;
        let data_type = match data_type {
            Some(wanted) if wanted != found && !is_bits => {
                let (wanted, found) = (wanted.protocol_name(), found.protocol_name());
                let what = format!("the array has elements of type {found}, not {wanted}");
                return Err(PyTypeError::new_err(what));
            }
            Some(wanted) => wanted,
            None => found,
        };
        let (shape, kept) = (own.shape().to_vec(), PyOnceLock::new());
        let contents = if data_type == DataType::Bytes {
            Contents::Wire(own.encode()?)
        } else {
            let _ = kept.set(python, own.to_plain()?.object().clone().unbind());
            Contents::Array
        };
        Ok(Self { data_type, shape, contents, array: kept })
    }

    /// A tensor over another library's tensor.
    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let python = object.py();
        let imported = dlpack::import(object, Device::check_host).map_err(|refusal| match refusal {
            Refusal::Raised(error) => error,
            Refusal::Tensor(reason) => PyBufferError::new_err(reason),
        })?;
        let ImportedTensor { managed, data_type, shape, strides, .. } = imported;
        let (data, length) = (managed.data(), byte_length(&shape, data_type).unwrap_or(0));
        let memory = Py::new(python, Memory(Kind::Managed(managed, length)))?;
        let Some(strides) = strides else {
            let contents = Contents::Memory(memory);
            return Ok(Self { data_type, shape, contents, array: PyOnceLock::new() });
        };
        if numpy_number(data_type).is_none() {
            let what = format!("elements of type {} must be contiguous", data_type.protocol_name());
            return Err(PyBufferError::new_err(what));
        }
        let owner = memory.into_bound(python).into_any();
        // SAFETY: the other library vouches for its tensor's shape and strides, and keeps it until the owner releases
        // it.
        let view = unsafe { Numpy::get(python)?.view(&shape, Some(&strides), data_type, data, owner)? };
        Self::of_array(&view, None)
    }

    fn make_array(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        let numpy = Numpy::get(python)?;
        if self.data_type == DataType::Bytes {
            let (data, length) = self.elements(python)?;
            // SAFETY: the elements stay in place until this returns.
            let encoded = unsafe { bytes(data, length) };
            return elements::decode(python, numpy, &self.shape, encoded).map(Bound::unbind);
        }
        let Contents::Memory(memory) = &self.contents else {
            return Err(PyValueError::new_err("the tensor has no array"));
        };
        let (data, _) = memory.get().elements();
        let is_bfloat16 = self.data_type == DataType::Bf16;
        let shown = if is_bfloat16 { DataType::Uint16 } else { self.data_type };
        let owner = memory.bind(python).as_any().clone();
        // numpy refuses an address for an empty array.
        let array = if self.shape.contains(&0) {
            numpy.empty(python, &self.shape, shown)?
        } else {
            // SAFETY: the memory has the length of this shape and type, and its owner keeps it alive.
            unsafe { numpy.view(&self.shape, None, shown, data, owner)? }
        };
        if !is_bfloat16 {
            return Ok(array.unbind());
        }
        let types = python.import("ml_dtypes").map_err(|_| {
            PyTypeError::new_err("numpy supports BF16 only with the package ml_dtypes; DLPack always does")
        })?;
        array.call_method1("view", (types.getattr("bfloat16")?,)).map(Bound::unbind)
    }
}

/// # Safety
/// `data` points to this many bytes for as long as the result is used.
unsafe fn bytes<'a>(data: *const u8, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(data, length) }
}

fn data_type_of(name: &str) -> PyResult<DataType> {
    let known = DataType::from_protocol_name(name);
    known.ok_or_else(|| PyValueError::new_err(format!("unknown data type '{name}'")))
}

#[pymethods]
impl Tensor {
    /// A tensor from an array, from a value that numpy converts to an array, or from an object with `__dlpack__`.
    #[new]
    #[pyo3(signature = (value, data_type = None))]
    fn new(value: &Bound<'_, PyAny>, data_type: Option<&str>) -> PyResult<Self> {
        let python = value.py();
        let data_type = data_type.map(data_type_of).transpose()?;
        if Array::of(value)?.is_some() {
            return Self::of_array(value, data_type);
        }
        if value.hasattr("__dlpack__")? {
            let tensor = Self::of_dlpack(value)?;
            return match data_type {
                Some(wanted) if wanted != tensor.data_type => {
                    let (wanted, found) = (wanted.protocol_name(), tensor.data_type.protocol_name());
                    let what = format!("the tensor has elements of type {found}, not {wanted}");
                    Err(PyTypeError::new_err(what))
                }
                _ => Ok(tensor),
            };
        }
        // numpy chooses the type itself for types that it cannot name.
        let arguments = PyDict::new(python);
        let dtype = match data_type {
            None | Some(DataType::Bf16) => None,
            Some(DataType::Bool) => Some("bool".to_owned()),
            Some(DataType::Bytes) => Some("object".to_owned()),
            Some(data_type) => Some(data_type.protocol_name().to_lowercase().replace("fp", "float")),
        };
        arguments.set_item("dtype", dtype)?;
        let array = python.import("numpy")?.call_method("asarray", (value,), Some(&arguments))?;
        Self::of_array(&array, data_type)
    }

    /// A tensor from another library, or from a DLPack capsule. Contiguous elements are not copied.
    #[staticmethod]
    fn from_dlpack(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of_dlpack(tensor)
    }

    /// The name of its element type, such as `FP32`.
    #[getter(data_type)]
    fn py_data_type(&self) -> &'static str {
        self.data_type.protocol_name()
    }

    /// The dimensions.
    #[getter(shape)]
    fn py_shape<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(python, &self.shape)
    }

    /// The size of its elements in bytes.
    #[getter]
    fn nbytes(&self, python: Python<'_>) -> PyResult<usize> {
        Ok(self.elements(python)?.1)
    }

    /// The elements as an array: the same one each time and, except for BYTES, a view.
    fn numpy(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        self.array.get_or_try_init(python, || self.make_array(python)).map(|array| array.clone_ref(python))
    }

    /// A copy of its elements, encoded: each element of BYTES after its length.
    fn tobytes<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (data, length) = self.elements(python)?;
        // SAFETY: the elements stay in place until this returns.
        let elements = unsafe { bytes(data, length) };
        Ok(PyBytes::new(python, elements))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        python: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.numpy(python)?.into_bound(python);
        match (dtype, copy) {
            (Some(dtype), _) => {
                let arguments = PyDict::new(python);
                arguments.set_item("copy", copy.unwrap_or(false))?;
                array.call_method("astype", (dtype,), Some(&arguments))
            }
            (None, Some(true)) => array.call_method0("copy"),
            (None, _) => Ok(array),
        }
    }

    #[pyo3(signature = (**_named))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        _named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let data = match this.data_type {
            DataType::Bytes => std::ptr::null_mut(),
            _ => this.elements(slf.py())?.0,
        };
        let (owner, shape) = (slf.clone().into_any(), this.shape.clone());
        // SAFETY: the elements stay in place as long as their tensor.
        let capsule = unsafe { dlpack::export(owner, this.data_type, shape, data, Device::CPU)? };
        capsule.ok_or_else(|| PyBufferError::new_err("DLPack has no type BYTES: use numpy()"))
    }

    #[allow(clippy::unused_self, reason = "a method of DLPack's protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        (Device::CPU.kind, Device::CPU.number)
    }

    fn __repr__(&self) -> String {
        format!("Tensor({}, {:?})", self.data_type.protocol_name(), self.shape)
    }
}

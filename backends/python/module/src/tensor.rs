//! `Tensor`: a name, and elements that are an array of the model's, memory that the server shares, or another library's.

use nereid_python_arrays::data_type::DLPACK_CPU;
use nereid_python_arrays::dlpack::{self, Imported, Managed, Refusal};
use nereid_python_arrays::numpy::OBJECT;
use nereid_python_arrays::{Array, DataType, Numpy, byte_length, elements};
use nereid_worker_protocol::tensor as wire;
use nereid_worker_protocol::{Message, Region};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::constants::exception;

/// A tensor, as models see it.
#[pyclass(module = "c_python_backend_utils", frozen, subclass)]
pub struct Tensor {
    name: String,
    data_type: DataType,
    shape: Vec<i64>,
    contents: Contents,
    array: PyOnceLock<Py<PyAny>>,
}

/// Where the elements are.
enum Contents {
    /// In `array`.
    Array,
    /// Here, as they travel.
    Wire(Box<[u8]>),
    /// In memory that this object keeps. They are contiguous.
    Memory(Py<Memory>),
}

/// Memory that arrays view. They hold this object.
#[pyclass(module = "c_python_backend_utils", name = "SharedMemory", frozen)]
pub struct Memory(Kind);

enum Kind {
    Region(Region),
    Managed(Managed),
}

impl Memory {
    /// Memory that another library shares.
    pub fn managed(python: Python<'_>, managed: Managed) -> PyResult<Py<Self>> {
        Py::new(python, Self(Kind::Managed(managed)))
    }

    fn data(&self) -> *mut u8 {
        match &self.0 {
            Kind::Region(region) => region.as_ptr(),
            Kind::Managed(managed) => managed.data(),
        }
    }
}

impl Tensor {
    /// A tensor that arrived.
    pub fn arrived(python: Python<'_>, tensor: wire::Tensor<'_>) -> PyResult<Self> {
        let wrong = |what: &str| PyValueError::new_err(format!("tensor '{}': {what}", tensor.name));
        let data_type = DataType::from_number(tensor.data_type).ok_or_else(|| wrong("unknown data type"))?;
        let length = byte_length(&tensor.shape, data_type).ok_or_else(|| wrong("impossible shape"))?;
        if data_type.size() > 0 && length != tensor.contents.as_ref().len() {
            return Err(wrong("contents do not fit its shape"));
        }
        let array = PyOnceLock::new();
        let contents = match tensor.contents {
            wire::Contents::Region(region) => {
                Contents::Memory(Py::new(python, Memory(Kind::Region(region)))?)
            }
            wire::Contents::Inline(bytes) if data_type.size() > 0 && data_type.numpy().is_some() => {
                let copy = Numpy::get(python)?.empty(python, &tensor.shape, data_type)?;
                if let Some(target) = Array::of(&copy)? {
                    // SAFETY: the array is new, as long as the contents, and nobody else has it yet.
                    unsafe { target.data().copy_from_nonoverlapping(bytes.as_ptr(), length) };
                }
                let _ = array.set(python, copy.unbind());
                Contents::Array
            }
            wire::Contents::Inline(bytes) => Contents::Wire(bytes.into()),
        };
        Ok(Self { name: tensor.name.to_owned(), data_type, shape: tensor.shape, contents, array })
    }

    /// A tensor in memory of another library.
    pub fn borrowed(name: String, data_type: DataType, shape: Vec<i64>, memory: Py<Memory>) -> Self {
        Self { name, data_type, shape, contents: Contents::Memory(memory), array: PyOnceLock::new() }
    }

    /// A tensor of a model's array.
    pub fn of_array(python: Python<'_>, name: String, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Some(view) = Array::of(array)? else {
            return Err(PyTypeError::new_err(format!(
                "Tensor() takes a str and a numpy.ndarray, not '{}' and '{}'",
                "str",
                array.get_type().name()?
            )));
        };
        let data_type = DataType::from_numpy(view.number());
        let data_type = match data_type {
            Some(data_type) => data_type,
            None if is_bfloat16(array)? => DataType::Bf16,
            None => return Err(exception("NumPy dtype is not supported.")),
        };
        let shape = view.shape().to_vec();
        let kept = PyOnceLock::new();
        let contents = if data_type == DataType::Bytes {
            let objects = if view.number() == OBJECT && view.is_plain() {
                view
            } else {
                let changed = array.call_method1("astype", ("O", "C"))?;
                Array::of(&changed)?.ok_or_else(|| exception("NumPy dtype is not supported."))?
            };
            let _ = kept.set(python, array.clone().unbind());
            Contents::Wire(elements::encode(&objects)?.into())
        } else {
            let plain = if view.is_plain() {
                array.clone()
            } else {
                let own_order = array.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
                array.call_method1("astype", (own_order, "C"))?
            };
            let _ = kept.set(python, plain.unbind());
            Contents::Array
        };
        Ok(Self { name, data_type, shape, contents, array: kept })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Where its elements are, and their length in bytes. They stay there as long as the tensor is, and nobody changes the
    /// array.
    pub fn elements(&self, python: Python<'_>) -> PyResult<(*mut u8, usize)> {
        match &self.contents {
            Contents::Wire(bytes) => Ok((bytes.as_ptr().cast_mut(), bytes.len())),
            Contents::Memory(memory) => {
                let memory = memory.get();
                let length = match &memory.0 {
                    Kind::Region(region) => region.len(),
                    Kind::Managed(_) => byte_length(&self.shape, self.data_type).unwrap_or(0),
                };
                Ok((memory.data(), length))
            }
            Contents::Array => {
                let array = self.array.get(python).map(|array| Array::of(array.bind(python)));
                let array =
                    array.transpose()?.flatten().ok_or_else(|| exception("the tensor has no array"))?;
                if array.shape() != self.shape || !array.is_plain() {
                    let what = "the shape of its array was changed";
                    return Err(exception(format!("tensor '{}': {what}", self.name)));
                }
                Ok((array.data(), array.count() * self.data_type.size()))
            }
        }
    }

    /// Appends it to a message.
    pub fn write(&self, python: Python<'_>, message: &mut Message<'_>) -> PyResult<()> {
        let (data, length) = self.elements(python)?;
        let fill = |target: &mut [u8]| {
            // SAFETY: the elements are as long as the target, which nobody else can access.
            unsafe { target.as_mut_ptr().copy_from_nonoverlapping(data, length) };
        };
        let written = message.tensor(&self.name, self.data_type as u8, &self.shape, length, fill);
        written.map_err(|error| {
            exception(format!("tensor '{}': no shared memory for {length} bytes: {error}", self.name))
        })
    }

    /// Its elements as an array, which is the same each time.
    pub fn array<'py>(&self, python: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        Ok(self.array.get_or_try_init(python, || self.make_array(python))?.bind(python))
    }

    fn make_array(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        let numpy = Numpy::get(python)?;
        if self.data_type == DataType::Bytes {
            let (data, length) = self.elements(python)?;
            // SAFETY: the elements stay there, because this holds them.
            let bytes = unsafe { std::slice::from_raw_parts(data, length) };
            return elements::decode(python, numpy, &self.shape, bytes).map(Bound::unbind);
        }
        if self.data_type.numpy().is_none() {
            return Err(exception(format!(
                "tensor '{}': numpy has no type {}, use DLPack",
                self.name,
                self.data_type.name()
            )));
        }
        let Contents::Memory(memory) = &self.contents else {
            return Err(exception("the tensor has no array"));
        };
        let data = memory.get().data();
        let owner = memory.bind(python).as_any().clone();
        // SAFETY: the memory is as long as shape and type say, which was checked when it arrived, and stays with its owner.
        unsafe { numpy.view(&self.shape, None, self.data_type, data, owner).map(Bound::unbind) }
    }
}

/// A tensor of another library: a capsule, or an object that makes one.
fn import(python: Python<'_>, name: String, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let imported = dlpack::import(&name, object).map_err(|refusal| match refusal {
        Refusal::Raised(error) => error,
        Refusal::Tensor(reason) => exception(reason),
    })?;
    let Imported { managed, data_type, shape, strides } = imported;
    let data = managed.data();
    let memory = Memory::managed(python, managed)?;
    let Some(strides) = strides else {
        return Ok(Tensor::borrowed(name, data_type, shape, memory));
    };
    if data_type.numpy().is_none() {
        let what = format!("elements of type {} must be contiguous", data_type.name());
        return Err(exception(format!("tensor '{name}': {what}")));
    }
    let owner = memory.into_bound(python).into_any();
    // SAFETY: the other library vouches for its tensor's shape and strides, and keeps it until the owner ends its use.
    let view = unsafe { Numpy::get(python)?.view(&shape, Some(&strides), data_type, data, owner)? };
    Tensor::of_array(python, name, &view)
}

/// A tensor as a capsule of DLPack, which holds it.
fn export<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let this = tensor.get();
    let (shape, owner) = (this.shape.clone(), tensor.clone().into_any());
    let data = match this.data_type.dlpack() {
        Some(_) => this.elements(tensor.py())?.0,
        None => std::ptr::null_mut(),
    };
    // SAFETY: elements stay where they are as long as their tensor lives.
    let capsule = unsafe { dlpack::export(owner, this.data_type, shape, data)? };
    capsule.ok_or_else(|| exception("DLPack does not have support for string tensors."))
}

/// Whether the array is of the type that the package ml_dtypes adds to numpy.
fn is_bfloat16(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    array.getattr("dtype")?.getattr("name")?.eq("bfloat16")
}

#[pymethods]
impl Tensor {
    #[new]
    fn new(python: Python<'_>, name: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(text) = name.extract::<String>() else {
            return Err(PyTypeError::new_err(format!(
                "Tensor(): the name must be a str, not '{}'",
                name.get_type().name()?
            )));
        };
        if text.is_empty() && Array::of(array)?.is_some() {
            return Err(exception("Tensor name cannot be an empty string."));
        }
        Self::of_array(python, text, array)
    }

    #[pyo3(name = "name")]
    fn py_name(&self) -> &str {
        &self.name
    }

    #[pyo3(name = "shape")]
    fn py_shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    fn as_numpy(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        self.array(python).map(|array| array.clone().unbind())
    }

    fn triton_dtype(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "the type of a tensor's elements is that of its array: use as_numpy().dtype",
        ))
    }

    fn is_cpu(&self) -> bool {
        true
    }

    fn to_dlpack<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        export(slf)
    }

    #[pyo3(signature = (*_positional, **_named))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        _positional: &Bound<'py, pyo3::types::PyTuple>,
        _named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        export(slf)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (DLPACK_CPU, 0)
    }

    #[staticmethod]
    fn from_dlpack(python: Python<'_>, name: String, tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        if name.is_empty() {
            return Err(exception("Tensor name cannot be an empty string."));
        }
        import(python, name, tensor)
    }
}

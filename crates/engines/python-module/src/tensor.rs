//! `Tensor`: a name, and elements in the model's array, in memory shared by the server, or in another library's
//! memory. GPU memory is read only by other libraries.

use nereid_python_arrays::data_type::{dlpack_code, element_size, numpy_number};
use nereid_python_arrays::dlpack::{self, Device, ImportedTensor, ManagedTensor, Refusal};
use nereid_python_arrays::{Array, DataType, Numpy, byte_length, elements};
use nereid_worker_protocol::tensor as wire;
use nereid_worker_protocol::{Message, Region};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::arguments::Text;
use crate::constants::exception;
use crate::gpu::{self, GpuMemory};

/// A tensor, as models see it.
#[pyclass(module = "c_python_backend_utils", frozen, subclass)]
pub struct Tensor {
    name: String,
    data_type: DataType,
    shape: Vec<i64>,
    contents: Contents,
    device: Device,
    array: PyOnceLock<Py<PyAny>>,
}

/// The location of the elements.
enum Contents {
    /// In `array`.
    Array,
    /// In this object, encoded.
    Wire(Box<[u8]>),
    /// In memory that this object keeps alive. The elements are contiguous.
    Memory(Py<Memory>),
}

/// Memory that arrays view. They keep this object alive.
#[pyclass(module = "c_python_backend_utils", name = "SharedMemory", frozen)]
pub struct Memory(Kind);

enum Kind {
    Region(Region),
    Managed(ManagedTensor),
    Gpu(GpuMemory),
}

impl Memory {
    /// Memory that another library shares.
    pub fn managed(python: Python<'_>, managed: ManagedTensor) -> PyResult<Py<Self>> {
        Py::new(python, Self(Kind::Managed(managed)))
    }

    fn data(&self) -> *mut u8 {
        match &self.0 {
            Kind::Region(region) => region.as_ptr(),
            Kind::Managed(managed) => managed.data(),
            // A GPU address, which is never read here.
            Kind::Gpu(memory) => memory.address() as *mut u8,
        }
    }
}

impl Tensor {
    /// A received tensor.
    pub fn received(python: Python<'_>, tensor: wire::Tensor<'_>) -> PyResult<Self> {
        let wrong = |what: &str| PyValueError::new_err(format!("tensor '{}': {what}", tensor.name));
        let data_type = DataType::from_number(tensor.data_type).ok_or_else(|| wrong("unknown data type"))?;
        let length = byte_length(&tensor.shape, data_type).ok_or_else(|| wrong("impossible shape"))?;
        let received = match &tensor.contents {
            wire::Contents::Inline(bytes) => bytes.len(),
            wire::Contents::Region(region) => region.len(),
            wire::Contents::Device(contents) => usize::try_from(contents.length).unwrap_or(usize::MAX),
            wire::Contents::Unmapped(error) => {
                let name = tensor.name;
                return Err(exception(format!("tensor '{name}': cannot map its shared memory: {error}")));
            }
        };
        if element_size(data_type) > 0 && length != received {
            return Err(wrong("contents do not fit its shape"));
        }
        let mut device = Device::CPU;
        let array = PyOnceLock::new();
        let contents = match tensor.contents {
            wire::Contents::Region(region) => {
                Contents::Memory(Py::new(python, Memory(Kind::Region(region)))?)
            }
            wire::Contents::Device(contents) => {
                let opened = GpuMemory::open(python, &contents);
                let opened = opened.map_err(|error| {
                    exception(format!(
                        "input '{}' is in GPU memory that cannot be opened: {error}",
                        tensor.name
                    ))
                })?;
                device = Device::cuda(contents.device.cast_signed());
                Contents::Memory(Py::new(python, Memory(Kind::Gpu(opened)))?)
            }
            wire::Contents::Inline(bytes)
                if element_size(data_type) > 0 && numpy_number(data_type).is_some() =>
            {
                let copy = Numpy::get(python)?.empty(python, &tensor.shape, data_type)?;
                if let Some(target) = Array::of(&copy)? {
                    // SAFETY: the array is new, as long as the contents, and not shared yet.
                    unsafe { target.data().copy_from_nonoverlapping(bytes.as_ptr(), length) };
                }
                let _ = array.set(python, copy.unbind());
                Contents::Array
            }
            wire::Contents::Inline(bytes) => Contents::Wire(bytes.into()),
            wire::Contents::Unmapped(_) => return Err(wrong("contents are missing")),
        };
        Ok(Self { name: tensor.name.to_owned(), data_type, shape: tensor.shape, contents, device, array })
    }

    /// Moves the tensor to GPU memory; leaves it in place if the GPU has too little free memory, or does not exist.
    pub fn on_gpu(self, python: Python<'_>, device: i32) -> PyResult<Self> {
        let (data, length) = self.elements(python)?;
        if self.data_type == DataType::Bytes || length == 0 {
            return Ok(self);
        }
        // SAFETY: this object keeps the elements in place, and is not shared.
        let contents = unsafe { std::slice::from_raw_parts(data, length) };
        let Ok(memory) = GpuMemory::holding(python, device, contents) else { return Ok(self) };
        let contents = Contents::Memory(Py::new(python, Memory(Kind::Gpu(memory)))?);
        Ok(Self { contents, device: Device::cuda(device), array: PyOnceLock::new(), ..self })
    }

    /// A tensor over a model's array.
    pub fn of_array(python: Python<'_>, name: String, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Some(view) = Array::of(array)? else {
            return Err(PyTypeError::new_err(format!(
                "Tensor() takes a str and a numpy.ndarray, not '{}' and '{}'",
                "str",
                array.get_type().name()?
            )));
        };
        let data_type = view.data_type()?.ok_or_else(|| exception("NumPy dtype is not supported."))?;
        let shape = view.shape().to_vec();
        let kept = PyOnceLock::new();
        let contents = if data_type == DataType::Bytes {
            let _ = kept.set(python, array.clone().unbind());
            Contents::Wire(view.encode()?)
        } else {
            let _ = kept.set(python, view.to_plain()?.object().clone().unbind());
            Contents::Array
        };
        Ok(Self { name, data_type, shape, contents, device: Device::CPU, array: kept })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The address of the elements in their device's memory, and their length in bytes. They stay in place as long as
    /// the tensor, unless the model changes the array.
    pub fn elements(&self, python: Python<'_>) -> PyResult<(*mut u8, usize)> {
        match &self.contents {
            Contents::Wire(bytes) => Ok((bytes.as_ptr().cast_mut(), bytes.len())),
            Contents::Memory(memory) => {
                let memory = memory.get();
                let length = match &memory.0 {
                    Kind::Region(region) => region.len(),
                    Kind::Managed(_) | Kind::Gpu(_) => byte_length(&self.shape, self.data_type).unwrap_or(0),
                };
                Ok((memory.data(), length))
            }
            Contents::Array => {
                let array = self.array.get(python).map(|array| Array::of(array.bind(python)));
                let array =
                    array.transpose()?.flatten().ok_or_else(|| exception("the tensor has no array"))?;
                array.elements(&self.shape, self.data_type).ok_or_else(|| {
                    exception(format!("tensor '{}': the shape of its array was changed", self.name))
                })
            }
        }
    }

    /// Appends the tensor to a message.
    pub fn write(&self, python: Python<'_>, message: &mut Message<'_>) -> PyResult<()> {
        let (data, length) = self.elements(python)?;
        let mut read = Ok(());
        let fill = |target: &mut [u8]| {
            if self.device.is_cuda() {
                read = gpu::read(python, self.device.number, data.addr() as u64, target);
                return;
            }
            // SAFETY: the elements are as long as the target, which is not shared.
            unsafe { target.as_mut_ptr().copy_from_nonoverlapping(data, length) };
        };
        let written = message.tensor(&self.name, self.data_type.number(), &self.shape, length, fill);
        written.map_err(|error| {
            exception(format!("tensor '{}': no shared memory for {length} bytes: {error}", self.name))
        })?;
        read.map_err(|error| {
            exception(format!("tensor '{}' cannot be copied from the GPU's memory: {error}", self.name))
        })
    }

    /// The elements as an array, the same one each time.
    pub fn array<'py>(&self, python: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        Ok(self.array.get_or_try_init(python, || self.make_array(python))?.bind(python))
    }

    fn make_array(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.device.is_cuda() {
            return Err(exception("Tensor is stored in GPU and cannot be converted to NumPy."));
        }
        let numpy = Numpy::get(python)?;
        if self.data_type == DataType::Bytes {
            let (data, length) = self.elements(python)?;
            // SAFETY: this object keeps the elements in place.
            let bytes = unsafe { std::slice::from_raw_parts(data, length) };
            return elements::decode(python, numpy, &self.shape, bytes).map(Bound::unbind);
        }
        if numpy_number(self.data_type).is_none() {
            return Err(exception(format!(
                "tensor '{}': numpy has no type {}, use DLPack",
                self.name,
                self.data_type.protocol_name()
            )));
        }
        let Contents::Memory(memory) = &self.contents else {
            return Err(exception("the tensor has no array"));
        };
        let data = memory.get().data();
        let owner = memory.bind(python).as_any().clone();
        // SAFETY: the memory has the length of this shape and type, which was checked on arrival, and stays with its
        // owner.
        unsafe { numpy.view(&self.shape, None, self.data_type, data, owner).map(Bound::unbind) }
    }
}

/// A tensor of another library: a capsule, or an object that exports one.
fn import(python: Python<'_>, name: String, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let refused = |reason: String| exception(format!("tensor '{name}': {reason}"));
    let accept = |device: Device| match device.is_cuda() {
        true => gpu::check(python, device.number)
            .map_err(|error| format!("it is in the memory of a GPU, which cannot be used: {error}")),
        false => device.check_host(),
    };
    let imported = dlpack::import(object, accept).map_err(|refusal| match refusal {
        Refusal::Raised(error) => error,
        Refusal::Tensor(reason) => refused(reason),
    })?;
    let ImportedTensor { managed, data_type, shape, strides, device } = imported;
    if shape.len() > wire::MAX_DIMENSIONS {
        let (dimensions, most) = (shape.len(), wire::MAX_DIMENSIONS);
        return Err(refused(format!("it has {dimensions} dimensions, but may have {most} at most")));
    }
    let data = managed.data();
    let memory = Memory::managed(python, managed)?;
    let Some(strides) = strides else {
        let device = if device.is_cuda() { device } else { Device::CPU };
        let contents = Contents::Memory(memory);
        return Ok(Tensor { name, data_type, shape, contents, device, array: PyOnceLock::new() });
    };
    if device.is_cuda() || numpy_number(data_type).is_none() {
        let whose = if device.is_cuda() {
            "in the memory of a GPU".into()
        } else {
            format!("of type {}", data_type.protocol_name())
        };
        return Err(refused(format!("elements {whose} must be contiguous")));
    }
    let owner = memory.into_bound(python).into_any();
    // SAFETY: the other library guarantees its tensor's shape and strides, and keeps it until the owner releases it.
    let view = unsafe { Numpy::get(python)?.view(&shape, Some(&strides), data_type, data, owner)? };
    Tensor::of_array(python, name, &view)
}

/// A tensor as a DLPack capsule, which keeps it alive.
fn export<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let this = tensor.get();
    let (shape, owner) = (this.shape.clone(), tensor.clone().into_any());
    let data = match dlpack_code(this.data_type) {
        Some(_) => this.elements(tensor.py())?.0,
        None => std::ptr::null_mut(),
    };
    if this.device.is_cuda() {
        // The producer may still be writing the tensor, and the consumer's stream need not wait for the default
        // stream.
        gpu::synchronize(tensor.py(), this.device.number)?;
    }
    // SAFETY: elements stay in place as long as their tensor.
    let capsule = unsafe { dlpack::export(owner, this.data_type, shape, data, this.device)? };
    capsule.ok_or_else(|| exception("DLPack does not have support for string tensors."))
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (name, array, /))]
    fn new(python: Python<'_>, name: Text, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Text(text) = name;
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
        !self.device.is_cuda()
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
        (self.device.kind, self.device.number)
    }

    #[staticmethod]
    #[pyo3(signature = (name, tensor, /))]
    fn from_dlpack(python: Python<'_>, name: Text, tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Text(name) = name;
        if name.is_empty() {
            return Err(exception("Tensor name cannot be an empty string."));
        }
        import(python, name, tensor)
    }
}

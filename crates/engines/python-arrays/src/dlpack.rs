//! DLPack: how libraries exchange tensors without a copy.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::byte_length;
use tensor_types::DataType;

use crate::data_type::{dlpack_code, element_size, of_dlpack};

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// CUDA's legacy default stream, in the numbering of `__dlpack__`.
const DEFAULT_STREAM: i32 = 1;

/// The location of a tensor, with DLPack's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kind of device.
    pub kind: i32,
    /// The device's number among its kind.
    pub number: i32,
}

impl Device {
    /// Memory of the CPU.
    pub const CPU: Self = Self { kind: 1, number: 0 };

    /// Memory of a GPU, with CUDA's number.
    pub fn cuda(number: i32) -> Self {
        Self { kind: 2, number }
    }

    /// Whether the CPU can read the memory, which may be pinned for CUDA or ROCm.
    pub fn is_host(self) -> bool {
        [1, 3, 11].contains(&self.kind)
    }

    /// Whether CUDA's calls can read the memory: a GPU's, or managed.
    pub fn is_cuda(self) -> bool {
        [2, 13].contains(&self.kind)
    }

    /// Refuses memory that the CPU cannot read.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn check_host(self) -> Result<(), String> {
        if self.is_host() {
            return Ok(());
        }
        Err(format!("it is in the memory of a device (DLPack type {}): copy it to the CPU first", self.kind))
    }
}

/// A tensor in the layout of DLPack's version 0.
#[repr(C)]
struct DlTensor {
    data: *mut u8,
    device_type: c_int,
    device_id: c_int,
    dimensions: c_int,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

impl DlTensor {
    fn device(&self) -> Device {
        Device { kind: self.device_type, number: self.device_id }
    }
}

/// A tensor with its deleter.
#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

/// The data that an exported tensor keeps alive until its consumer releases it.
struct ExportedTensor {
    managed: DlManaged,
    shape: Vec<i64>,
    _owner: Py<PyAny>,
}

/// The reason why a tensor of another library cannot be used.
#[derive(Debug)]
pub enum Refusal {
    /// Python raised this.
    Raised(PyErr),
    /// The tensor is unusable, for this reason.
    Tensor(String),
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

/// Exports a tensor as a capsule that holds its owner; `None` if DLPack lacks the type.
///
/// # Safety
/// While the owner lives, the contiguous elements of this shape stay at `data` in the device's memory.
pub unsafe fn export<'py>(
    owner: Bound<'py, PyAny>,
    data_type: DataType,
    shape: Vec<i64>,
    data: *mut u8,
    device: Device,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((code, bits)) = dlpack_code(data_type) else { return Ok(None) };
    let python = owner.py();
    let described = DlTensor {
        data,
        device_type: device.kind,
        device_id: device.number,
        dimensions: shape.len() as c_int,
        code,
        bits,
        lanes: 1,
        shape: ptr::null_mut(),
        // Contiguous.
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DlManaged { tensor: described, context: ptr::null_mut(), deleter: Some(delete) };
    let exported = Box::into_raw(Box::new(ExportedTensor { managed, shape, _owner: owner.unbind() }));
    // SAFETY: the box belongs to us until the capsule takes it; from then on, the capsule or its consumer frees it,
    // once.
    unsafe {
        let shape = (*exported).shape.as_mut_ptr();
        (*exported).managed.tensor.shape = shape;
        (*exported).managed.context = exported.cast();
        let managed = &raw mut (*exported).managed;
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            drop(Box::from_raw(exported));
        }
        Bound::from_owned_ptr_or_err(python, capsule).map(Some)
    }
}

/// Releases an exported tensor, on any thread, with or without the interpreter's lock.
///
/// # Safety
/// [`export`] made the tensor, and this is called once.
unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: the context is the box made for this tensor, and DLPack calls this once.
    let exported = unsafe { Box::from_raw((*managed).context.cast::<ExportedTensor>()) };
    // The caller may have released the lock although its thread state is attached: PyTorch does so before it frees a
    // tensor.
    // SAFETY: any thread may call this.
    let lock = unsafe { ffi::PyGILState_Ensure() };
    Python::attach(|_| drop(exported));
    // SAFETY: the lock was taken just now, on this thread.
    unsafe { ffi::PyGILState_Release(lock) };
}

/// Releases a tensor whose capsule was never consumed.
///
/// # Safety
/// [`export`] made the capsule, and it is being destroyed.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that it destroys. A consumer that took the tensor has renamed the
    // capsule.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 0 {
            return;
        }
        let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<DlManaged>();
        if let Some(delete) = (*managed).deleter {
            delete(managed);
        }
    }
}

/// A tensor that another library shares. Dropping it, under the interpreter's lock, releases it.
pub struct ManagedTensor(NonNull<DlManaged>);

// SAFETY: DLPack lets any thread use and release it.
unsafe impl Send for ManagedTensor {}
// SAFETY: as above; it is only read here.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    fn tensor(&self) -> &DlTensor {
        // SAFETY: the tensor is valid until it is released.
        unsafe { &self.0.as_ref().tensor }
    }

    /// The address of its first element.
    pub fn data(&self) -> *mut u8 {
        self.tensor().data.wrapping_add(self.tensor().byte_offset as usize)
    }

    fn list(&self, entries: *const i64) -> &[i64] {
        let count = usize::try_from(self.tensor().dimensions).unwrap_or(0);
        if count == 0 || entries.is_null() {
            return &[];
        }
        // SAFETY: DLPack's lists have an entry for each dimension.
        unsafe { slice::from_raw_parts(entries, count) }
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: this is the only consumer, and releases the tensor once.
        unsafe {
            if let Some(delete) = self.0.as_ref().deleter {
                delete(self.0.as_ptr());
            }
        }
    }
}

/// A tensor of another library.
pub struct ImportedTensor {
    /// Releases the tensor when dropped.
    pub managed: ManagedTensor,
    /// The type of its elements.
    pub data_type: DataType,
    /// The dimensions.
    pub shape: Vec<i64>,
    /// The distances between elements, in bytes; `None` if they are contiguous.
    pub strides: Option<Vec<i64>>,
    /// The location of the elements.
    pub device: Device,
}

/// Imports a tensor of another library: a capsule, or an object that exports one. A tensor in CUDA memory is complete
/// once CUDA's legacy default stream is, unless the maker of a capsule specifies otherwise.
///
/// # Errors
/// The object exports no tensor, its tensor is on a device that `accept` refuses, or it has an unsupported element type.
pub fn import(
    object: &Bound<'_, PyAny>,
    accept: impl Fn(Device) -> Result<(), String>,
) -> Result<ImportedTensor, Refusal> {
    let python = object.py();
    let refused = |what: &str| Refusal::Tensor(what.to_owned());
    let accept = |device| accept(device).map_err(Refusal::Tensor);
    let made;
    let capsule = if object.is_instance_of::<PyCapsule>() {
        object
    } else {
        if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
            return Err(refused(&format!(
                "expected a DLPack capsule or an object with `__dlpack__` and `__dlpack_device__`, not '{}'",
                object.get_type().name()?
            )));
        }
        let (kind, number) = object.call_method0("__dlpack_device__")?.extract()?;
        let device = Device { kind, number };
        accept(device)?;
        made = if device.is_cuda() {
            let named = PyDict::new(python);
            named.set_item("stream", DEFAULT_STREAM)?;
            object.call_method("__dlpack__", (), Some(&named))?
        } else {
            object.call_method0("__dlpack__")?
        };
        &made
    };
    // SAFETY: a capsule of that name holds such a tensor, which belongs to us once the capsule is renamed.
    let managed = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), NAME.as_ptr()) == 0 {
            return Err(refused("its DLPack capsule holds no tensor, or was used before"));
        }
        let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr());
        let managed = NonNull::new(pointer.cast()).ok_or_else(|| PyErr::fetch(python))?;
        // These checks come before the capsule is renamed, so that a refused tensor stays in it.
        let described: &DlManaged = NonNull::<DlManaged>::as_ref(&managed);
        accept(described.tensor.device())?;
        if ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) != 0 {
            return Err(PyErr::fetch(python).into());
        }
        ManagedTensor(managed)
    };
    let tensor = managed.tensor();
    let device = tensor.device();
    let data_type = of_dlpack(tensor.code, tensor.bits, tensor.lanes)
        .ok_or_else(|| refused("unsupported DLPack data type"))?;
    let shape = managed.list(tensor.shape).to_vec();
    let strides = managed.list(tensor.strides).to_vec();
    if byte_length(&shape, data_type).is_none() {
        return Err(refused("impossible shape"));
    }
    let follow = strides.is_empty() || is_contiguous(&shape, &strides);
    let bytes = |stride: &i64| stride * element_size(data_type) as i64;
    let strides = (!follow).then(|| strides.iter().map(bytes).collect());
    Ok(ImportedTensor { managed, data_type, shape, strides, device })
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(dimension, stride)| {
        let fits = *dimension == 1 || *stride == expected;
        expected *= dimension;
        fits
    })
}

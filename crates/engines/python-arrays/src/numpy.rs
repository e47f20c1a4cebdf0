//! Arrays, through numpy's C interface. Its function table and the layout of arrays are the same in numpy 1 and 2.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::slice;

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyString};

use tensor_types::DataType;

use crate::data_type::{element_size, numpy_number, of_numpy};
use crate::elements;

/// The numbers of types with special treatment.
pub const OBJECT: i32 = 17;
/// numpy's strings of fixed length: four bytes for each character.
pub const UNICODE: i32 = 19;

const ARRAY_TYPE: usize = 2;
const NEW: usize = 93;
const SET_BASE: usize = 282;

const C_CONTIGUOUS: c_int = 0x1;
/// Contiguous, aligned, writable.
const CARRAY: c_int = C_CONTIGUOUS | 0x100 | 0x400;

type New = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    c_int,
    *const isize,
    c_int,
    *const isize,
    *mut c_void,
    c_int,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBase = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// numpy's exported table.
#[derive(Clone, Copy)]
pub struct Numpy {
    array_type: *mut ffi::PyTypeObject,
    new: New,
    set_base: SetBase,
}

// SAFETY: these are addresses of static parts of numpy, which is never unloaded.
unsafe impl Send for Numpy {}
// SAFETY: as above.
unsafe impl Sync for Numpy {}

static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();

/// An array's fields. Public in numpy's interface, so that compiled code may rely on them.
#[repr(C)]
struct Fields {
    head: ffi::PyObject,
    data: *mut u8,
    dimensions: c_int,
    shape: *const i64,
    strides: *const i64,
    base: *mut ffi::PyObject,
    descriptor: *const Descriptor,
    flags: c_int,
}

/// The fields of an array's type that are the same in numpy 1 and 2.
#[repr(C)]
struct Descriptor {
    head: ffi::PyObject,
    scalar: *mut ffi::PyTypeObject,
    kind: c_char,
    letter: c_char,
    byte_order: c_char,
    flags: c_char,
    number: c_int,
}

const _: () = assert!(size_of::<ffi::PyObject>() == 16 && size_of::<isize>() == size_of::<i64>());

impl Numpy {
    /// numpy's exported table; imports numpy first.
    pub fn get(python: Python<'_>) -> PyResult<Self> {
        NUMPY.get_or_try_init(python, || Self::load(python)).copied()
    }

    fn load(python: Python<'_>) -> PyResult<Self> {
        let module = python
            .import("numpy._core._multiarray_umath")
            .or_else(|_| python.import("numpy.core._multiarray_umath"))?;
        let exported = module.getattr("_ARRAY_API")?;
        let exported = exported.cast::<PyCapsule>()?.pointer_checked(None)?;
        let table = exported.cast::<NonNull<c_void>>();
        // SAFETY: the capsule holds numpy's table, which has had these entries at these places with these types since
        // numpy 1.7.
        unsafe {
            let entry = |place| table.add(place).read().as_ptr();
            Ok(Self {
                array_type: entry(ARRAY_TYPE).cast(),
                new: std::mem::transmute::<*mut c_void, New>(entry(NEW)),
                set_base: std::mem::transmute::<*mut c_void, SetBase>(entry(SET_BASE)),
            })
        }
    }

    /// A new array with uninitialised contents.
    pub fn empty<'py>(
        self,
        python: Python<'py>,
        shape: &[i64],
        data_type: DataType,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: without data, numpy allocates the array.
        unsafe { self.create(python, shape, data_type, None, ptr::null_mut()) }
    }

    /// An array over external memory, which `owner` keeps alive.
    ///
    /// # Safety
    /// The memory at `data` must hold the array's elements, and be writable, as long as `owner` lives.
    pub unsafe fn view<'py>(
        self,
        shape: &[i64],
        strides: Option<&[i64]>,
        data_type: DataType,
        data: *mut u8,
        owner: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the caller guarantees the data; the array takes a reference to the owner before any other code sees
        // it.
        unsafe {
            let array = self.create(owner.py(), shape, data_type, strides, data)?;
            // Takes over the reference.
            match (self.set_base)(array.as_ptr(), owner.clone().into_ptr()) {
                0 => Ok(array),
                _ => Err(PyErr::fetch(owner.py())),
            }
        }
    }

    /// An array over these data, or a new one if there are none.
    ///
    /// # Safety
    /// The data must hold the array's elements as long as the array lives.
    unsafe fn create<'py>(
        self,
        python: Python<'py>,
        shape: &[i64],
        data_type: DataType,
        strides: Option<&[i64]>,
        data: *mut u8,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(number) = numpy_number(data_type) else {
            return Err(PyImportError::new_err(format!("numpy has no type {}", data_type.protocol_name())));
        };
        let strides = strides.map_or(ptr::null(), <[i64]>::as_ptr);
        // SAFETY: numpy copies shape and strides, which both have the stated number of entries.
        unsafe {
            let array = (self.new)(
                self.array_type,
                shape.len() as c_int,
                shape.as_ptr().cast(),
                number,
                strides.cast(),
                data.cast(),
                0,
                if data.is_null() { 0 } else { CARRAY },
                ptr::null_mut(),
            );
            Bound::from_owned_ptr_or_err(python, array)
        }
    }
}

/// An array.
#[derive(Clone)]
pub struct Array<'py>(Bound<'py, PyAny>);

impl<'py> Array<'py> {
    /// Casts an object to an array; `None` if it is not one.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let numpy = Numpy::get(object.py())?;
        // SAFETY: both are alive.
        let is_array = unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), numpy.array_type) } != 0;
        Ok(is_array.then(|| Self(object.clone())))
    }

    fn fields(&self) -> &Fields {
        // SAFETY: the type was checked, and the object lives as long as `self`.
        unsafe { &*self.0.as_ptr().cast::<Fields>() }
    }

    /// The array as an object.
    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    /// The dimensions.
    pub fn shape(&self) -> &[i64] {
        let fields = self.fields();
        if fields.dimensions == 0 {
            return &[];
        }
        // SAFETY: numpy has an entry for each dimension.
        unsafe { slice::from_raw_parts(fields.shape, fields.dimensions as usize) }
    }

    /// numpy's number for the type of its elements.
    pub fn number(&self) -> i32 {
        // SAFETY: an array holds its type.
        unsafe { (*self.fields().descriptor).number }
    }

    /// Whether its elements are contiguous in C order, in native byte order.
    pub fn is_plain(&self) -> bool {
        // SAFETY: an array holds its type.
        let order = unsafe { (*self.fields().descriptor).byte_order };
        self.fields().flags & C_CONTIGUOUS != 0 && order != b'>' as c_char
    }

    /// The address of its first element.
    pub fn data(&self) -> *mut u8 {
        self.fields().data
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape().iter().product::<i64>() as usize
    }

    /// The element type, which may also be `bfloat16` from the package ml_dtypes; `None` if tensors do not support
    /// it.
    ///
    /// # Errors
    /// The array's type has no name.
    pub fn data_type(&self) -> PyResult<Option<DataType>> {
        if let Some(data_type) = of_numpy(self.number()) {
            return Ok(Some(data_type));
        }
        let is_bfloat16 = self.0.getattr("dtype")?.getattr("name")?.eq("bfloat16")?;
        Ok(is_bfloat16.then_some(DataType::Bf16))
    }

    /// The array if it is [plain](Self::is_plain), or else a plain copy.
    ///
    /// # Errors
    /// Python is out of memory.
    pub fn to_plain(&self) -> PyResult<Self> {
        if self.is_plain() {
            return Ok(self.clone());
        }
        let own_order = self.0.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
        self.astype(&own_order)
    }

    /// A copy with elements of a type, plain.
    fn astype(&self, data_type: &Bound<'py, PyAny>) -> PyResult<Self> {
        let copy = self.0.call_method1("astype", (data_type, "C"))?;
        // The array may be of a class that overrides the method.
        let copy = Self::of(&copy)?.filter(Self::is_plain);
        copy.ok_or_else(|| PyTypeError::new_err("the array's `astype` returns no plain array"))
    }

    /// The elements in the encoding of a BYTES tensor.
    ///
    /// # Errors
    /// An element has no text, or is too long.
    pub fn encode(&self) -> PyResult<Box<[u8]>> {
        let is_objects = |array: &Self| array.number() == OBJECT && array.is_plain();
        let objects = if is_objects(self) {
            self.clone()
        } else {
            Some(self.astype(PyString::new(self.0.py(), "O").as_any())?)
                .filter(is_objects)
                .ok_or_else(|| PyTypeError::new_err("the array's `astype` returns no objects"))?
        };
        Ok(elements::encode(&objects)?.into())
    }

    /// The address of its elements and their length in bytes; `None` if it has another shape, or is not plain.
    pub fn elements(&self, shape: &[i64], data_type: DataType) -> Option<(*mut u8, usize)> {
        let is_same = self.shape() == shape && self.is_plain();
        is_same.then(|| (self.data(), self.count() * element_size(data_type)))
    }
}

//! The elements of BYTES tensors: as objects in an array, and encoded, each after its length.

use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::numpy::{Array, Numpy};
use tensor_types::DataType;

/// Encodes the elements of a contiguous array of objects. Objects other than bytes and strings are converted to
/// strings.
pub fn encode(array: &Array<'_>) -> PyResult<Vec<u8>> {
    let python = array.object().py();
    let count = array.count();
    let mut encoded = Vec::with_capacity(count.saturating_mul(16));
    for place in 0..count {
        // Check the array each time: an element's `__str__` may change it.
        if place >= array.count() {
            return Err(PyValueError::new_err("an array was changed while it was read"));
        }
        // SAFETY: an array of objects has an address, or null for None, at each index. The object is held before
        // other code runs.
        let object = unsafe { *array.data().cast::<*mut ffi::PyObject>().add(place) };
        // SAFETY: as above.
        let object = unsafe { Bound::from_borrowed_ptr_or_opt(python, object) };
        let object = object.unwrap_or_else(|| python.None().into_bound(python));
        if let Ok(bytes) = object.cast::<PyBytes>() {
            push(&mut encoded, bytes.as_bytes())?;
        } else if let Ok(text) = object.cast::<PyString>() {
            push(&mut encoded, text.to_cow()?.as_bytes())?;
        } else {
            push(&mut encoded, object.str()?.to_cow()?.as_bytes())?;
        }
    }
    Ok(encoded)
}

fn push(encoded: &mut Vec<u8>, element: &[u8]) -> PyResult<()> {
    let length =
        u32::try_from(element.len()).map_err(|_| PyValueError::new_err("an element is longer than 4 GiB"))?;
    encoded.extend_from_slice(&length.to_le_bytes());
    encoded.extend_from_slice(element);
    Ok(())
}

/// Decodes elements to an array of `bytes`.
pub fn decode<'py>(
    python: Python<'py>,
    numpy: Numpy,
    shape: &[i64],
    mut encoded: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let array = numpy.empty(python, shape, DataType::Bytes)?;
    let Some(view) = Array::of(&array)? else { return Ok(array) };
    // SAFETY: the array is new and has a place for each element, all of which numpy set to null or None.
    let places = unsafe { slice::from_raw_parts_mut(view.data().cast::<*mut ffi::PyObject>(), view.count()) };
    for place in places {
        let element;
        (element, encoded) =
            next(encoded).ok_or_else(|| PyValueError::new_err("BYTES elements are cut short"))?;
        let old = std::mem::replace(place, PyBytes::new(python, element).into_ptr());
        // SAFETY: the array owned this reference, if any.
        unsafe { ffi::Py_XDECREF(old) };
    }
    Ok(array)
}

fn next(encoded: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = encoded.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

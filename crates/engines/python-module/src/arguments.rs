//! Conversion of arguments by pybind11's rules, which models written for Triton rely on: text also as bytes, numbers
//! also as objects that convert to them, lists also as other sequences.

use std::borrow::Cow;

use pyo3::exceptions::{PyTypeError, PyUnicodeDecodeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyString};

/// The error of an argument that is something else than expected.
pub fn refused(object: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let found = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("expected {expected}, found '{found}'"))
}

/// The bytes of a `str`, `bytes` or `bytearray`.
fn bytes_of<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(text) = object.cast::<PyString>() {
        // A lone surrogate is not text.
        return match text.to_cow() {
            Ok(text) => Ok(Cow::Owned(text.into_owned().into_bytes())),
            Err(_) => Err(refused(object, "text that can be encoded in UTF-8")),
        };
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    match object.cast::<PyByteArray>() {
        Ok(bytes) => Ok(Cow::Owned(bytes.to_vec())),
        Err(_) => Err(refused(object, "str or bytes")),
    }
}

/// Text that models read again: a `str`, or UTF-8 in `bytes` or a `bytearray`.
#[derive(Default)]
pub struct Text(pub String);

impl FromPyObject<'_, '_> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match String::from_utf8(bytes_of(&object)?.into_owned()) {
            Ok(text) => Ok(Self(text)),
            Err(error) => {
                let (reason, bytes) = (error.utf8_error(), error.as_bytes());
                Err(PyUnicodeDecodeError::new_err_from_utf8(object.py(), bytes, reason))
            }
        }
    }
}

/// Text for the server alone, such as a name that it looks up: what is not UTF-8 is replaced.
pub struct ServerText(pub String);

impl FromPyObject<'_, '_> for ServerText {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self(String::from_utf8_lossy(&bytes_of(&object)?).into_owned()))
    }
}

/// A whole number: an `int`, or an object other than a `float` that converts to one.
#[derive(Default)]
pub struct Integer<T>(pub T);

impl<T> FromPyObject<'_, '_> for Integer<T>
where
    T: for<'a, 'py> FromPyObject<'a, 'py>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let wrong = || refused(&object, "an int in the range of its type");
        if object.is_instance_of::<PyFloat>() {
            return Err(wrong());
        }
        let number = object.call_method0("__index__").or_else(|_| object.call_method0("__int__"));
        number.map_err(|_| wrong())?.extract().map(Self).map_err(|_| wrong())
    }
}

/// A floating-point number: a `float`, or an object that converts to one.
pub struct Float(pub f64);

impl FromPyObject<'_, '_> for Float {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|_| refused(&object, "a float"))
    }
}

/// `True` or `False`, or an object with a `__bool__` of its own.
#[derive(Default)]
pub struct Flag(pub bool);

impl FromPyObject<'_, '_> for Flag {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if object.is_none() || !object.get_type().hasattr("__bool__")? {
            return Err(refused(&object, "a bool"));
        }
        object.is_truthy().map(Self)
    }
}

/// An object of a class of this module that may be left out, but not be `None`.
pub struct Left<T>(pub Option<Py<T>>);

impl<T> Default for Left<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: pyo3::PyClass> FromPyObject<'_, '_> for Left<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.cast::<T>() {
            Ok(object) => Ok(Self(Some(object.to_owned().unbind()))),
            Err(_) => Err(refused(&object, &format!("an object of type {}", T::NAME))),
        }
    }
}

/// The elements of a sequence: a list, a tuple or another object with `__getitem__`, but not a `dict` or text.
pub fn elements<T>(
    sequence: &Bound<'_, PyAny>,
    expected: &str,
    element: impl Fn(Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let is_text = sequence.is_instance_of::<PyString>() || sequence.is_instance_of::<PyBytes>();
    let is_sequence = sequence.get_type().hasattr("__getitem__")? && !sequence.is_instance_of::<PyDict>();
    if is_text || !is_sequence {
        return Err(refused(sequence, expected));
    }
    sequence.try_iter().map_err(|_| refused(sequence, expected))?.map(|found| element(found?)).collect()
}

/// A list of names.
pub struct Names(pub Vec<String>);

impl FromPyObject<'_, '_> for Names {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        elements(&object, "a list of names", |name| Ok(name.extract::<Text>()?.0)).map(Self)
    }
}

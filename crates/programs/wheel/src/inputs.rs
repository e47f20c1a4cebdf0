//! The arguments of a request from Python, before they become a request.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

/// A request's arguments from Python.
pub struct RequestArguments<'a, 'py> {
    pub model: &'a str,
    pub version: i64,
    /// Tensors by their names.
    pub inputs: Bound<'py, PyDict>,
    /// `None` for all.
    pub outputs: Option<Vec<String>>,
    pub id: Option<String>,
    pub parameters: Option<Bound<'py, PyDict>>,
    pub sequence: Option<(Bound<'py, PyAny>, bool, bool)>,
    pub priority: u64,
    /// Microseconds; 0 for the model's default.
    pub timeout: u64,
}

/// A parameter's value.
#[derive(Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

impl Value {
    /// Converts a Python object.
    ///
    /// # Errors
    /// The object has another type, or is a number beyond 64 bits.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(value) = object.cast::<PyBool>() {
            return Ok(Self::Bool(value.is_true()));
        }
        if object.is_instance_of::<PyInt>() {
            return object.extract().map(Self::Int);
        }
        if object.is_instance_of::<PyString>() {
            return object.extract().map(Self::Text);
        }
        let kind = object.get_type().name()?.to_string();
        let wrong =
            || PyTypeError::new_err(format!("a parameter is a str, int, float or bool, not '{kind}'"));
        object.extract().map(Self::Double).map_err(|_| wrong())
    }
}

//! Parameters of requests and responses: a dictionary in Python, converted to JSON when read.

use nereid_worker_protocol::tensor::Value as WireValue;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use crate::constants::exception;

/// A parameter's value.
enum Value {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

/// Parameters by name, in their order.
#[derive(Default)]
pub struct Parameters {
    values: Vec<(String, Value)>,
    received: bool,
    /// What the protocol cannot represent, if anything.
    unsendable: Option<Unsendable>,
}

/// Parameters that a model may read again, but not send.
struct Unsendable {
    json: Py<PyAny>,
    reason: String,
}

impl Parameters {
    /// Received parameters.
    pub fn received(parameters: Vec<(&str, WireValue<'_>)>) -> Self {
        let value = |value| match value {
            WireValue::Bool(value) => Value::Bool(value),
            WireValue::Int(value) => Value::Int(value),
            WireValue::Double(value) => Value::Double(value),
            WireValue::Text(value) => Value::Text(value.to_owned()),
        };
        let values = parameters.into_iter().map(|(name, given)| (name.to_owned(), value(given))).collect();
        Self { values, received: true, unsendable: None }
    }

    /// The parameters in a dictionary, which may be absent.
    pub fn from_python(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(Self::default()) };
        let Ok(given) = given.cast::<PyDict>() else {
            return Err(exception(format!(
                "Expect parameters to be a dict, got {}",
                given.get_type().str()?
            )));
        };
        let mut parameters = Self { values: Vec::with_capacity(given.len()), ..Self::default() };
        let mut refusal = None;
        for (name, value) in given {
            let Ok(name) = name.cast::<PyString>() else {
                let found = name.get_type().str()?;
                return Err(exception(format!(
                    "Expect parameters keys to have type str, found type {found}"
                )));
            };
            let converted = if let Ok(value) = value.cast::<PyBool>() {
                Ok(Value::Bool(value.is_true()))
            } else if value.is_instance_of::<PyInt>() {
                value.extract().map(Value::Int)
            } else if let Ok(value) = value.cast::<PyString>() {
                value.to_cow().map(|text| Value::Text(text.into_owned()))
            } else {
                let found = value.get_type().str()?;
                return Err(exception(format!(
                    "Expect parameters values to have type bool/int/str, found type {found}"
                )));
            };
            match converted.and_then(|value| Ok((name.to_cow()?.into_owned(), value))) {
                Ok(parameter) => parameters.values.push(parameter),
                Err(error) => {
                    let (name, error) = (name.repr()?, error.value(given.py()).to_string());
                    refusal.get_or_insert_with(|| format!("parameter {name} cannot be sent: {error}"));
                }
            }
        }
        if let Some(reason) = refusal {
            let json = given.py().import("json")?.call_method1("dumps", (given,))?.unbind();
            parameters.unsendable = Some(Unsendable { json, reason });
        }
        Ok(parameters)
    }

    /// Why the parameters cannot be sent, if they cannot.
    pub fn refusal(&self) -> Option<&str> {
        self.unsendable.as_ref().map(|unsendable| unsendable.reason.as_str())
    }

    /// The parameters in the protocol's form.
    pub fn wire(&self) -> impl ExactSizeIterator<Item = (&str, WireValue<'_>)> {
        self.values.iter().map(|(name, value)| {
            let value = match value {
                Value::Bool(value) => WireValue::Bool(*value),
                Value::Int(value) => WireValue::Int(*value),
                Value::Double(value) => WireValue::Double(*value),
                Value::Text(value) => WireValue::Text(value),
            };
            (name.as_str(), value)
        })
    }

    /// The parameters as JSON, formatted as in the reference: by Python's `json` if the model set them, without
    /// spaces if they were received.
    pub fn to_json(&self, python: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(unsendable) = &self.unsendable {
            return Ok(unsendable.json.clone_ref(python));
        }
        if self.values.is_empty() {
            return Ok(PyString::new(python, "{}").into_any().unbind());
        }
        let values = PyDict::new(python);
        for (name, value) in &self.values {
            match value {
                Value::Bool(value) => values.set_item(name, value)?,
                Value::Int(value) => values.set_item(name, value)?,
                Value::Double(value) => values.set_item(name, value)?,
                Value::Text(value) => values.set_item(name, value)?,
            }
        }
        let style = PyDict::new(python);
        if self.received {
            style.set_item("separators", (",", ":"))?;
            style.set_item("ensure_ascii", false)?;
        }
        Ok(python.import("json")?.call_method("dumps", (values,), Some(&style))?.unbind())
    }
}

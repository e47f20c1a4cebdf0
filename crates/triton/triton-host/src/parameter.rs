//! Named values: created by backends and applications, or read from requests and responses.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::{Error, ParameterValue, Parameters, Result};
use triton_sys::*;

use crate::boundary::{Contents, values};
use crate::handle::Handle;
use crate::text::c_string;

/// A named value.
pub(crate) struct Parameter {
    name: CString,
    value: Value,
}

/// A value whose address may be passed to C.
enum Value {
    String(CString),
    Int(i64),
    Bool(bool),
    Double(f64),
    Bytes(Vec<u8>),
}

impl Parameter {
    /// A value of a request or a response.
    fn of(name: &str, value: &ParameterValue) -> Self {
        let value = match value {
            ParameterValue::Bool(value) => Value::Bool(*value),
            ParameterValue::Int(value) => Value::Int(*value),
            ParameterValue::Double(value) => Value::Double(*value),
            ParameterValue::String(value) => Value::String(c_string(value)),
        };
        Self { name: c_string(name), value }
    }

    fn read(name: &str, kind: TRITONSERVER_ParameterType, value: &Contents) -> Result<Self> {
        let value = match kind {
            TRITONSERVER_PARAMETER_STRING => Value::String(c_string(&value.text().read()?)),
            TRITONSERVER_PARAMETER_INT => Value::Int(value.value()?),
            // A byte, since not every byte is a valid `bool`.
            TRITONSERVER_PARAMETER_BOOL => Value::Bool(value.value::<u8>()? != 0),
            TRITONSERVER_PARAMETER_DOUBLE => Value::Double(value.value()?),
            _ => {
                return Err(Error::invalid_arg(
                    "a parameter must be a string, an integer, a bool or a double",
                ));
            }
        };
        Ok(Self { name: c_string(name), value })
    }

    pub(crate) fn name(&self) -> &CString {
        &self.name
    }

    pub(crate) fn kind(&self) -> TRITONSERVER_ParameterType {
        match self.value {
            Value::String(_) => TRITONSERVER_PARAMETER_STRING,
            Value::Int(_) => TRITONSERVER_PARAMETER_INT,
            Value::Bool(_) => TRITONSERVER_PARAMETER_BOOL,
            Value::Double(_) => TRITONSERVER_PARAMETER_DOUBLE,
            Value::Bytes(_) => TRITONSERVER_PARAMETER_BYTES,
        }
    }

    /// The value's address; for a string, its first character.
    pub(crate) fn address(&self) -> *const c_void {
        match &self.value {
            Value::String(value) => value.as_ptr().cast(),
            Value::Int(value) => ptr::from_ref(value).cast(),
            Value::Bool(value) => ptr::from_ref(value).cast(),
            Value::Double(value) => ptr::from_ref(value).cast(),
            Value::Bytes(value) => value.as_ptr().cast(),
        }
    }

    /// The value, if it is a string.
    pub(crate) fn as_text(&self) -> Option<String> {
        match &self.value {
            Value::String(value) => Some(value.to_string_lossy().into_owned()),
            _ => None,
        }
    }

    /// The value, if it is bytes.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match &self.value {
            Value::Bytes(value) => Some(value),
            _ => None,
        }
    }
}

/// C objects of these parameters.
pub(crate) fn all(parameters: &Parameters) -> Vec<Parameter> {
    parameters.iter().map(|(name, value)| Parameter::of(name, value)).collect()
}

values! {
    fn TRITONSERVER_ParameterNew(
        name: *const c_char,
        r#type: TRITONSERVER_ParameterType,
        value: *const c_void,
    ) -> *mut TRITONSERVER_Parameter = ptr::null_mut(); {
        Handle::give(Arc::new(Parameter::read(&name.read()?, r#type, &value)?))?.as_c()
    }

    fn TRITONSERVER_ParameterBytesNew(
        name: *const c_char,
        byte_ptr: *const c_void,
        size: u64,
    ) -> *mut TRITONSERVER_Parameter = ptr::null_mut(); {
        let value = Value::Bytes(byte_ptr.bytes(size)?);
        Handle::give(Arc::new(Parameter { name: c_string(&name.read()?), value }))?.as_c()
    }

    fn TRITONSERVER_ParameterDelete(parameter: *mut TRITONSERVER_Parameter); {
        parameter.delete()?;
    }
}

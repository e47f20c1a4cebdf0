//! Enumerations, and the exception that models raise and see.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

create_exception!(
    c_python_backend_utils,
    TritonModelException,
    PyException,
    "What goes wrong in a model, or between it and the server."
);

/// A `TritonModelException` with this message.
pub fn exception(message: impl Into<String>) -> PyErr {
    TritonModelException::new_err(message.into())
}

macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident as $shown:literal { $($member:ident = $number:literal as $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[pyclass(module = "c_python_backend_utils", name = $shown, eq, eq_int, frozen, from_py_object)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[pyo3(name = $text)] $member = $number),*
        }

        impl $name {
            /// The members, with their names.
            pub const MEMBERS: &[(&str, Self)] = &[$(($text, Self::$member)),*];
        }

        #[pymethods]
        impl $name {
            #[getter]
            fn name(&self) -> &'static str {
                match self { $(Self::$member => $text),* }
            }

            #[getter]
            fn value(&self) -> i32 {
                *self as i32
            }

            /// The member with this number.
            #[new]
            fn new(value: i32) -> PyResult<Self> {
                let found = Self::MEMBERS.iter().find(|(_, member)| *member as i32 == value);
                found.map(|(_, member)| *member).ok_or_else(|| {
                    PyValueError::new_err(format!(concat!("{} is not a valid ", $shown), value))
                })
            }

            /// The members by their names.
            #[classattr]
            fn __members__(python: Python<'_>) -> PyResult<Py<PyDict>> {
                let members = PyDict::new(python);
                for (name, member) in Self::MEMBERS {
                    members.set_item(*name, *member)?;
                }
                Ok(members.unbind())
            }

            fn __index__(&self) -> i32 {
                *self as i32
            }

            fn __str__(&self) -> String {
                format!(concat!($shown, ".{}"), self.name())
            }

            fn __hash__(&self) -> i32 {
                *self as i32
            }

            fn __repr__(&self) -> String {
                format!(concat!("<", $shown, ".{}: {}>"), self.name(), *self as i32)
            }
        }
    };
}

enumeration! {
    /// The kind of an error.
    ErrorCode as "__ErrorCode" {
        Unknown = 0 as "UNKNOWN", Internal = 1 as "INTERNAL", NotFound = 2 as "NOT_FOUND",
        InvalidArg = 3 as "INVALID_ARG", Unavailable = 4 as "UNAVAILABLE", Unsupported = 5 as "UNSUPPORTED",
        AlreadyExists = 6 as "ALREADY_EXISTS", Cancelled = 7 as "CANCELLED",
    }
}

impl ErrorCode {
    /// The code with this number.
    pub fn from_number(number: u32) -> Self {
        let same = |member: &&(&str, Self)| member.1 as u32 == number;
        Self::MEMBERS.iter().find(same).map_or(Self::Unknown, |member| member.1)
    }
}

enumeration! {
    /// Log levels.
    LogLevel as "LogLevel" {
        Info = 0 as "INFO", Warning = 1 as "WARNING", Error = 2 as "ERROR", Verbose = 3 as "VERBOSE",
    }
}

enumeration! {
    /// Kinds of metrics.
    MetricKind as "MetricKind" { Counter = 0 as "COUNTER", Gauge = 1 as "GAUGE", Histogram = 2 as "HISTOGRAM" }
}

enumeration! {
    /// Kinds of memory.
    MemoryType as "MemoryType" { Gpu = 0 as "TRITONSERVER_MEMORY_GPU", Cpu = 1 as "TRITONSERVER_MEMORY_CPU" }
}

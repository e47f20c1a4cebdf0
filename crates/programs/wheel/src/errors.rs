//! Errors of the C interface as exceptions, one class for each code.

use std::ffi::CStr;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use triton_sys::*;

create_exception!(nereid, Error, PyException, "An error of the server or of a model.");

macro_rules! codes {
    ($($class:ident = $code:ident, $doc:literal;)*) => {
        $(create_exception!(nereid, $class, Error, $doc);)*

        /// The exception of a code.
        fn exception(code: TRITONSERVER_Error_Code, message: String) -> PyErr {
            match code {
                $($code => $class::new_err(message),)*
                _ => Error::new_err(message),
            }
        }

        /// Adds the classes to the module.
        pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let python = module.py();
            module.add("Error", python.get_type::<Error>())?;
            $(module.add(stringify!($class), python.get_type::<$class>())?;)*
            Ok(())
        }
    };
}

codes! {
    UnknownError = TRITONSERVER_ERROR_UNKNOWN, "A backend failed for an unknown reason.";
    InternalError = TRITONSERVER_ERROR_INTERNAL, "The server or a model failed.";
    NotFoundError = TRITONSERVER_ERROR_NOT_FOUND, "The model or version does not exist.";
    InvalidArgumentError = TRITONSERVER_ERROR_INVALID_ARG, "A request, an option or a name is wrong.";
    UnavailableError = TRITONSERVER_ERROR_UNAVAILABLE, "The server or the model cannot answer now.";
    UnsupportedError = TRITONSERVER_ERROR_UNSUPPORTED, "The server or the model does not support the operation.";
    AlreadyExistsError = TRITONSERVER_ERROR_ALREADY_EXISTS, "There is one already.";
    CancelledError = TRITONSERVER_ERROR_CANCELLED, "The request was cancelled.";
}

/// Turns the return value of a C function into a result.
pub fn check(error: *mut TRITONSERVER_Error) -> PyResult<()> {
    if error.is_null() {
        return Ok(());
    }
    let raised = to_exception(error);
    // SAFETY: the caller owns the error and deletes it, once.
    unsafe { TRITONSERVER_ErrorDelete(error) };
    Err(raised)
}

/// The exception for an error, without taking ownership.
pub fn to_exception(error: *mut TRITONSERVER_Error) -> PyErr {
    // SAFETY: the error is alive, and so is its message.
    let (code, message) = unsafe {
        let message = CStr::from_ptr(TRITONSERVER_ErrorMessage(error));
        (TRITONSERVER_ErrorCode(error), message.to_string_lossy().into_owned())
    };
    exception(code, message)
}

//! C objects of errors.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::Arc;

use nereid_backend_api::{Error, ErrorCode, Result};
use triton_sys::*;

use crate::boundary::values;
use crate::handle::Handle;
use crate::text::c_string;

/// An error behind a C handle.
pub(crate) struct ErrorObject {
    code: TRITONSERVER_Error_Code,
    message: CString,
}

/// Every code, in the order of C's numbers.
const CODES: [(ErrorCode, &CStr); 8] = [
    (ErrorCode::Unknown, c"Unknown"),
    (ErrorCode::Internal, c"Internal"),
    (ErrorCode::NotFound, c"Not found"),
    (ErrorCode::InvalidArg, c"Invalid argument"),
    (ErrorCode::Unavailable, c"Unavailable"),
    (ErrorCode::Unsupported, c"Unsupported"),
    (ErrorCode::AlreadyExists, c"Already exists"),
    (ErrorCode::Cancelled, c"Cancelled"),
];

impl ErrorObject {
    /// Converts the error to the server's form. Codes without a constant become `Unknown`.
    pub(crate) fn as_error(&self) -> Error {
        let known = CODES.get(self.code.0 as usize).map_or(ErrorCode::Unknown, |(code, _)| *code);
        Error::new(known, self.message.to_string_lossy().into_owned())
    }
}

/// The error as an object that C may read.
pub(crate) fn object(error: &Error) -> Arc<ErrorObject> {
    let code = TRITONSERVER_Error_Code(error.code() as u32);
    Arc::new(ErrorObject { code, message: c_string(error.message()) })
}

/// Passes an error to C, which deletes it.
pub(crate) fn to_c(error: &Error) -> *mut TRITONSERVER_Error {
    give(TRITONSERVER_Error_Code(error.code() as u32), error.message())
}

fn give(code: TRITONSERVER_Error_Code, message: &str) -> *mut TRITONSERVER_Error {
    let object = Arc::new(ErrorObject { code, message: c_string(message) });
    match Handle::give(object) {
        Ok(handle) => handle.as_c(),
        // The handle table is full. Null would mean success, so return an invalid non-null handle.
        Err(_) => ptr::without_provenance_mut(usize::MAX),
    }
}

/// Takes over an error that C returned, if any.
pub(crate) fn from_c(error: Handle<ErrorObject>) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    Err(error.take().map_or_else(|wrong| wrong, |error| error.as_error()))
}

values! {
    fn TRITONSERVER_ErrorNew(code: TRITONSERVER_Error_Code, msg: *const c_char) -> *mut TRITONSERVER_Error
        = ptr::without_provenance_mut(usize::MAX); {
        give(code, &msg.read_optional().unwrap_or_default())
    }

    fn TRITONSERVER_ErrorDelete(error: *mut TRITONSERVER_Error); {
        error.delete()?;
    }

    fn TRITONSERVER_ErrorCode(error: *mut TRITONSERVER_Error) -> TRITONSERVER_Error_Code = TRITONSERVER_ERROR_UNKNOWN; {
        error.get()?.code
    }

    fn TRITONSERVER_ErrorCodeString(error: *mut TRITONSERVER_Error) -> *const c_char = c"<invalid code>".as_ptr(); {
        CODES.get(error.get()?.code.0 as usize).map_or(c"Unknown", |(_, name)| name).as_ptr()
    }

    fn TRITONSERVER_ErrorMessage(error: *mut TRITONSERVER_Error) -> *const c_char = c"".as_ptr(); {
        error.get()?.message.as_ptr()
    }
}

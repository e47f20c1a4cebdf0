//! C objects of errors.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, ErrorCode, Result};
use triton_sys::*;

use crate::boundary::values;
use crate::handle::{Handle, LentHandle};
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

/// Number of errors that stay readable although C may not delete them.
const MAX_UNCLAIMED: usize = 16_384;

/// Errors of responses, oldest first, which C may delete or leave to the server.
static UNCLAIMED: Mutex<VecDeque<LentHandle<ErrorObject>>> = Mutex::new(VecDeque::new());

/// Passes the error of a response to C. By the header the response owns it, but callers read and delete it after the
/// response. So it outlives the response, until [`MAX_UNCLAIMED`] later ones were passed.
pub(crate) fn to_c_unclaimed(error: &Error) -> *mut TRITONSERVER_Error {
    let pointer = to_c(error);
    let mut unclaimed = UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    unclaimed.push_back(LentHandle::adopt(Handle::of(pointer)));
    let oldest = if unclaimed.len() > MAX_UNCLAIMED { unclaimed.pop_front() } else { None };
    drop((unclaimed, oldest));
    pointer
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: *mut TRITONSERVER_Error) -> Result<String> {
        Handle::<ErrorObject>::of(error).get().map(|error| error.as_error().message().to_owned())
    }

    #[test]
    fn unclaimed_errors_are_separate_and_expire_in_order() {
        let error = Error::not_found("of a response");
        let [kept, deleted] = [(); 2].map(|()| to_c_unclaimed(&error));
        Handle::<ErrorObject>::of(deleted).delete().unwrap();
        assert!(message(deleted).is_err());
        assert_eq!(message(kept).unwrap(), "of a response");
        let later: Vec<_> = (0..MAX_UNCLAIMED).map(|_| to_c_unclaimed(&error)).collect();
        assert!(message(kept).is_err(), "the oldest error stays");
        assert!(later.iter().all(|error| message(*error).is_ok()));
    }
}

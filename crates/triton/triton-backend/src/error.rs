//! Errors: a code and a message, sent to the client.

use std::ffi::{CStr, CString, c_char};
use std::fmt;

use triton_sys::*;

/// The result of a backend's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its code. The client gets it unchanged: the message should state what is wrong and what would be
/// right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: ErrorCode,
    message: String,
}

/// The kind of an error. Faces translate it: HTTP to a status, gRPC to a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// Unknown kind, or a code of the server that this library does not know.
    Unknown,
    /// A failure that the client has no part in.
    Internal,
    /// The requested object does not exist.
    NotFound,
    /// The request or the configuration is wrong.
    InvalidArgument,
    /// A temporary failure: a later attempt may succeed.
    Unavailable,
    /// This backend cannot do that.
    Unsupported,
    /// The object to create exists already.
    AlreadyExists,
    /// The client cancelled its request.
    Cancelled,
}

impl Error {
    /// An error with any code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failure that the client has no part in.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The request or the configuration is wrong.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// This backend cannot do that.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unsupported, message)
    }

    /// The client cancelled its request.
    pub fn cancelled() -> Self {
        Self::new(ErrorCode::Cancelled, "the request was cancelled")
    }

    /// The kind of error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The message for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts the error to C. The server must delete it.
    pub(crate) fn into_c(self) -> *mut TRITONSERVER_Error {
        let message = CString::new(self.message.replace('\0', "\u{fffd}")).unwrap_or_default();
        // SAFETY: the message ends with a zero and is copied by the server.
        unsafe { TRITONSERVER_ErrorNew(self.code.into_c(), message.as_ptr()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<std::str::Utf8Error> for Error {
    fn from(error: std::str::Utf8Error) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

const CODES: [(ErrorCode, TRITONSERVER_Error_Code); 8] = [
    (ErrorCode::Unknown, TRITONSERVER_ERROR_UNKNOWN),
    (ErrorCode::Internal, TRITONSERVER_ERROR_INTERNAL),
    (ErrorCode::NotFound, TRITONSERVER_ERROR_NOT_FOUND),
    (ErrorCode::InvalidArgument, TRITONSERVER_ERROR_INVALID_ARG),
    (ErrorCode::Unavailable, TRITONSERVER_ERROR_UNAVAILABLE),
    (ErrorCode::Unsupported, TRITONSERVER_ERROR_UNSUPPORTED),
    (ErrorCode::AlreadyExists, TRITONSERVER_ERROR_ALREADY_EXISTS),
    (ErrorCode::Cancelled, TRITONSERVER_ERROR_CANCELLED),
];

impl ErrorCode {
    fn into_c(self) -> TRITONSERVER_Error_Code {
        CODES.iter().find(|(code, _)| *code == self).map_or(TRITONSERVER_ERROR_UNKNOWN, |(_, number)| *number)
    }

    fn from_c(number: TRITONSERVER_Error_Code) -> Self {
        CODES.iter().find(|(_, known)| *known == number).map_or(Self::Unknown, |(code, _)| *code)
    }
}

/// Converts the result of a server function: null is success, any other error is taken over and deleted.
///
/// # Safety
/// `error` is null or an error that belongs to the caller.
pub(crate) unsafe fn check(error: *mut TRITONSERVER_Error) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is not null and ours, so it lives until it is deleted below.
    let copied = unsafe { copy(error) };
    // SAFETY: the error is ours and not used after this.
    unsafe { TRITONSERVER_ErrorDelete(error) };
    Err(copied)
}

/// Copies an error owned by the caller of this library.
///
/// # Safety
/// `error` is an error that lives during the call.
pub(crate) unsafe fn copy(error: *mut TRITONSERVER_Error) -> Error {
    // SAFETY: as the caller promises; the text lives as long as the error and is copied.
    unsafe {
        let code = ErrorCode::from_c(TRITONSERVER_ErrorCode(error));
        let message = TRITONSERVER_ErrorMessage(error);
        let message = if message.is_null() {
            String::new()
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        };
        Error::new(code, message)
    }
}

/// A string for C, which must not contain a zero.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid_argument(format!("{text:?} contains a NUL character")))
}

/// A string from C; null is the empty string.
///
/// # Safety
/// `text` is null or points to a zero-terminated string, which lives and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(text) }.to_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_round_trip_through_c() {
        for (code, number) in CODES {
            assert_eq!(code.into_c(), number);
            assert_eq!(ErrorCode::from_c(number), code);
        }
        assert_eq!(ErrorCode::from_c(TRITONSERVER_Error_Code(77)), ErrorCode::Unknown);
    }

    #[test]
    fn text_with_nul_is_refused() {
        assert_eq!(c_string("a\0b").unwrap_err().code(), ErrorCode::InvalidArgument);
        assert_eq!(c_string("ab").unwrap().as_bytes(), b"ab");
    }
}

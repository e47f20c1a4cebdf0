//! Errors: a code and a message, which the server reports.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;

use triton_sys::*;

/// The result of an agent's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with its code. It becomes the reason why a model is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: ErrorCode,
    message: String,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The kind is unknown.
    Unknown,
    /// An internal failure.
    Internal,
    /// The requested object does not exist.
    NotFound,
    /// The model or its configuration is invalid.
    InvalidArgument,
    /// Temporarily unavailable.
    Unavailable,
    /// The agent does not support the operation.
    Unsupported,
    /// The object already exists.
    AlreadyExists,
    /// The operation was cancelled.
    Cancelled,
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

impl Error {
    /// An error with any code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// An internal failure.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The model or its configuration is invalid.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// The agent does not support the operation.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unsupported, message)
    }

    /// The kind of error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts the error to C's form. The server takes ownership of it.
    pub(crate) fn into_c(self) -> *mut TRITONSERVER_Error {
        let message = CString::new(self.message.replace('\0', "\u{fffd}")).unwrap_or_default();
        let code = CODES.iter().find(|(code, _)| *code == self.code);
        let code = code.map_or(TRITONSERVER_ERROR_UNKNOWN, |(_, number)| *number);
        // SAFETY: the message ends with a zero byte, and the server copies it.
        unsafe { TRITONSERVER_ErrorNew(code, message.as_ptr()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

/// Converts the return value of a server's function: null is success; an error is taken over and deleted.
///
/// # Safety
/// `error` is null or an error that belongs to the caller.
pub(crate) unsafe fn check(error: *mut TRITONSERVER_Error) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is not null and belongs to us, so it and its message live until it is deleted below.
    let copied = unsafe {
        let number = TRITONSERVER_ErrorCode(error);
        let code =
            CODES.iter().find(|(_, known)| *known == number).map_or(ErrorCode::Unknown, |(code, _)| *code);
        Error::new(code, CStr::from_ptr(TRITONSERVER_ErrorMessage(error)).to_string_lossy().into_owned())
    };
    // SAFETY: the error belongs to us and is not used after this.
    unsafe { TRITONSERVER_ErrorDelete(error) };
    Err(copied)
}

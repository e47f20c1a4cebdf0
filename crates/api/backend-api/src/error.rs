//! The one error of the request path: a code, which decides the status in each protocol, and a message for a person.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use nereid_model_files::{FileError, hint_at_missing};

/// A result whose error is an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was refused or failed.
///
/// A message says what is wrong, with which model and tensor, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: ErrorCode,
    message: Cow<'static, str>,
}

/// The kinds of error, as the reference's C API numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// Nothing better is known.
    Unknown = 0,
    /// A fault of the server or of a backend, not of the request.
    Internal = 1,
    /// A model, version, tensor or region of that name does not exist.
    NotFound = 2,
    /// The request or the configuration is wrong.
    InvalidArg = 3,
    /// It exists but cannot be used now: not ready, queue full, timed out.
    Unavailable = 4,
    /// Known, but this server or model does not offer it.
    Unsupported = 5,
    /// It was registered or loaded before.
    AlreadyExists = 6,
    /// The client went away or asked to stop.
    Cancelled = 7,
}

impl ErrorCode {
    /// The code's name in the C API's terms.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Internal => "Internal",
            Self::NotFound => "Not found",
            Self::InvalidArg => "Invalid argument",
            Self::Unavailable => "Unavailable",
            Self::Unsupported => "Unsupported",
            Self::AlreadyExists => "Already exists",
            Self::Cancelled => "Cancelled",
        }
    }
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident),* $(,)?) => {
        $($(#[$doc])* pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
            Self::new(ErrorCode::$code, message)
        })*
    };
}

impl Error {
    /// An error of `code` with a message for a person.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    constructors! {
        /// An [`ErrorCode::Internal`] error.
        internal => Internal,
        /// An [`ErrorCode::NotFound`] error.
        not_found => NotFound,
        /// An [`ErrorCode::InvalidArg`] error.
        invalid_arg => InvalidArg,
        /// An [`ErrorCode::Unavailable`] error.
        unavailable => Unavailable,
        /// An [`ErrorCode::Unsupported`] error.
        unsupported => Unsupported,
        /// An [`ErrorCode::Cancelled`] error.
        cancelled => Cancelled,
    }

    /// Why a model's file could not be read, with a hint if a similar file exists.
    pub fn cannot_read(path: &Path, error: &FileError) -> Self {
        let message = format!("cannot read {}: {error}", path.display());
        match error {
            _ if error.is_missing() => Self::not_found(format!("{message}{}", hint_at_missing(path))),
            FileError::Io(_) => Self::internal(message),
            FileError::Outside | FileError::NotRegular(_) | FileError::TooLarge(_) => {
                Self::invalid_arg(message)
            }
        }
    }

    /// The kind of error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// What was wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with words put before its message: `"<context>: <message>"`.
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { code: self.code, message: format!("{context}: {}", self.message).into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

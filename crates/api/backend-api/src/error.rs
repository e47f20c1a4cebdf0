//! The error of the request path: a code, which decides the status in each protocol, and a message for people.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use nereid_model_files::{FileError, hint_at_missing};

/// A result whose error is an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why something was refused or failed.
///
/// A message states the fault, the model and tensor concerned, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: ErrorCode,
    /// In seconds.
    retry_after: Option<NonZeroU32>,
    message: Cow<'static, str>,
}

/// The kinds of error, as the reference's C API numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No better code is known.
    Unknown = 0,
    /// A fault of the server or of a backend, not of the request.
    Internal = 1,
    /// A model, version, tensor or region of that name does not exist.
    NotFound = 2,
    /// The request or the configuration is wrong.
    InvalidArg = 3,
    /// Exists but cannot be used now: not ready, queue full, timed out.
    Unavailable = 4,
    /// Known, but not supported by this server or model.
    Unsupported = 5,
    /// Already registered or loaded.
    AlreadyExists = 6,
    /// The client disconnected or cancelled.
    Cancelled = 7,
}

impl ErrorCode {
    /// The code's name in the C API.
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
    /// An error with a code and a message for people.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, retry_after: None, message: message.into() }
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

    /// The error for an unreadable model file, with a hint if a similar file exists.
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

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Lets clients try again after this time, in whole seconds and at least one.
    pub fn with_retry_after(self, pause: Duration) -> Self {
        let seconds = u32::try_from(pause.as_secs()).unwrap_or(u32::MAX);
        let seconds = seconds.saturating_add(u32::from(pause.subsec_nanos() > 0));
        Self { retry_after: NonZeroU32::new(seconds).or(Some(NonZeroU32::MIN)), ..self }
    }

    /// After how many seconds clients may try again, if the server knows.
    pub fn retry_after(&self) -> Option<NonZeroU32> {
        self.retry_after
    }

    /// Prefixes the message with a context: `"<context>: <message>"`.
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { message: format!("{context}: {}", self.message).into(), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

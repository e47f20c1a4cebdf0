//! The server's log.

use std::ffi::CString;
use std::fmt;

use triton_sys::*;

/// The severity of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For debugging.
    Verbose,
    /// Useful to an operator.
    Info,
    /// A possible problem.
    Warning,
    /// A failure.
    Error,
}

impl Level {
    fn into_c(self) -> TRITONSERVER_LogLevel {
        match self {
            Self::Verbose => TRITONSERVER_LOG_VERBOSE,
            Self::Info => TRITONSERVER_LOG_INFO,
            Self::Warning => TRITONSERVER_LOG_WARN,
            Self::Error => TRITONSERVER_LOG_ERROR,
        }
    }
}

/// Writes a line to the server's log, if this level is enabled. Macros such as [`info`](crate::info) are shorter.
pub fn log(level: Level, file: &str, line: u32, message: fmt::Arguments<'_>) {
    let level = level.into_c();
    // SAFETY: takes a number.
    if !unsafe { TRITONSERVER_LogIsEnabled(level) } {
        return;
    }
    let text = |text: String| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let (file, message) = (text(file.to_owned()), text(message.to_string()));
    let line = i32::try_from(line).unwrap_or(0);
    // SAFETY: both texts end with a zero and are copied by the server.
    let outcome = unsafe { TRITONSERVER_LogMessage(level, file.as_ptr(), line, message.as_ptr()) };
    // SAFETY: the error, if any, is ours. A failure of the log itself cannot be reported.
    drop(unsafe { crate::error::check(outcome) });
}

/// Writes a line to the server's log if it is verbose. Arguments as for `format!`.
#[macro_export]
macro_rules! verbose {
    ($($message:tt)*) => { $crate::log($crate::Level::Verbose, file!(), line!(), format_args!($($message)*)) };
}

/// Writes a line to the server's log. Arguments as for `format!`.
#[macro_export]
macro_rules! info {
    ($($message:tt)*) => { $crate::log($crate::Level::Info, file!(), line!(), format_args!($($message)*)) };
}

/// Writes a warning to the server's log. Arguments as for `format!`.
#[macro_export]
macro_rules! warning {
    ($($message:tt)*) => { $crate::log($crate::Level::Warning, file!(), line!(), format_args!($($message)*)) };
}

/// Writes an error to the server's log. Arguments as for `format!`.
#[macro_export]
macro_rules! error {
    ($($message:tt)*) => { $crate::log($crate::Level::Error, file!(), line!(), format_args!($($message)*)) };
}

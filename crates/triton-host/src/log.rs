//! The log, for backends: their messages appear with their own file and line.

use std::ffi::{c_char, c_int};

use nereid_backend_api::Error;
use tracing::Level;
use triton_sys::*;

use crate::boundary::{exports, values};

fn level(level: TRITONSERVER_LogLevel) -> Option<Level> {
    match level {
        TRITONSERVER_LOG_INFO => Some(Level::INFO),
        TRITONSERVER_LOG_WARN => Some(Level::WARN),
        TRITONSERVER_LOG_ERROR => Some(Level::ERROR),
        TRITONSERVER_LOG_VERBOSE => Some(Level::DEBUG),
        _ => None,
    }
}

values! {
    fn TRITONSERVER_LogIsEnabled(level: TRITONSERVER_LogLevel) -> bool = false; {
        match self::level(level) {
            Some(Level::ERROR) => tracing::enabled!(Level::ERROR),
            Some(Level::WARN) => tracing::enabled!(Level::WARN),
            Some(Level::INFO) => tracing::enabled!(Level::INFO),
            Some(_) => tracing::enabled!(Level::DEBUG),
            None => false,
        }
    }
}

exports! {
    fn TRITONSERVER_LogMessage(
        level: TRITONSERVER_LogLevel,
        filename: *const c_char,
        line: c_int,
        msg: *const c_char,
    ) {
        let wrong = || Error::invalid_arg(format!("unknown log level {}", level.0));
        let level = self::level(level).ok_or_else(wrong)?;
        let (file, message) = (filename.read_if_given().unwrap_or_default(), msg.read()?);
        let (file, message) = (&*file, &*message);
        // Named so that the log takes them for the place of the message.
        match level {
            Level::ERROR => tracing::error!(log.file = file, log.line = line, "{message}"),
            Level::WARN => tracing::warn!(log.file = file, log.line = line, "{message}"),
            Level::INFO => tracing::info!(log.file = file, log.line = line, "{message}"),
            _ => tracing::debug!(log.file = file, log.line = line, "{message}"),
        }
    }
}

//! The log: messages of backends and applications appear with their own file and line.
//!
//! If applications create servers, the log belongs to the process, as in the C interface: see [`ApplicationLog`]. The
//! program or library that links this crate subscribes to events and writes them there.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use nereid_backend_api::{Error, Result};
use nereid_protocol::{LogControl, LogFormat, LogUpdate};
use tracing::Level;
use triton_sys::*;

use crate::boundary::{exports, values};
use crate::embedder::start_log;
use crate::text::c_string;

/// The log of a process whose servers applications create. Its settings apply to all servers, and may change at any
/// time.
#[derive(Default)]
pub struct ApplicationLog {
    control: Arc<LogControl>,
    /// The log's file; `None` for standard error.
    file: Mutex<Option<File>>,
    callback: RwLock<Option<Callback>>,
}

/// The application's callback for messages.
struct Callback {
    call: unsafe extern "C" fn(TRITONSERVER_LogLevel, *const c_char, c_int, u64, *const c_char, *mut c_void),
    /// The callback's user pointer.
    userp: AtomicPtr<c_void>,
}

/// A message, for the application's callback.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord<'a> {
    /// The severity.
    pub level: Level,
    /// The name of the source file.
    pub file: &'a str,
    /// The line in that file.
    pub line: i64,
    /// Microseconds since 1970.
    pub micros: u64,
    /// The text.
    pub message: &'a str,
}

static APPLICATION_LOG: LazyLock<ApplicationLog> = LazyLock::new(ApplicationLog::default);

impl ApplicationLog {
    /// The process's log.
    pub fn get() -> &'static Self {
        &APPLICATION_LOG
    }

    /// The log's settings.
    pub fn control(&self) -> &Arc<LogControl> {
        &self.control
    }

    /// Whether the application has a callback for messages. The log writes nothing then.
    pub fn has_callback(&self) -> bool {
        self.callback().is_some()
    }

    /// Calls the application's callback, if set. Holds no lock: the callback may log, change the log, or wait for a
    /// thread that does. A thread may therefore still call it shortly after it was removed.
    pub fn report(&self, record: &LogRecord<'_>) {
        let callback = |callback: &Callback| (callback.call, callback.userp.load(Ordering::Relaxed));
        let Some((call, userp)) = self.callback().as_ref().map(callback) else { return };
        let level = match record.level {
            Level::ERROR => TRITONSERVER_LOG_ERROR,
            Level::WARN => TRITONSERVER_LOG_WARN,
            Level::INFO => TRITONSERVER_LOG_INFO,
            _ => TRITONSERVER_LOG_VERBOSE,
        };
        let line = c_int::try_from(record.line).unwrap_or(0);
        let (file, message) = (c_string(record.file), c_string(record.message));
        // SAFETY: the callback was registered with this signature; the strings live until it returns.
        unsafe { call(level, file.as_ptr(), line, record.micros, message.as_ptr(), userp) }
    }

    /// Sets the file for the log; an empty path is standard error.
    fn set_file(&self, path: &str) -> Result<()> {
        let file = match path {
            "" => None,
            path => {
                let failed = |error: io::Error| Error::internal(format!("cannot log to {path}: {error}"));
                Some(File::options().create(true).append(true).open(path).map_err(failed)?)
            }
        };
        *self.file() = file;
        Ok(())
    }

    fn file(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callback(&self) -> RwLockReadGuard<'_, Option<Callback>> {
        self.callback.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &ApplicationLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.file() {
            Some(file) => file.write_all(bytes),
            None => io::stderr().write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn update(update: LogUpdate) {
    APPLICATION_LOG.control.update(update);
}

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
        start_log();
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
        start_log();
        let wrong = || Error::invalid_arg(format!("unknown log level {}", level.0));
        let level = self::level(level).ok_or_else(wrong)?;
        let (file, message) = (filename.read_optional().unwrap_or_default(), msg.read()?);
        let (file, message) = (&*file, &*message);
        // Names that the log's formatter reads as the location of the message.
        match level {
            Level::ERROR => tracing::error!(log.file = file, log.line = line, "{message}"),
            Level::WARN => tracing::warn!(log.file = file, log.line = line, "{message}"),
            Level::INFO => tracing::info!(log.file = file, log.line = line, "{message}"),
            _ => tracing::debug!(log.file = file, log.line = line, "{message}"),
        }
    }

    // The log belongs to the process, so these functions ignore the options, which may be null.

    fn TRITONSERVER_ServerOptionsSetLogFile(_options: *mut TRITONSERVER_ServerOptions, file: *const c_char) {
        APPLICATION_LOG.set_file(&file.read_optional().unwrap_or_default())?;
    }

    fn TRITONSERVER_ServerOptionsSetLogInfo(_options: *mut TRITONSERVER_ServerOptions, log: bool) {
        update(LogUpdate { info: Some(log), ..LogUpdate::default() });
    }

    fn TRITONSERVER_ServerOptionsSetLogWarn(_options: *mut TRITONSERVER_ServerOptions, log: bool) {
        update(LogUpdate { warning: Some(log), ..LogUpdate::default() });
    }

    fn TRITONSERVER_ServerOptionsSetLogError(_options: *mut TRITONSERVER_ServerOptions, log: bool) {
        update(LogUpdate { error: Some(log), ..LogUpdate::default() });
    }

    fn TRITONSERVER_ServerOptionsSetLogVerbose(_options: *mut TRITONSERVER_ServerOptions, level: c_int) {
        // Negative levels count as 0.
        let level = u32::try_from(level).unwrap_or(0);
        update(LogUpdate { verbose_level: Some(level), ..LogUpdate::default() });
    }

    fn TRITONSERVER_ServerOptionsSetLogFormat(
        _options: *mut TRITONSERVER_ServerOptions,
        format: TRITONSERVER_LogFormat,
    ) {
        let format = match format {
            TRITONSERVER_LOG_DEFAULT => LogFormat::Default,
            TRITONSERVER_LOG_ISO8601 => LogFormat::Iso8601,
            other => return Err(Error::invalid_arg(format!("unknown log format {}", other.0))),
        };
        update(LogUpdate { format: Some(format), ..LogUpdate::default() });
    }

    fn TRITONSERVER_ServerOptionsSetLogCallback(
        _options: *mut TRITONSERVER_ServerOptions,
        callback: TRITONSERVER_LogCallbackFn_t,
        userp: *mut c_void,
    ) {
        let callback = callback.map(|call| Callback { call, userp: AtomicPtr::new(userp) });
        *APPLICATION_LOG.callback.write().unwrap_or_else(PoisonError::into_inner) = callback;
    }
}

//! The log of the process's servers: its destination, and records for Python, which a Python thread reads.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use triton_sys::*;

use crate::errors::check;
use crate::text::{c_text, text_of_c};

/// Limit of unread records; further ones are dropped.
const CAPACITY: usize = 10_000;

/// Level, file, line, microseconds since 1970, and message.
type Record = (u32, String, i32, u64, String);

/// Unread records.
#[derive(Default)]
struct Records {
    queue: VecDeque<Record>,
    /// Number of records dropped since the last one was read.
    dropped: u64,
    ended: bool,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { queue: VecDeque::new(), dropped: 0, ended: false });
static ARRIVED: Condvar = Condvar::new();

fn records() -> MutexGuard<'static, Records> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called from any server thread.
///
/// # Safety
/// The strings are null or end with a zero byte.
unsafe extern "C" fn record(
    level: TRITONSERVER_LogLevel,
    file: *const c_char,
    line: c_int,
    micros: u64,
    message: *const c_char,
    _: *mut c_void,
) {
    // SAFETY: guaranteed by the caller.
    let (file, message) = unsafe { (text_of_c(file), text_of_c(message)) };
    let mut records = records();
    if records.queue.len() < CAPACITY {
        records.queue.push_back((level.0, file, line, micros, message));
        ARRIVED.notify_one();
    } else {
        records.dropped += 1;
    }
}

fn set_callback(callback: TRITONSERVER_LogCallbackFn_t) -> PyResult<()> {
    // SAFETY: the function may be called at any time, and its user data is unused.
    check(unsafe { TRITONSERVER_ServerOptionsSetLogCallback(ptr::null_mut(), callback, ptr::null_mut()) })
}

/// Starts to keep records.
#[pyfunction]
pub fn start_records() -> PyResult<()> {
    records().ended = false;
    set_callback(Some(record))
}

/// Stops keeping records. Unread ones can still be read; then [`next_record`] returns `None`.
#[pyfunction]
pub fn stop_records() -> PyResult<()> {
    set_callback(None)?;
    records().ended = true;
    ARRIVED.notify_all();
    Ok(())
}

/// The next record. With `waits`, `None` is returned only after the last one.
#[pyfunction]
pub fn next_record(python: Python<'_>, waits: bool) -> Option<Record> {
    python.detach(|| {
        let mut records = records();
        while waits && records.queue.is_empty() && !records.ended {
            records = ARRIVED.wait(records).unwrap_or_else(PoisonError::into_inner);
        }
        if let dropped @ 1.. = std::mem::take(&mut records.dropped) {
            let message = format!("{dropped} messages were dropped because the program did not read them");
            records.queue.push_back((TRITONSERVER_LOG_WARN.0, "log.rs".into(), 0, 0, message));
        }
        records.queue.pop_front()
    })
}

/// Sets the levels and the format of the log.
#[pyfunction]
pub fn set_log_levels(error: bool, warning: bool, info: bool, verbose: i32, format: &str) -> PyResult<()> {
    let format = match format {
        "default" => TRITONSERVER_LOG_DEFAULT,
        "ISO8601" => TRITONSERVER_LOG_ISO8601,
        other => {
            let expected = "expected 'default' or 'ISO8601'";
            return Err(PyValueError::new_err(format!("unknown log format '{other}': {expected}")));
        }
    };
    let none = ptr::null_mut();
    // SAFETY: the options may be null: the log belongs to the process.
    unsafe {
        check(TRITONSERVER_ServerOptionsSetLogError(none, error))?;
        check(TRITONSERVER_ServerOptionsSetLogWarn(none, warning))?;
        check(TRITONSERVER_ServerOptionsSetLogInfo(none, info))?;
        check(TRITONSERVER_ServerOptionsSetLogVerbose(none, verbose))?;
        check(TRITONSERVER_ServerOptionsSetLogFormat(none, format))
    }
}

/// Sets the file for the log's lines; an empty path is standard error.
#[pyfunction]
pub fn set_log_file(path: &str) -> PyResult<()> {
    let path = c_text(path)?;
    // SAFETY: the string lives until the function returns.
    check(unsafe { TRITONSERVER_ServerOptionsSetLogFile(ptr::null_mut(), path.as_ptr()) })
}

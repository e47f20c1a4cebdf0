//! The log of the process's servers: where it goes, and records for Python, which a thread of Python's takes.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use triton_sys::*;

use crate::errors::check;
use crate::text::{c_text, text_of_c};

/// Records that nobody took are dropped past this many.
const CAPACITY: usize = 10_000;

/// Level, file, line, microseconds since 1970, and message.
type Record = (u32, String, i32, u64, String);

/// What was logged and not taken.
#[derive(Default)]
struct Records {
    queue: VecDeque<Record>,
    /// How many were dropped since the last one was taken.
    dropped: u64,
    ended: bool,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { queue: VecDeque::new(), dropped: 0, ended: false });
static ARRIVED: Condvar = Condvar::new();

fn records() -> MutexGuard<'static, Records> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called by any thread of the server.
///
/// # Safety
/// The texts are null or end with a zero.
unsafe extern "C" fn record(
    level: TRITONSERVER_LogLevel,
    file: *const c_char,
    line: c_int,
    micros: u64,
    message: *const c_char,
    _: *mut c_void,
) {
    // SAFETY: the caller vouches for them.
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
    // SAFETY: the function may be called at any time, and takes no data.
    check(unsafe { TRITONSERVER_ServerOptionsSetLogCallback(ptr::null_mut(), callback, ptr::null_mut()) })
}

/// Keeps records from here on.
#[pyfunction]
pub fn start_records() -> PyResult<()> {
    records().ended = false;
    set_callback(Some(record))
}

/// Keeps none any more. What is there may still be taken; then [`next_record`] returns none.
#[pyfunction]
pub fn stop_records() -> PyResult<()> {
    set_callback(None)?;
    records().ended = true;
    ARRIVED.notify_all();
    Ok(())
}

/// The next record. With `waits`, none comes only after the last one.
#[pyfunction]
pub fn next_record(python: Python<'_>, waits: bool) -> Option<Record> {
    python.detach(|| {
        let mut records = records();
        while waits && records.queue.is_empty() && !records.ended {
            records = ARRIVED.wait(records).unwrap_or_else(PoisonError::into_inner);
        }
        if let dropped @ 1.. = std::mem::take(&mut records.dropped) {
            let message = format!("{dropped} messages were dropped: the program did not take them");
            records.queue.push_back((TRITONSERVER_LOG_WARN.0, "log.rs".into(), 0, 0, message));
        }
        records.queue.pop_front()
    })
}

/// Which levels are logged, and in which format.
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
    // SAFETY: the options may be null: the log is the process's.
    unsafe {
        check(TRITONSERVER_ServerOptionsSetLogError(none, error))?;
        check(TRITONSERVER_ServerOptionsSetLogWarn(none, warning))?;
        check(TRITONSERVER_ServerOptionsSetLogInfo(none, info))?;
        check(TRITONSERVER_ServerOptionsSetLogVerbose(none, verbose))?;
        check(TRITONSERVER_ServerOptionsSetLogFormat(none, format))
    }
}

/// The file that lines go to; standard error if the path is empty.
#[pyfunction]
pub fn set_log_file(path: &str) -> PyResult<()> {
    let path = c_text(path)?;
    // SAFETY: the text lives until the function returns.
    check(unsafe { TRITONSERVER_ServerOptionsSetLogFile(ptr::null_mut(), path.as_ptr()) })
}

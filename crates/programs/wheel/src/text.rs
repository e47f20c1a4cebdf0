//! Strings and documents that cross the C interface.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use triton_sys::*;

use crate::errors::check;

/// A string for C.
///
/// # Errors
/// `ValueError` if it contains a zero byte.
pub fn c_text(text: &str) -> PyResult<CString> {
    CString::new(text).map_err(|_| PyValueError::new_err(format!("{text:?} contains a zero character")))
}

/// A string from C; empty if the pointer is null.
///
/// # Safety
/// The pointer is null, or points to a string that ends with a zero byte and lives until this returns.
pub unsafe fn text_of_c(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The JSON document that `call` produces.
pub fn document(
    call: impl FnOnce(*mut *mut TRITONSERVER_Message) -> PyResult<*mut TRITONSERVER_Error>,
) -> PyResult<String> {
    let mut message = ptr::null_mut();
    check(call(&raw mut message)?)?;
    let (mut base, mut length) = (ptr::null(), 0);
    // SAFETY: we own the message until it is deleted, and its text lives as long.
    unsafe {
        let serialized = check(TRITONSERVER_MessageSerializeToJson(message, &raw mut base, &raw mut length));
        let text = serialized.map(|()| String::from_utf8_lossy(bytes(base, length)).into_owned());
        check(TRITONSERVER_MessageDelete(message))?;
        text
    }
}

/// The metrics that `call` produces, as text.
pub fn metrics(
    call: impl FnOnce(*mut *mut TRITONSERVER_Metrics) -> PyResult<*mut TRITONSERVER_Error>,
) -> PyResult<String> {
    let mut metrics = ptr::null_mut();
    check(call(&raw mut metrics)?)?;
    let (mut base, mut length) = (ptr::null(), 0);
    // SAFETY: we own the metrics until they are deleted, and their text lives as long.
    unsafe {
        let format = TRITONSERVER_METRIC_PROMETHEUS;
        let formatted = check(TRITONSERVER_MetricsFormatted(metrics, format, &raw mut base, &raw mut length));
        let text = formatted.map(|()| String::from_utf8_lossy(bytes(base, length)).into_owned());
        check(TRITONSERVER_MetricsDelete(metrics))?;
        text
    }
}

/// # Safety
/// `base` points to this many bytes for as long as the result is used, unless it is null.
unsafe fn bytes<'a>(base: *const c_char, length: usize) -> &'a [u8] {
    if base.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(base.cast(), length) }
}

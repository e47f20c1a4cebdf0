//! Strings for C: terminated by a zero byte, so they cannot contain one.

use std::ffi::CString;

/// The text up to its first zero byte, where C stops reading.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

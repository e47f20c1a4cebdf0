//! Strings for C: they end with a zero byte, so they cannot contain one.

use std::ffi::CString;

/// The text up to its first zero byte, which is as far as C would read it.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

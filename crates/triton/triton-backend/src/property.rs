//! Properties that every live object of the server has, so that reading them cannot fail.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};

use triton_sys::TRITONSERVER_Error;

use crate::error::check;

/// Reads a property. The interface refuses only null pointers, and this library passes none. Should a server refuse nevertheless,
/// its error is logged, and `initial` stands in.
///
/// # Safety
/// `get` writes a valid value or returns an error that belongs to the caller.
pub(crate) unsafe fn property<T>(initial: T, get: impl FnOnce(&mut T) -> *mut TRITONSERVER_Error) -> T {
    let mut value = initial;
    // SAFETY: as the caller promises.
    if let Err(error) = unsafe { check(get(&mut value)) } {
        crate::error!("cannot read a property: {error}");
    }
    value
}

/// A string from C, with U+FFFD in place of bytes that are not UTF-8; null is the empty string.
///
/// # Safety
/// `text` is null or points to a zero-terminated string, which lives and does not change during `'a`.
pub(crate) unsafe fn text_lossy<'a>(text: *const c_char) -> Cow<'a, str> {
    if text.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn text_that_is_not_utf_8_is_readable() {
        for (text, expected) in [(c"", ""), (c"ab\u{e9}", "ab\u{e9}"), (c"a\xffb", "a\u{fffd}b")] {
            // SAFETY: the texts are constants.
            assert_eq!(unsafe { text_lossy(text.as_ptr()) }, expected);
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { text_lossy(ptr::null()) }, "");
    }
}

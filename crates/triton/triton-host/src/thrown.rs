//! Exceptions that leave a library's functions, which Triton's interface does not allow.
//!
//! C++ exceptions cannot be caught here, and the state they leave is unknown: the process ends, as in Triton, after it
//! reports the function and its library. The functions' types let exceptions through (`C-unwind`), so that this is
//! sound.

use std::io::{Write, stderr};
use std::process::abort;
use std::{fmt, mem};

use nereid_backend_api::Result;
use triton_sys::TRITONSERVER_Error;

use crate::error;
use crate::handle::Handle;

/// Calls a function of a library that returns an error or null; `whose` names its owner.
///
/// # Errors
/// The function's.
pub(crate) fn call(
    function: &str,
    whose: fmt::Arguments<'_>,
    act: impl FnOnce() -> *mut TRITONSERVER_Error,
) -> Result<()> {
    let watch = Watch { function, whose };
    let outcome = act();
    mem::forget(watch);
    error::from_c(Handle::of(outcome))
}

struct Watch<'a> {
    function: &'a str,
    whose: fmt::Arguments<'a>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // Ignored: an error here cannot be reported.
        let _ = writeln!(
            stderr(),
            "error: {} of {} threw an exception; exceptions must not leave a library, so the server aborts",
            self.function,
            self.whose
        );
        abort()
    }
}

//! Makes the process exit cleanly while libraries of frameworks are in use.
//!
//! A server that stops while models load, or that abandons requests at its exit timeout, exits while other threads are
//! in a library. The C library would destroy the library's statics under them and crash. With a library in use, the
//! process must exit immediately instead.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Uses of libraries.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Held for as long as a library may be running: while a model is loaded, its loading included.
#[derive(Debug)]
pub struct InUse(());

impl InUse {
    /// Starts a use.
    #[expect(clippy::new_without_default, reason = "a use has a beginning, and no default")]
    pub fn new() -> Self {
        IN_USE.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        IN_USE.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: the function is the C library's, with this signature.
unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process with this status if a library is in use, without the destructors of C and C++. Call it where the
/// program ends; it returns if the program can end as usual.
pub fn leave(status: u8) {
    if IN_USE.load(Ordering::SeqCst) > 0 {
        leave_now(status);
    }
}

/// Ends the process with that status, without the destructors of C and C++: threads of libraries may still be running.
pub fn leave_now(status: u8) -> ! {
    // SAFETY: the call is valid for any status at any time, and runs no further code of this program.
    unsafe { _exit(status.into()) }
}

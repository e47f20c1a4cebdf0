//! Makes the process exit cleanly while sessions are alive.
//!
//! A server that stops while models load, or that abandons requests at its exit timeout, exits while other threads are
//! in the library. The C library would destroy the library's statics under them and crash. With a session alive, the
//! process must exit immediately instead.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sessions that are alive or being made.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Held for as long as a session is alive, its making included.
#[derive(Debug)]
pub(crate) struct Alive(());

impl Alive {
    pub(crate) fn new() -> Self {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: the function is the C library's, with this signature.
unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process with that status if a session is alive, without the destructors of C and C++. To be called where
/// the program would end anyway; it returns if that can go its usual way.
pub fn leave(status: u8) {
    if ALIVE.load(Ordering::SeqCst) > 0 {
        leave_now(status);
    }
}

/// Ends the process with that status, without the destructors of C and C++: threads of libraries may still be running.
pub fn leave_now(status: u8) -> ! {
    // SAFETY: it takes any status, at any time, and runs nothing more of this program.
    unsafe { _exit(status.into()) }
}

//! A server, kept alive while anything uses it.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use triton_sys::*;

use crate::errors::{InternalError, UnavailableError, check};

/// The interval at which a waiting thread checks whether the program was interrupted.
pub const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// A server. Its last owner deletes it.
pub struct ServerHandle {
    pointer: AtomicPtr<TRITONSERVER_Server>,
    /// The process that created it. Forked processes lack its threads.
    process: u32,
    stopped: AtomicBool,
}

impl ServerHandle {
    /// Takes ownership of a server.
    pub fn new(server: *mut TRITONSERVER_Server) -> Self {
        let (pointer, process) = (AtomicPtr::new(server), process::id());
        Self { pointer, process, stopped: AtomicBool::new(false) }
    }

    /// The server's pointer, for C functions.
    ///
    /// # Errors
    /// `UnavailableError` in any process except the creator.
    pub fn get(&self) -> PyResult<*mut TRITONSERVER_Server> {
        if self.process != process::id() {
            let reason = format!("the server is in process {}, which this one was forked from", self.process);
            return Err(UnavailableError::new_err(reason));
        }
        Ok(self.pointer.load(Relaxed))
    }

    /// Answers requests in progress, and unloads the models.
    ///
    /// # Errors
    /// Stopping takes longer than the exit timeout. The call may be repeated.
    pub fn stop(&self) -> PyResult<()> {
        // SAFETY: the server is alive.
        check(unsafe { TRITONSERVER_ServerStop(self.get()?) })?;
        self.stopped.store(true, Relaxed);
        Ok(())
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        let server = AtomicPtr::new(self.pointer.swap(ptr::null_mut(), Relaxed));
        // An error cannot be reported here.
        // SAFETY: this is the only owner of the server.
        let delete = move || unsafe { delete_error(TRITONSERVER_ServerDelete(server.into_inner())) };
        if self.stopped.load(Relaxed) {
            delete();
        } else {
            // Deleting it answers requests in progress first, and other threads may wait for this one.
            thread::spawn(delete);
        }
    }
}

/// Deletes an error, if any.
///
/// # Safety
/// The error is the caller's to delete.
unsafe fn delete_error(error: *mut TRITONSERVER_Error) {
    if !error.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { TRITONSERVER_ErrorDelete(error) }
    }
}

/// Runs a long operation without the interpreter's lock, and stops waiting for it when the program is interrupted.
///
/// # Errors
/// The exception that the signal handler raises.
pub fn interruptible<T: Send + 'static>(
    python: Python<'_>,
    act: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, mut outcome) = mpsc::sync_channel(1);
    // The receiver is dropped if the program was interrupted.
    thread::spawn(move || drop(done.send(act())));
    loop {
        let received;
        (outcome, received) = python.detach(move || {
            let received = outcome.recv_timeout(SIGNAL_CHECK);
            (outcome, received)
        });
        match received {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => python.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(InternalError::new_err("a thread of the server panicked"));
            }
        }
    }
}

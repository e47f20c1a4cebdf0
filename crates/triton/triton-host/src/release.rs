//! The release of an inner request: returns it to its maker.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use triton_sys::*;

/// Returns the request to its maker when nothing uses its parts any more.
pub(crate) struct Release {
    function: TRITONSERVER_InferenceRequestReleaseFn_t,
    /// The request's handle.
    request: AtomicPtr<TRITONSERVER_InferenceRequest>,
    userp: AtomicPtr<c_void>,
    /// Cleared if the server did not accept the request, and so does not release it.
    armed: AtomicBool,
}

impl Release {
    /// The release of a request by `function`, once it is armed.
    pub(crate) fn new(
        function: TRITONSERVER_InferenceRequestReleaseFn_t,
        request: *mut TRITONSERVER_InferenceRequest,
        userp: *mut c_void,
    ) -> Self {
        let (request, userp) = (AtomicPtr::new(request), AtomicPtr::new(userp));
        Self { function, request, userp, armed: AtomicBool::new(false) }
    }

    /// The server has taken the request.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Relaxed);
    }

    /// The server has not taken the request after all.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Some(function) = self.function.filter(|_| self.armed.load(Relaxed)) else { return };
        let flags = TRITONSERVER_REQUEST_RELEASE_ALL.0;
        // SAFETY: the function was registered for this call, with these arguments; it is called once.
        unsafe { function(self.request.load(Relaxed), flags, self.userp.load(Relaxed)) }
    }
}

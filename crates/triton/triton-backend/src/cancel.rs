//! An inner request's life, and how it is cancelled.

use std::fmt;
use std::sync::{Arc, Weak};

use triton_sys::*;

use crate::error::{Result, check};

/// A request of ours. It is deleted when it was never sent, or else when the server has released it, the last response
/// is there, and nobody is about to stop it.
pub(crate) struct OwnRequest(*mut TRITONSERVER_InferenceRequest);

// SAFETY: what is shared between threads is only used to stop the request, which may be done on any thread, and to
// delete it when nobody else has it.
unsafe impl Send for OwnRequest {}
// SAFETY: as above.
unsafe impl Sync for OwnRequest {}

impl OwnRequest {
    /// # Safety
    /// The request was made for us.
    pub(crate) unsafe fn new(handle: *mut TRITONSERVER_InferenceRequest) -> Self {
        Self(handle)
    }

    pub(crate) fn handle(&self) -> *mut TRITONSERVER_InferenceRequest {
        self.0
    }
}

impl Drop for OwnRequest {
    fn drop(&mut self) {
        // SAFETY: the request is ours and not used after this. There is nothing to be done where it stays.
        drop(unsafe { check(TRITONSERVER_InferenceRequestDelete(self.0)) });
    }
}

/// Stops a request that was sent to another model. It does nothing once the request has ended.
#[derive(Clone)]
pub struct Canceller(Weak<OwnRequest>);

impl Canceller {
    pub(crate) fn new(request: &Arc<OwnRequest>) -> Self {
        Self(Arc::downgrade(request))
    }

    /// Cancels the request. It may be answered all the same.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn cancel(&self) -> Result<()> {
        let Some(request) = self.0.upgrade() else { return Ok(()) };
        // SAFETY: the request was sent, and lives as long as it is held here.
        unsafe { check(TRITONSERVER_InferenceRequestCancel(request.handle())) }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canceller")
    }
}

//! The life of an inner request, and its cancellation.

use std::fmt;
use std::sync::{Arc, Weak};

use triton_sys::*;

use crate::error::{Result, check};

/// An inner request. It is deleted if it was never sent, or once the server has released it, the last response has
/// arrived, and no canceller uses it.
pub(crate) struct OwnRequest(*mut TRITONSERVER_InferenceRequest);

// SAFETY: threads share it only to cancel the request, which any thread may do, and the last owner deletes it.
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
        // SAFETY: the request is ours and not used after this. A failed deletion has no remedy.
        drop(unsafe { check(TRITONSERVER_InferenceRequestDelete(self.0)) });
    }
}

/// Cancels a request to another model. Has no effect once the request has ended.
#[derive(Clone)]
pub struct Canceller(Weak<OwnRequest>);

impl Canceller {
    pub(crate) fn new(request: &Arc<OwnRequest>) -> Self {
        Self(Arc::downgrade(request))
    }

    /// Cancels the request. The model may answer it nevertheless.
    ///
    /// # Errors
    /// The server's error.
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

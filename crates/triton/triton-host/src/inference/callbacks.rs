//! Callbacks of an inner request: its release, output placement and responses. Only the release callback is called
//! here.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use nereid_backend_api::Result;
use nereid_cuda::Cuda;
use triton_sys::*;

use super::InferenceRequest;
use crate::allocator::{Allocator, Placement};
use crate::boundary::exports;
use crate::handle::Handle;

/// The request's callbacks.
pub(crate) struct Callbacks {
    release: TRITONSERVER_InferenceRequestReleaseFn_t,
    release_userp: AtomicPtr<c_void>,
    allocator: Handle<Allocator>,
    allocator_userp: AtomicPtr<c_void>,
    pub complete: TRITONSERVER_InferenceResponseCompleteFn_t,
    pub complete_userp: AtomicPtr<c_void>,
}

impl Callbacks {
    /// Callbacks of a request that has none.
    pub(super) fn none() -> Self {
        Self {
            release: None,
            release_userp: AtomicPtr::default(),
            allocator: Handle::null(),
            allocator_userp: AtomicPtr::default(),
            complete: None,
            complete_userp: AtomicPtr::default(),
        }
    }

    /// Releases the request, once it is armed.
    pub(super) fn release(&self, request: Handle<InferenceRequest>) -> Arc<Release> {
        Arc::new(Release {
            function: self.release,
            request,
            userp: AtomicPtr::new(self.release_userp.load(Relaxed)),
            armed: AtomicBool::new(false),
        })
    }

    /// The placement of outputs, which holds off the release of the request.
    ///
    /// # Errors
    /// The request has no allocator.
    pub(super) fn placement(
        &self,
        release: &Arc<Release>,
        cuda: Option<&Arc<Cuda>>,
    ) -> Result<Arc<Placement>> {
        let userp = self.allocator_userp.load(Relaxed);
        Placement::new(self.allocator, userp, Arc::clone(release), cuda.cloned()).map(Arc::new)
    }
}

/// Returns the request to its maker when nothing uses its parts any more.
pub(crate) struct Release {
    function: TRITONSERVER_InferenceRequestReleaseFn_t,
    request: Handle<InferenceRequest>,
    userp: AtomicPtr<c_void>,
    /// Cleared if the server did not accept the request, and so does not release it.
    armed: AtomicBool,
}

impl Release {
    /// The server has taken the request.
    pub(super) fn arm(&self) {
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
        unsafe { function(self.request.as_c(), flags, self.userp.load(Relaxed)) }
    }
}

exports! {
    fn TRITONSERVER_InferenceRequestSetReleaseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        request_release_fn: TRITONSERVER_InferenceRequestReleaseFn_t,
        request_release_userp: *mut c_void,
    ) {
        let request = inference_request.get()?;
        let mut fields = request.fields();
        let callbacks = &mut fields.callbacks;
        callbacks.release = request_release_fn;
        callbacks.release_userp = AtomicPtr::new(request_release_userp);
    }

    fn TRITONSERVER_InferenceRequestSetResponseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        response_allocator: *mut TRITONSERVER_ResponseAllocator,
        response_allocator_userp: *mut c_void,
        response_fn: TRITONSERVER_InferenceResponseCompleteFn_t,
        response_userp: *mut c_void,
    ) {
        response_allocator.get()?;
        let request = inference_request.get()?;
        let mut fields = request.fields();
        let callbacks = &mut fields.callbacks;
        callbacks.allocator = response_allocator;
        callbacks.allocator_userp = AtomicPtr::new(response_allocator_userp);
        callbacks.complete = response_fn;
        callbacks.complete_userp = AtomicPtr::new(response_userp);
    }
}

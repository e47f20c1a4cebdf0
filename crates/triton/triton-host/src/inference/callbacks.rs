//! Callbacks of an inner request: its release, output placement and responses. None is called here.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use nereid_backend_api::Result;
use nereid_cuda::Cuda;
use triton_sys::*;

use super::InferenceRequest;
use crate::allocator::{Allocator, Placement};
use crate::boundary::exports;
use crate::handle::Handle;
use crate::release::Release;

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
        Arc::new(Release::new(self.release, request.as_c(), self.release_userp.load(Relaxed)))
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

//! Batching libraries, which choose the requests of a batch.

use std::any::Any;
use std::ffi::c_void;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::time::Instant;

use nereid_backend_api::{
    Answer, BatchBuilder, CustomBatching, InferRequest, Phase, Request, Responder, ResponseSink, Result,
};
use triton_sys::*;

use crate::handle::{Handle, LentHandle};
use crate::library::{BatchEntries, open_batcher};
use crate::model::ModelObject;
use crate::reply::Reply;
use crate::request::RequestObject;
use crate::thrown::call;

/// A batching library, initialized for a model.
pub(crate) struct Batcher {
    entries: BatchEntries,
    /// The library's own object.
    batcher: AtomicPtr<TRITONBACKEND_Batcher>,
    /// The library may use its model until it is finalized.
    _model: Arc<dyn Any + Send + Sync>,
}

impl Batcher {
    /// `None` if the library exports no batching function.
    pub(crate) fn load(
        path: &Path,
        keep: Arc<dyn Any + Send + Sync>,
        model: Handle<ModelObject>,
    ) -> Result<Option<Self>> {
        tracing::info!("loading the batching library '{}'", path.display());
        let Some(entries) = open_batcher(path)? else {
            tracing::warn!("'{}' exports no batching function; the server forms the batches", path.display());
            return Ok(None);
        };
        let mut batcher = ptr::null_mut();
        // SAFETY: a handle of the kind that the function takes, and a place for its result.
        let act = || unsafe { (entries.initialize)(&raw mut batcher, model.as_c()) };
        call("TRITONBACKEND_ModelBatcherInitialize", format_args!("a batching library"), act)?;
        Ok(Some(Self { entries, batcher: AtomicPtr::new(batcher), _model: keep }))
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        // SAFETY: the library's own object, finalized once.
        let act = || unsafe { (self.entries.finalize)(self.batcher.load(Relaxed)) };
        if let Err(error) =
            call("TRITONBACKEND_ModelBatcherFinalize", format_args!("a batching library"), act)
        {
            tracing::warn!("a batching library failed to finalize: {error}");
        }
    }
}

/// Makes the library available to the scheduler.
pub(crate) struct Batching(pub Arc<Batcher>);

impl CustomBatching for Batching {
    fn begin(&self) -> Box<dyn BatchBuilder> {
        let mut batch = ptr::null_mut();
        // SAFETY: the library's own object, and a place for the function's result.
        let act = || unsafe { (self.0.entries.begin)(self.0.batcher.load(Relaxed), &raw mut batch) };
        let begun = call("TRITONBACKEND_ModelBatchInitialize", format_args!("a batching library"), act);
        if let Err(error) = &begun {
            tracing::error!(
                "a batching library failed to begin a batch, which the server forms instead: {error}"
            );
        }
        let batch = begun.is_ok().then(|| AtomicPtr::new(batch));
        Box::new(LibraryBatch { batcher: Arc::clone(&self.0), batch })
    }
}

struct LibraryBatch {
    batcher: Arc<Batcher>,
    /// The library's own object; `None` after a failure.
    batch: Option<AtomicPtr<c_void>>,
}

impl BatchBuilder for LibraryBatch {
    fn include(&mut self, request: &Request) -> bool {
        let Some(batch) = &self.batch else { return true };
        let asked = view(request).and_then(|view| {
            let mut include = false;
            // SAFETY: a handle of the kind that the function takes, alive until it returns; the library's own object;
            // and a place for the function's result.
            let act = || unsafe {
                (self.batcher.entries.include)(view.handle().as_c(), batch.load(Relaxed), &raw mut include)
            };
            call("TRITONBACKEND_ModelBatchIncludeRequest", format_args!("a batching library"), act)
                .map(|()| include)
        });
        asked.unwrap_or_else(|error| {
            tracing::error!("a batching library failed on a request, which goes into another batch: {error}");
            false
        })
    }
}

impl Drop for LibraryBatch {
    fn drop(&mut self) {
        let Some(batch) = &self.batch else { return };
        // SAFETY: the library's own object, finalized once.
        let act = || unsafe { (self.batcher.entries.end)(batch.load(Relaxed)) };
        if let Err(error) = call("TRITONBACKEND_ModelBatchFinalize", format_args!("a batching library"), act)
        {
            tracing::error!("a batching library failed to end a batch: {error}");
        }
    }
}

/// A view of a waiting request for inspection: shares its tensors; answers to it are dropped.
fn view(request: &Request) -> Result<LentHandle<RequestObject>> {
    let copy = InferRequest {
        id: request.id.clone(),
        inputs: request.inputs.clone(),
        policy_contents: request.policy_contents.clone(),
        outputs: request.outputs.clone(),
        parameters: request.parameters.clone(),
        correlation_id: request.correlation_id.clone(),
        sequence: request.sequence,
        priority: request.priority,
        timeout: request.timeout,
        deadline: request.deadline,
        flow: request.flow,
        allocator: None,
        // The backend does not own a request that a batcher inspects.
        trace: None,
    };
    let reply = Reply::new(Responder::new(Arc::new(Nowhere), None), Arc::default());
    LentHandle::new(Arc::new(RequestObject::new(copy, reply)?))
}

struct Nowhere;

impl ResponseSink for Nowhere {
    fn deliver(&self, _: Option<Answer>, _: bool) {}

    fn mark(&self, _: Phase, _: Instant) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

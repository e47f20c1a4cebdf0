//! Custom batching: a library `batchstrategy.so` in the folder of a model or a backend.
//!
//! The server calls it while it holds its queue's lock, so it must be quick.

use std::ffi::c_void;
use std::ptr;

use triton_sys::*;

use crate::context::ModelContext;
use crate::entry::guard;
use crate::error::{Error, Result};
use crate::request::RequestInfo;

/// Batching rules of a model with `dynamic_batching`.
pub trait BatchStrategy: Sized + Send + Sync + 'static {
    /// The rules' state for a batch being formed.
    type Batch: Send + 'static;

    /// Called when the model is loaded.
    ///
    /// # Errors
    /// The rules cannot be used; the model is not loaded.
    fn start(context: &ModelContext<'_>) -> Result<Self>;

    /// Called when a new batch begins.
    ///
    /// # Errors
    /// No batch can be formed; requests are then executed one by one.
    fn begin(&self) -> Result<Self::Batch>;

    /// Whether a request joins the batch. A refused request ends the batch.
    ///
    /// # Errors
    /// Logged; the request does not join.
    fn include(batch: &mut Self::Batch, request: &RequestInfo) -> Result<bool>;
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelBatcherInitialize`.
pub unsafe fn initialize<S: BatchStrategy>(
    batcher: *mut *mut TRITONBACKEND_Batcher,
    model: *mut TRITONBACKEND_Model,
) -> *mut TRITONSERVER_Error {
    guard("starting the batch strategy", || {
        // SAFETY: the model lives during the call, and the address may be written.
        unsafe {
            *batcher = ptr::null_mut();
            *batcher = Box::into_raw(Box::new(S::start(&ModelContext::new(model)?)?)).cast();
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelBatcherFinalize`.
pub unsafe fn finalize<S: BatchStrategy>(batcher: *mut TRITONBACKEND_Batcher) -> *mut TRITONSERVER_Error {
    guard("ending the batch strategy", || {
        if !batcher.is_null() {
            // SAFETY: the box of `initialize`, not used after this.
            drop(unsafe { Box::from_raw(batcher.cast::<S>()) });
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelBatchInitialize`.
pub unsafe fn batch_initialize<S: BatchStrategy>(
    batcher: *const TRITONBACKEND_Batcher,
    batch: *mut *mut c_void,
) -> *mut TRITONSERVER_Error {
    guard("beginning a batch", || {
        // SAFETY: null or the box of `initialize`, which lives and is only ever shared; the address may be written.
        unsafe {
            *batch = ptr::null_mut();
            let strategy = batcher
                .cast::<S>()
                .as_ref()
                .ok_or_else(|| Error::internal("the batch strategy was never initialized"))?;
            *batch = Box::into_raw(Box::new(strategy.begin()?)).cast();
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelBatchIncludeRequest`.
pub unsafe fn batch_include<S: BatchStrategy>(
    request: *mut TRITONBACKEND_Request,
    batch: *mut c_void,
    include: *mut bool,
) -> *mut TRITONSERVER_Error {
    guard("adding a request to a batch", || {
        // SAFETY: the request lives during the call; the batch is null or the box of `batch_initialize`, which the
        // server uses on one thread at a time; the address may be written.
        unsafe {
            *include = false;
            let batch =
                batch.cast::<S::Batch>().as_mut().ok_or_else(|| Error::internal("the batch never began"))?;
            *include = S::include(batch, &RequestInfo::new(request))?;
        }
        Ok(())
    })
}

/// # Safety
/// As the server calls `TRITONBACKEND_ModelBatchFinalize`.
pub unsafe fn batch_finalize<S: BatchStrategy>(batch: *mut c_void) -> *mut TRITONSERVER_Error {
    guard("ending a batch", || {
        if !batch.is_null() {
            // SAFETY: the box of `batch_initialize`, not used after this.
            drop(unsafe { Box::from_raw(batch.cast::<S::Batch>()) });
        }
        Ok(())
    })
}

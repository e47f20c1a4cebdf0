//! The functions of a backend: types only, since the server looks them up by name.
//!
//! `Execute` is required; the functions for custom batching come together or not at all.

use std::ffi::c_void;

use crate::handles::*;

signatures! {
    "C-unwind";
    fn TRITONBACKEND_Initialize(backend: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_Finalize(backend: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_GetBackendAttribute(
        backend: *mut TRITONBACKEND_Backend,
        backend_attributes: *mut TRITONBACKEND_BackendAttribute,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelInitialize(model: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelFinalize(model: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelInstanceInitialize(
        instance: *mut TRITONBACKEND_ModelInstance,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelInstanceFinalize(
        instance: *mut TRITONBACKEND_ModelInstance,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelInstanceExecute(
        instance: *mut TRITONBACKEND_ModelInstance,
        requests: *mut *mut TRITONBACKEND_Request,
        request_count: u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelInstanceReady(
        instance: *mut TRITONBACKEND_ModelInstance,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelBatcherInitialize(
        batcher: *mut *mut TRITONBACKEND_Batcher,
        model: *mut TRITONBACKEND_Model,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelBatcherFinalize(batcher: *mut TRITONBACKEND_Batcher) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelBatchIncludeRequest(
        request: *mut TRITONBACKEND_Request,
        userp: *mut c_void,
        should_include: *mut bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelBatchInitialize(
        batcher: *const TRITONBACKEND_Batcher,
        userp: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONBACKEND_ModelBatchFinalize(userp: *mut c_void) -> *mut TRITONSERVER_Error;
}

//! States that a model keeps between the requests of a sequence.
//!
//! They belong to sequence batching, which there is not: no request has any, so none can be made.

use triton_sys::*;

use crate::boundary::exports;
use nereid_backend_api::Error;
use std::ffi::{c_char, c_void};

/// A state in C's hands: there is none.
pub(crate) enum State {}

exports! {
    fn TRITONBACKEND_StateNew(
        _state: *mut *mut TRITONBACKEND_State,
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        _datatype: TRITONSERVER_DataType,
        _shape: *const i64,
        _dims_count: u32,
    ) {
        let model = request.get()?.model_name().to_owned();
        return Err(Error::invalid_arg(format!(
            "there is no state '{}': the configuration of model '{model}' has no states",
            name.read_if_given().unwrap_or_default()
        )));
    }

    fn TRITONBACKEND_StateUpdate(state: *mut TRITONBACKEND_State) {
        match *state.get()? {}
    }

    fn TRITONBACKEND_StateBuffer(
        state: *mut TRITONBACKEND_State,
        _buffer: *mut *mut c_void,
        _buffer_byte_size: u64,
        _memory_type: *mut TRITONSERVER_MemoryType,
        _memory_type_id: *mut i64,
    ) {
        match *state.get()? {}
    }

    fn TRITONBACKEND_StateBufferAttributes(
        state: *mut TRITONBACKEND_State,
        _buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        match *state.get()? {}
    }
}

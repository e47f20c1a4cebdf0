//! Callbacks from the server. A null pointer is `None`.

use std::ffi::{c_char, c_int, c_void};

use crate::{enums::*, handles::*};

/// Places an output. An empty buffer may be null.
pub type TRITONSERVER_ResponseAllocatorAllocFn_t = Option<
    unsafe extern "C" fn(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        tensor_name: *const c_char,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        userp: *mut c_void,
        buffer: *mut *mut c_void,
        buffer_userp: *mut *mut c_void,
        actual_memory_type: *mut TRITONSERVER_MemoryType,
        actual_memory_type_id: *mut i64,
    ) -> *mut TRITONSERVER_Error,
>;

/// Sets further attributes of a placed buffer.
pub type TRITONSERVER_ResponseAllocatorBufferAttributesFn_t = Option<
    unsafe extern "C" fn(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        tensor_name: *const c_char,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        userp: *mut c_void,
        buffer_userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error,
>;

/// Queries the best memory for an output; name and size may be null.
pub type TRITONSERVER_ResponseAllocatorQueryFn_t = Option<
    unsafe extern "C" fn(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        userp: *mut c_void,
        tensor_name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) -> *mut TRITONSERVER_Error,
>;

/// Releases a buffer.
pub type TRITONSERVER_ResponseAllocatorReleaseFn_t = Option<
    unsafe extern "C" fn(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        buffer: *mut c_void,
        buffer_userp: *mut c_void,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) -> *mut TRITONSERVER_Error,
>;

/// Called before the outputs of a new response.
pub type TRITONSERVER_ResponseAllocatorStartFn_t = Option<
    unsafe extern "C" fn(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error,
>;

/// Called for each event.
pub type TRITONSERVER_InferenceTraceActivityFn_t = Option<
    unsafe extern "C" fn(
        trace: *mut TRITONSERVER_InferenceTrace,
        activity: TRITONSERVER_InferenceTraceActivity,
        timestamp_ns: u64,
        userp: *mut c_void,
    ),
>;

/// Called for each tensor.
pub type TRITONSERVER_InferenceTraceTensorActivityFn_t = Option<
    unsafe extern "C" fn(
        trace: *mut TRITONSERVER_InferenceTrace,
        activity: TRITONSERVER_InferenceTraceActivity,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        base: *const c_void,
        byte_size: usize,
        shape: *const i64,
        dim_count: u64,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        userp: *mut c_void,
    ),
>;

/// Called at the end of a trace. Owns the trace from then on.
pub type TRITONSERVER_InferenceTraceReleaseFn_t =
    Option<unsafe extern "C" fn(trace: *mut TRITONSERVER_InferenceTrace, userp: *mut c_void)>;

/// Called when the server releases a request, with the release flags.
pub type TRITONSERVER_InferenceRequestReleaseFn_t =
    Option<unsafe extern "C" fn(request: *mut TRITONSERVER_InferenceRequest, flags: u32, userp: *mut c_void)>;

/// Called with a response, which may be null if the flags mark the end.
pub type TRITONSERVER_InferenceResponseCompleteFn_t = Option<
    unsafe extern "C" fn(response: *mut TRITONSERVER_InferenceResponse, flags: u32, userp: *mut c_void),
>;

/// Called with each log message, on any thread; the time is in microseconds since 1970.
pub type TRITONSERVER_LogCallbackFn_t = Option<
    unsafe extern "C" fn(
        level: TRITONSERVER_LogLevel,
        filename: *const c_char,
        line: c_int,
        timestamp_us: u64,
        message: *const c_char,
        userp: *mut c_void,
    ),
>;

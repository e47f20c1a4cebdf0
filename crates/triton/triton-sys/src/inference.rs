//! Inner requests, the placement of their outputs, and their traces.

use std::ffi::{c_char, c_void};

use crate::{callbacks::*, enums::*, handles::*};

declare! {
    // Allocators of outputs.
    fn TRITONSERVER_ResponseAllocatorNew(
        allocator: *mut *mut TRITONSERVER_ResponseAllocator,
        alloc_fn: TRITONSERVER_ResponseAllocatorAllocFn_t,
        release_fn: TRITONSERVER_ResponseAllocatorReleaseFn_t,
        start_fn: TRITONSERVER_ResponseAllocatorStartFn_t,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        buffer_attributes_fn: TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
        allocator: *mut TRITONSERVER_ResponseAllocator,
        query_fn: TRITONSERVER_ResponseAllocatorQueryFn_t,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ResponseAllocatorDelete(
        allocator: *mut TRITONSERVER_ResponseAllocator,
    ) -> *mut TRITONSERVER_Error;

    // A request: its properties.
    fn TRITONSERVER_InferenceRequestNew(
        inference_request: *mut *mut TRITONSERVER_InferenceRequest,
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestDelete(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestCancel(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestIsCancelled(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        is_cancelled: *mut bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: *mut u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetStringParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetIntParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetBoolParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetDoubleParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: f64,
    ) -> *mut TRITONSERVER_Error;

    // A request: its inputs and requested outputs. Data is not copied, and must live until the release of the
    // request.
    fn TRITONSERVER_InferenceRequestAddInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dim_count: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestAddRawInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestRemoveInput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestRemoveAllInputs(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestAppendInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        host_policy_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
        base: *const c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestRemoveAllInputData(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestAddRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestRemoveRequestedOutput(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
        inference_request: *mut TRITONSERVER_InferenceRequest,
    ) -> *mut TRITONSERVER_Error;

    // A request: its release and response callbacks.
    fn TRITONSERVER_InferenceRequestSetReleaseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        request_release_fn: TRITONSERVER_InferenceRequestReleaseFn_t,
        request_release_userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceRequestSetResponseCallback(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        response_allocator: *mut TRITONSERVER_ResponseAllocator,
        response_allocator_userp: *mut c_void,
        response_fn: TRITONSERVER_InferenceResponseCompleteFn_t,
        response_userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;

    // A response.
    fn TRITONSERVER_InferenceResponseDelete(
        inference_response: *mut TRITONSERVER_InferenceResponse,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseError(
        inference_response: *mut TRITONSERVER_InferenceResponse,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseModel(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        model_name: *mut *const c_char,
        model_version: *mut i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseId(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        request_id: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseParameterCount(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseParameter(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        r#type: *mut TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseOutputCount(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        count: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseOutput(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
        base: *mut *const c_void,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
        userp: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceResponseOutputClassificationLabel(
        inference_response: *mut TRITONSERVER_InferenceResponse,
        index: u32,
        class_index: usize,
        label: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;

    // A trace.
    fn TRITONSERVER_InferenceTraceLevelString(level: TRITONSERVER_InferenceTraceLevel) -> *const c_char;
    fn TRITONSERVER_InferenceTraceActivityString(
        activity: TRITONSERVER_InferenceTraceActivity,
    ) -> *const c_char;
    fn TRITONSERVER_InferenceTraceNew(
        trace: *mut *mut TRITONSERVER_InferenceTrace,
        level: TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
        release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceTensorNew(
        trace: *mut *mut TRITONSERVER_InferenceTrace,
        level: TRITONSERVER_InferenceTraceLevel,
        parent_id: u64,
        activity_fn: TRITONSERVER_InferenceTraceActivityFn_t,
        tensor_activity_fn: TRITONSERVER_InferenceTraceTensorActivityFn_t,
        release_fn: TRITONSERVER_InferenceTraceReleaseFn_t,
        trace_userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceReportActivity(
        trace: *mut TRITONSERVER_InferenceTrace,
        timestamp: u64,
        activity_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceDelete(
        trace: *mut TRITONSERVER_InferenceTrace,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceId(
        trace: *mut TRITONSERVER_InferenceTrace,
        id: *mut u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceParentId(
        trace: *mut TRITONSERVER_InferenceTrace,
        parent_id: *mut u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceModelName(
        trace: *mut TRITONSERVER_InferenceTrace,
        model_name: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceModelVersion(
        trace: *mut TRITONSERVER_InferenceTrace,
        model_version: *mut i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceRequestId(
        trace: *mut TRITONSERVER_InferenceTrace,
        request_id: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceSpawnChildTrace(
        trace: *mut TRITONSERVER_InferenceTrace,
        child_trace: *mut *mut TRITONSERVER_InferenceTrace,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceSetContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_InferenceTraceContext(
        trace: *mut TRITONSERVER_InferenceTrace,
        trace_context: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
}

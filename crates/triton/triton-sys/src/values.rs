//! Values that both sides exchange: errors, messages, parameters, types, buffer attributes; the log and metrics.

use std::ffi::{c_char, c_int, c_void};

use crate::{enums::*, handles::*};

declare! {
    // The version of the interface.
    fn TRITONSERVER_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;

    // Errors. A null pointer is success; the receiver of an error deletes it, unless its owner is stated.
    fn TRITONSERVER_ErrorNew(code: TRITONSERVER_Error_Code, msg: *const c_char) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ErrorDelete(error: *mut TRITONSERVER_Error);
    fn TRITONSERVER_ErrorCode(error: *mut TRITONSERVER_Error) -> TRITONSERVER_Error_Code;
    fn TRITONSERVER_ErrorCodeString(error: *mut TRITONSERVER_Error) -> *const c_char;
    fn TRITONSERVER_ErrorMessage(error: *mut TRITONSERVER_Error) -> *const c_char;

    // JSON documents. The returned text lives as long as its message.
    fn TRITONSERVER_MessageNewFromSerializedJson(
        message: *mut *mut TRITONSERVER_Message,
        base: *const c_char,
        byte_size: usize,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MessageDelete(message: *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MessageSerializeToJson(
        message: *mut TRITONSERVER_Message,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) -> *mut TRITONSERVER_Error;

    // Parameters: a name and a typed value, both copied.
    fn TRITONSERVER_ParameterNew(
        name: *const c_char,
        r#type: TRITONSERVER_ParameterType,
        value: *const c_void,
    ) -> *mut TRITONSERVER_Parameter;
    fn TRITONSERVER_ParameterBytesNew(
        name: *const c_char,
        byte_ptr: *const c_void,
        size: u64,
    ) -> *mut TRITONSERVER_Parameter;
    fn TRITONSERVER_ParameterDelete(parameter: *mut TRITONSERVER_Parameter);

    // Names and sizes of types. The texts are static; an unknown type is "<invalid>" or null.
    fn TRITONSERVER_DataTypeString(datatype: TRITONSERVER_DataType) -> *const c_char;
    fn TRITONSERVER_StringToDataType(dtype: *const c_char) -> TRITONSERVER_DataType;
    fn TRITONSERVER_DataTypeByteSize(datatype: TRITONSERVER_DataType) -> u32;
    fn TRITONSERVER_MemoryTypeString(memtype: TRITONSERVER_MemoryType) -> *const c_char;
    fn TRITONSERVER_ParameterTypeString(paramtype: TRITONSERVER_ParameterType) -> *const c_char;
    fn TRITONSERVER_InstanceGroupKindString(kind: TRITONSERVER_InstanceGroupKind) -> *const c_char;

    // The memory and size of a buffer.
    fn TRITONSERVER_BufferAttributesNew(
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesDelete(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesSetMemoryTypeId(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type_id: i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesSetMemoryType(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type: TRITONSERVER_MemoryType,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesSetCudaIpcHandle(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesSetByteSize(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        byte_size: usize,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesMemoryTypeId(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type_id: *mut i64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesMemoryType(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        memory_type: *mut TRITONSERVER_MemoryType,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesCudaIpcHandle(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        cuda_ipc_handle: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_BufferAttributesByteSize(
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
        byte_size: *mut usize,
    ) -> *mut TRITONSERVER_Error;

    // The server's log.
    fn TRITONSERVER_LogIsEnabled(level: TRITONSERVER_LogLevel) -> bool;
    fn TRITONSERVER_LogMessage(
        level: TRITONSERVER_LogLevel,
        filename: *const c_char,
        line: c_int,
        msg: *const c_char,
    ) -> *mut TRITONSERVER_Error;

    // Metrics of a backend. A family outlives its metrics.
    fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut TRITONSERVER_MetricFamily,
        kind: TRITONSERVER_MetricKind,
        name: *const c_char,
        description: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricFamilyDelete(family: *mut TRITONSERVER_MetricFamily) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_GetMetricFamilyKind(
        family: *mut TRITONSERVER_MetricFamily,
        kind: *mut TRITONSERVER_MetricKind,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricArgsNew(args: *mut *mut TRITONSERVER_MetricArgs) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricArgsSetHistogram(
        args: *mut TRITONSERVER_MetricArgs,
        buckets: *const f64,
        buckets_count: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricArgsDelete(args: *mut TRITONSERVER_MetricArgs) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricNew(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricNewWithArgs(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
        args: *const TRITONSERVER_MetricArgs,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricDelete(metric: *mut TRITONSERVER_Metric) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricValue(
        metric: *mut TRITONSERVER_Metric,
        value: *mut f64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricIncrement(
        metric: *mut TRITONSERVER_Metric,
        value: f64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricSet(metric: *mut TRITONSERVER_Metric, value: f64) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricObserve(metric: *mut TRITONSERVER_Metric, value: f64) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_GetMetricKind(
        metric: *mut TRITONSERVER_Metric,
        kind: *mut TRITONSERVER_MetricKind,
    ) -> *mut TRITONSERVER_Error;
}

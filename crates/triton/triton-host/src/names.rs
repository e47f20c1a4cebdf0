//! The headers' enumerations: names, sizes, and their counterparts on this side.

use std::ffi::{CStr, c_char};
use std::ptr;

use nereid_backend_api::{DataType, Error, InstanceKind, Memory, MemoryKind, Result};
use triton_sys::*;

use crate::boundary::values;

/// The names of all element types: C's number is the index.
const DATA_TYPES: [&CStr; 15] = [
    c"<invalid>",
    c"BOOL",
    c"UINT8",
    c"UINT16",
    c"UINT32",
    c"UINT64",
    c"INT8",
    c"INT16",
    c"INT32",
    c"INT64",
    c"FP16",
    c"FP32",
    c"FP64",
    c"BYTES",
    c"BF16",
];

/// C's number of a type.
pub(crate) fn data_type_to_c(data_type: DataType) -> TRITONSERVER_DataType {
    TRITONSERVER_DataType(data_type.number().into())
}

/// The type with that number.
pub(crate) fn data_type_from_c(data_type: TRITONSERVER_DataType) -> Result<DataType> {
    let known = u8::try_from(data_type.0).ok().and_then(DataType::from_number);
    known.ok_or_else(|| Error::invalid_arg(format!("unknown datatype {}", data_type.0)))
}

/// C's number of a kind of memory.
pub(crate) fn memory_to_c(memory: Memory) -> TRITONSERVER_MemoryType {
    TRITONSERVER_MemoryType(memory.kind as u32)
}

/// The memory with that number.
pub(crate) fn memory_from_c(kind: TRITONSERVER_MemoryType, device: i64) -> Result<Memory> {
    let kind = match kind {
        TRITONSERVER_MEMORY_CPU => MemoryKind::Cpu,
        TRITONSERVER_MEMORY_CPU_PINNED => MemoryKind::CpuPinned,
        TRITONSERVER_MEMORY_GPU => MemoryKind::Gpu,
        other => {
            return Err(Error::invalid_arg(format!("unknown memory kind {}", other.0)));
        }
    };
    Ok(Memory { kind, device })
}

/// C's number of an instance's kind, and the number of its device.
pub(crate) fn kind_to_c(kind: InstanceKind) -> (TRITONSERVER_InstanceGroupKind, i32) {
    match kind {
        InstanceKind::Cpu => (TRITONSERVER_INSTANCEGROUPKIND_CPU, 0),
        InstanceKind::Gpu(device) => (TRITONSERVER_INSTANCEGROUPKIND_GPU, device),
        InstanceKind::Model => (TRITONSERVER_INSTANCEGROUPKIND_MODEL, 0),
    }
}

values! {
    fn TRITONSERVER_DataTypeString(datatype: TRITONSERVER_DataType) -> *const c_char = c"<invalid>".as_ptr(); {
        DATA_TYPES.get(datatype.0 as usize).copied().unwrap_or(c"<invalid>").as_ptr()
    }

    fn TRITONSERVER_StringToDataType(dtype: *const c_char) -> TRITONSERVER_DataType = TRITONSERVER_TYPE_INVALID; {
        let name = dtype.read()?;
        DataType::from_protocol_name(&name).map_or(TRITONSERVER_TYPE_INVALID, data_type_to_c)
    }

    fn TRITONSERVER_DataTypeByteSize(datatype: TRITONSERVER_DataType) -> u32 = 0; {
        let size = data_type_from_c(datatype)?.byte_size().unwrap_or(0);
        u32::try_from(size).unwrap_or(0)
    }

    fn TRITONSERVER_MemoryTypeString(memtype: TRITONSERVER_MemoryType) -> *const c_char = c"<invalid>".as_ptr(); {
        [c"CPU", c"CPU_PINNED", c"GPU"].get(memtype.0 as usize).copied().unwrap_or(c"<invalid>").as_ptr()
    }

    fn TRITONSERVER_ParameterTypeString(paramtype: TRITONSERVER_ParameterType) -> *const c_char = c"<invalid>".as_ptr(); {
        let names = [c"STRING", c"INT", c"BOOL", c"DOUBLE", c"BYTES"];
        names.get(paramtype.0 as usize).copied().unwrap_or(c"<invalid>").as_ptr()
    }

    fn TRITONSERVER_InstanceGroupKindString(kind: TRITONSERVER_InstanceGroupKind) -> *const c_char
        = c"<invalid>".as_ptr(); {
        [c"AUTO", c"CPU", c"GPU", c"MODEL"].get(kind.0 as usize).copied().unwrap_or(c"<invalid>").as_ptr()
    }

    fn TRITONSERVER_InferenceTraceLevelString(level: TRITONSERVER_InferenceTraceLevel) -> *const c_char = ptr::null(); {
        match level {
            TRITONSERVER_TRACE_LEVEL_DISABLED => c"DISABLED",
            TRITONSERVER_TRACE_LEVEL_MIN => c"MIN",
            TRITONSERVER_TRACE_LEVEL_MAX => c"MAX",
            TRITONSERVER_TRACE_LEVEL_TIMESTAMPS => c"TIMESTAMPS",
            TRITONSERVER_TRACE_LEVEL_TENSORS => c"TENSORS",
            _ => c"<unknown>",
        }
        .as_ptr()
    }

    fn TRITONSERVER_InferenceTraceActivityString(activity: TRITONSERVER_InferenceTraceActivity) -> *const c_char
        = ptr::null(); {
        let names = [
            c"REQUEST_START", c"QUEUE_START", c"COMPUTE_START", c"COMPUTE_INPUT_END", c"COMPUTE_OUTPUT_START",
            c"COMPUTE_END", c"REQUEST_END", c"TENSOR_QUEUE_INPUT", c"TENSOR_BACKEND_INPUT", c"TENSOR_BACKEND_OUTPUT",
            c"CUSTOM_ACTIVITY",
        ];
        names.get(activity.0 as usize).copied().unwrap_or(c"<unknown>").as_ptr()
    }
}

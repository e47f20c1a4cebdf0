//! Checks that need no headers: sizes, values, unique names.

use std::collections::BTreeSet;
use std::mem::{align_of, size_of};

use crate::enums::ALL;
use crate::*;

#[test]
fn enums_have_the_size_of_c() {
    assert_eq!(size_of::<TRITONSERVER_DataType>(), size_of::<std::ffi::c_uint>());
    assert_eq!(align_of::<TRITONSERVER_DataType>(), align_of::<std::ffi::c_uint>());
}

#[test]
fn callbacks_are_nullable_pointers() {
    assert_eq!(size_of::<TRITONSERVER_ResponseAllocatorAllocFn_t>(), size_of::<*const u8>());
    let none: TRITONSERVER_InferenceResponseCompleteFn_t = None;
    // SAFETY: an optional function pointer has the size of a pointer and may be read as one.
    let address: usize = unsafe { std::mem::transmute(none) };
    assert_eq!(address, 0);
}

/// The values that existing backends were compiled with.
#[test]
fn constants_have_the_values_of_the_interface() {
    let sequences: &[(&str, u32, &[&str])] = &[
        (
            "TRITONSERVER_TYPE_",
            0,
            &[
                "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
                "FP16", "FP32", "FP64", "BYTES", "BF16",
            ],
        ),
        ("TRITONSERVER_MEMORY_", 0, &["CPU", "CPU_PINNED", "GPU"]),
        ("TRITONSERVER_PARAMETER_", 0, &["STRING", "INT", "BOOL", "DOUBLE", "BYTES"]),
        ("TRITONSERVER_INSTANCEGROUPKIND_", 0, &["AUTO", "CPU", "GPU", "MODEL"]),
        ("TRITONSERVER_LOG_", 0, &["INFO", "WARN", "ERROR", "VERBOSE"]),
        ("TRITONSERVER_LOG_", 0, &["DEFAULT", "ISO8601"]),
        (
            "TRITONSERVER_ERROR_",
            0,
            &[
                "UNKNOWN",
                "INTERNAL",
                "NOT_FOUND",
                "INVALID_ARG",
                "UNAVAILABLE",
                "UNSUPPORTED",
                "ALREADY_EXISTS",
                "CANCELLED",
            ],
        ),
        ("TRITONSERVER_METRIC_", 0, &["PROMETHEUS"]),
        ("TRITONSERVER_METRIC_KIND_", 0, &["COUNTER", "GAUGE", "HISTOGRAM"]),
        ("TRITONSERVER_TRACE_LEVEL_", 0, &["DISABLED", "MIN", "MAX"]),
        ("TRITONSERVER_TRACE_LEVEL_", 4, &["TIMESTAMPS"]),
        ("TRITONSERVER_TRACE_LEVEL_", 8, &["TENSORS"]),
        (
            "TRITONSERVER_TRACE_",
            0,
            &[
                "REQUEST_START",
                "QUEUE_START",
                "COMPUTE_START",
                "COMPUTE_INPUT_END",
                "COMPUTE_OUTPUT_START",
                "COMPUTE_END",
                "REQUEST_END",
                "TENSOR_QUEUE_INPUT",
                "TENSOR_BACKEND_INPUT",
                "TENSOR_BACKEND_OUTPUT",
                "CUSTOM_ACTIVITY",
            ],
        ),
        ("TRITONSERVER_REQUEST_FLAG_SEQUENCE_", 1, &["START", "END"]),
        ("TRITONSERVER_REQUEST_RELEASE_", 1, &["ALL", "RESCHEDULE"]),
        ("TRITONSERVER_RESPONSE_COMPLETE_", 1, &["FINAL"]),
        ("TRITONSERVER_MODEL_CONTROL_", 0, &["NONE", "POLL", "EXPLICIT"]),
        ("TRITONSERVER_RATE_LIMIT_", 0, &["OFF", "EXEC_COUNT"]),
        ("TRITONSERVER_BATCH_", 1, &["UNKNOWN", "FIRST_DIM"]),
        ("TRITONSERVER_INDEX_FLAG_", 1, &["READY"]),
        ("TRITONSERVER_TXN_", 1, &["ONE_TO_ONE", "DECOUPLED"]),
        ("TRITONBACKEND_ARTIFACT_", 0, &["FILESYSTEM"]),
        ("TRITONBACKEND_EXECUTION_", 0, &["BLOCKING", "DEVICE_BLOCKING"]),
        ("TRITONREPOAGENT_ARTIFACT_", 0, &["FILESYSTEM", "REMOTE_FILESYSTEM"]),
        ("TRITONREPOAGENT_ACTION_", 0, &["LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"]),
    ];
    let mut expected = BTreeSet::new();
    for (prefix, first, names) in sequences {
        for (value, name) in (*first..).zip(*names) {
            expected.insert((format!("{prefix}{name}"), value));
        }
    }
    let found: BTreeSet<_> = ALL.iter().map(|(_, name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_function_is_declared_once() {
    let all: Vec<&str> = signatures::SERVER
        .iter()
        .copied()
        .chain([signatures::BACKEND, signatures::ENTRY, signatures::AGENT, signatures::AGENT_ENTRY])
        .flatten()
        .copied()
        .collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(signatures::SERVER.iter().map(|names| names.len()).sum::<usize>(), 173);
    assert_eq!(signatures::BACKEND.len(), 91);
    assert_eq!(signatures::ENTRY.len(), 14);
    assert_eq!((signatures::AGENT.len(), signatures::AGENT_ENTRY.len()), (12, 5));
}

/// A declaration and the type with its name are equal.
#[test]
fn functions_coerce_to_their_signatures() {
    extern "C-unwind" fn initialize(_: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error {
        std::ptr::null_mut()
    }
    let pointer: signatures::TRITONBACKEND_Initialize = initialize;
    // SAFETY: the function above takes any pointer.
    assert!(unsafe { pointer(std::ptr::null_mut()) }.is_null());
}

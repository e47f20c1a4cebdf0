//! Enums of the C interface.
//!
//! C may pass any number, so they are integers instead of Rust enums: a value without a constant is an ordinary value
//! here.

use std::ffi::c_uint;

macro_rules! enumerations {
    ($($(#[$doc:meta])* $name:ident { $($constant:ident = $value:literal),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(pub c_uint);

            $(
                #[doc = concat!("A value of [`", stringify!($name), "`].")]
                pub const $constant: $name = $name($value);
            )*
        )*

        /// Every constant with its type's name and its value.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str, c_uint)] =
            &[$($((stringify!($name), stringify!($constant), $constant.0),)*)*];
    };
}

enumerations! {
    /// The type of a tensor's elements.
    TRITONSERVER_DataType {
        TRITONSERVER_TYPE_INVALID = 0,
        TRITONSERVER_TYPE_BOOL = 1,
        TRITONSERVER_TYPE_UINT8 = 2,
        TRITONSERVER_TYPE_UINT16 = 3,
        TRITONSERVER_TYPE_UINT32 = 4,
        TRITONSERVER_TYPE_UINT64 = 5,
        TRITONSERVER_TYPE_INT8 = 6,
        TRITONSERVER_TYPE_INT16 = 7,
        TRITONSERVER_TYPE_INT32 = 8,
        TRITONSERVER_TYPE_INT64 = 9,
        TRITONSERVER_TYPE_FP16 = 10,
        TRITONSERVER_TYPE_FP32 = 11,
        TRITONSERVER_TYPE_FP64 = 12,
        TRITONSERVER_TYPE_BYTES = 13,
        TRITONSERVER_TYPE_BF16 = 14,
    }

    /// The kind of memory of a buffer.
    TRITONSERVER_MemoryType {
        TRITONSERVER_MEMORY_CPU = 0,
        TRITONSERVER_MEMORY_CPU_PINNED = 1,
        TRITONSERVER_MEMORY_GPU = 2,
    }

    /// The type of a parameter's value.
    TRITONSERVER_ParameterType {
        TRITONSERVER_PARAMETER_STRING = 0,
        TRITONSERVER_PARAMETER_INT = 1,
        TRITONSERVER_PARAMETER_BOOL = 2,
        TRITONSERVER_PARAMETER_DOUBLE = 3,
        TRITONSERVER_PARAMETER_BYTES = 4,
    }

    /// The kind of device that an instance runs on.
    TRITONSERVER_InstanceGroupKind {
        TRITONSERVER_INSTANCEGROUPKIND_AUTO = 0,
        TRITONSERVER_INSTANCEGROUPKIND_CPU = 1,
        TRITONSERVER_INSTANCEGROUPKIND_GPU = 2,
        TRITONSERVER_INSTANCEGROUPKIND_MODEL = 3,
    }

    /// The level of a log message.
    TRITONSERVER_LogLevel {
        TRITONSERVER_LOG_INFO = 0,
        TRITONSERVER_LOG_WARN = 1,
        TRITONSERVER_LOG_ERROR = 2,
        TRITONSERVER_LOG_VERBOSE = 3,
    }

    /// The format of the log's lines.
    TRITONSERVER_LogFormat {
        TRITONSERVER_LOG_DEFAULT = 0,
        TRITONSERVER_LOG_ISO8601 = 1,
    }

    /// The code of an error.
    TRITONSERVER_Error_Code {
        TRITONSERVER_ERROR_UNKNOWN = 0,
        TRITONSERVER_ERROR_INTERNAL = 1,
        TRITONSERVER_ERROR_NOT_FOUND = 2,
        TRITONSERVER_ERROR_INVALID_ARG = 3,
        TRITONSERVER_ERROR_UNAVAILABLE = 4,
        TRITONSERVER_ERROR_UNSUPPORTED = 5,
        TRITONSERVER_ERROR_ALREADY_EXISTS = 6,
        TRITONSERVER_ERROR_CANCELLED = 7,
    }

    /// The text format of metrics.
    TRITONSERVER_MetricFormat {
        TRITONSERVER_METRIC_PROMETHEUS = 0,
    }

    /// The traced properties; bits.
    TRITONSERVER_InferenceTraceLevel {
        TRITONSERVER_TRACE_LEVEL_DISABLED = 0,
        TRITONSERVER_TRACE_LEVEL_MIN = 1,
        TRITONSERVER_TRACE_LEVEL_MAX = 2,
        TRITONSERVER_TRACE_LEVEL_TIMESTAMPS = 4,
        TRITONSERVER_TRACE_LEVEL_TENSORS = 8,
    }

    /// An event of a trace.
    TRITONSERVER_InferenceTraceActivity {
        TRITONSERVER_TRACE_REQUEST_START = 0,
        TRITONSERVER_TRACE_QUEUE_START = 1,
        TRITONSERVER_TRACE_COMPUTE_START = 2,
        TRITONSERVER_TRACE_COMPUTE_INPUT_END = 3,
        TRITONSERVER_TRACE_COMPUTE_OUTPUT_START = 4,
        TRITONSERVER_TRACE_COMPUTE_END = 5,
        TRITONSERVER_TRACE_REQUEST_END = 6,
        TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT = 7,
        TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT = 8,
        TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT = 9,
        TRITONSERVER_TRACE_CUSTOM_ACTIVITY = 10,
    }

    /// Flags of a request; bits.
    TRITONSERVER_RequestFlag {
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1,
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2,
    }

    /// Flags for the release of a request; bits.
    TRITONSERVER_RequestReleaseFlag {
        TRITONSERVER_REQUEST_RELEASE_ALL = 1,
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2,
    }

    /// Flags of a response; bits.
    TRITONSERVER_ResponseCompleteFlag {
        TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1,
    }

    /// How the loaded models are controlled.
    TRITONSERVER_ModelControlMode {
        TRITONSERVER_MODEL_CONTROL_NONE = 0,
        TRITONSERVER_MODEL_CONTROL_POLL = 1,
        TRITONSERVER_MODEL_CONTROL_EXPLICIT = 2,
    }

    /// How executions are limited.
    TRITONSERVER_RateLimitMode {
        TRITONSERVER_RATE_LIMIT_OFF = 0,
        TRITONSERVER_RATE_LIMIT_EXEC_COUNT = 1,
    }

    /// Whether a model supports batching; bits.
    TRITONSERVER_ModelBatchFlag {
        TRITONSERVER_BATCH_UNKNOWN = 1,
        TRITONSERVER_BATCH_FIRST_DIM = 2,
    }

    /// Which models an index lists; bits.
    TRITONSERVER_ModelIndexFlag {
        TRITONSERVER_INDEX_FLAG_READY = 1,
    }

    /// The number of responses per request; bits.
    TRITONSERVER_ModelTxnPropertyFlag {
        TRITONSERVER_TXN_ONE_TO_ONE = 1,
        TRITONSERVER_TXN_DECOUPLED = 2,
    }

    /// The kind of a metric.
    TRITONSERVER_MetricKind {
        TRITONSERVER_METRIC_KIND_COUNTER = 0,
        TRITONSERVER_METRIC_KIND_GAUGE = 1,
        TRITONSERVER_METRIC_KIND_HISTOGRAM = 2,
    }

    /// The kind of a model's or backend's location.
    TRITONBACKEND_ArtifactType {
        TRITONBACKEND_ARTIFACT_FILESYSTEM = 0,
    }

    /// The kind of a model's location, for agents.
    TRITONREPOAGENT_ArtifactType {
        TRITONREPOAGENT_ARTIFACT_FILESYSTEM = 0,
        TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM = 1,
    }

    /// The actions on a model, for agents.
    TRITONREPOAGENT_ActionType {
        TRITONREPOAGENT_ACTION_LOAD = 0,
        TRITONREPOAGENT_ACTION_LOAD_COMPLETE = 1,
        TRITONREPOAGENT_ACTION_LOAD_FAIL = 2,
        TRITONREPOAGENT_ACTION_UNLOAD = 3,
        TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE = 4,
    }

    /// How long an executing call occupies its thread.
    TRITONBACKEND_ExecutionPolicy {
        TRITONBACKEND_EXECUTION_BLOCKING = 0,
        TRITONBACKEND_EXECUTION_DEVICE_BLOCKING = 1,
    }
}

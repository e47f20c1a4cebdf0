//! The server itself: functions for backends, and functions for applications that configure and run a server.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{callbacks::*, enums::*, handles::*};

declare! {
    // State of the server and its models.
    fn TRITONSERVER_ServerIsLive(
        server: *mut TRITONSERVER_Server,
        live: *mut bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerIsReady(
        server: *mut TRITONSERVER_Server,
        ready: *mut bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelIsReady(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        ready: *mut bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        flags: *mut u32,
        voidp: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerMetadata(
        server: *mut TRITONSERVER_Server,
        server_metadata: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelMetadata(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_metadata: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelStatistics(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_stats: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelConfig(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerModelIndex(
        server: *mut TRITONSERVER_Server,
        flags: u32,
        model_index: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerMetrics(
        server: *mut TRITONSERVER_Server,
        metrics: *mut *mut TRITONSERVER_Metrics,
    ) -> *mut TRITONSERVER_Error;

    // Operations of the server.
    fn TRITONSERVER_ServerRegisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
        name_mapping: *mut *const TRITONSERVER_Parameter,
        mapping_count: u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerUnregisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerPollModelRepository(server: *mut TRITONSERVER_Server) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerLoadModel(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerLoadModelWithParameters(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        parameters: *mut *const TRITONSERVER_Parameter,
        parameter_count: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerUnloadModel(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerUnloadModelAndDependents(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerInferAsync(
        server: *mut TRITONSERVER_Server,
        inference_request: *mut TRITONSERVER_InferenceRequest,
        trace: *mut TRITONSERVER_InferenceTrace,
    ) -> *mut TRITONSERVER_Error;

    // Metrics as text.
    fn TRITONSERVER_MetricsDelete(metrics: *mut TRITONSERVER_Metrics) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_MetricsFormatted(
        metrics: *mut TRITONSERVER_Metrics,
        format: TRITONSERVER_MetricFormat,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) -> *mut TRITONSERVER_Error;

    // Creating and deleting a server.
    fn TRITONSERVER_ServerNew(
        server: *mut *mut TRITONSERVER_Server,
        options: *mut TRITONSERVER_ServerOptions,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerDelete(server: *mut TRITONSERVER_Server) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerStop(server: *mut TRITONSERVER_Server) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerSetExitTimeout(
        server: *mut TRITONSERVER_Server,
        timeout: c_uint,
    ) -> *mut TRITONSERVER_Error;

    // Options of a new server.
    fn TRITONSERVER_ServerOptionsNew(
        options: *mut *mut TRITONSERVER_ServerOptions,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsDelete(
        options: *mut TRITONSERVER_ServerOptions,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetServerId(
        options: *mut TRITONSERVER_ServerOptions,
        server_id: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelRepositoryPath(
        options: *mut TRITONSERVER_ServerOptions,
        model_repository_path: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelControlMode(
        options: *mut TRITONSERVER_ServerOptions,
        mode: TRITONSERVER_ModelControlMode,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetStartupModel(
        options: *mut TRITONSERVER_ServerOptions,
        model_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetStrictModelConfig(
        options: *mut TRITONSERVER_ServerOptions,
        strict: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelConfigName(
        options: *mut TRITONSERVER_ServerOptions,
        model_config_name: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetRateLimiterMode(
        options: *mut TRITONSERVER_ServerOptions,
        mode: TRITONSERVER_RateLimitMode,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsAddRateLimiterResource(
        options: *mut TRITONSERVER_ServerOptions,
        resource_name: *const c_char,
        resource_count: usize,
        device: c_int,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(
        options: *mut TRITONSERVER_ServerOptions,
        size: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(
        options: *mut TRITONSERVER_ServerOptions,
        gpu_device: c_int,
        size: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(
        options: *mut TRITONSERVER_ServerOptions,
        gpu_device: c_int,
        cuda_virtual_address_size: usize,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetResponseCacheByteSize(
        options: *mut TRITONSERVER_ServerOptions,
        size: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetCacheConfig(
        options: *mut TRITONSERVER_ServerOptions,
        cache_name: *const c_char,
        config_json: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetCacheDirectory(
        options: *mut TRITONSERVER_ServerOptions,
        cache_dir: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(
        options: *mut TRITONSERVER_ServerOptions,
        cc: f64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetExitOnError(
        options: *mut TRITONSERVER_ServerOptions,
        exit: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetStrictReadiness(
        options: *mut TRITONSERVER_ServerOptions,
        strict: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetExitTimeout(
        options: *mut TRITONSERVER_ServerOptions,
        timeout: c_uint,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(
        options: *mut TRITONSERVER_ServerOptions,
        thread_count: c_uint,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelLoadThreadCount(
        options: *mut TRITONSERVER_ServerOptions,
        thread_count: c_uint,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelLoadRetryCount(
        options: *mut TRITONSERVER_ServerOptions,
        retry_count: c_uint,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelNamespacing(
        options: *mut TRITONSERVER_ServerOptions,
        enable_namespace: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetEnablePeerAccess(
        options: *mut TRITONSERVER_ServerOptions,
        enable_peer_access: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogFile(
        options: *mut TRITONSERVER_ServerOptions,
        file: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogInfo(
        options: *mut TRITONSERVER_ServerOptions,
        log: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogWarn(
        options: *mut TRITONSERVER_ServerOptions,
        log: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogError(
        options: *mut TRITONSERVER_ServerOptions,
        log: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogFormat(
        options: *mut TRITONSERVER_ServerOptions,
        format: TRITONSERVER_LogFormat,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetLogVerbose(
        options: *mut TRITONSERVER_ServerOptions,
        level: c_int,
    ) -> *mut TRITONSERVER_Error;
    // Newer than 1.34: since release 2.73.
    fn TRITONSERVER_ServerOptionsSetLogCallback(
        options: *mut TRITONSERVER_ServerOptions,
        callback: TRITONSERVER_LogCallbackFn_t,
        userp: *mut c_void,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetMetrics(
        options: *mut TRITONSERVER_ServerOptions,
        metrics: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetGpuMetrics(
        options: *mut TRITONSERVER_ServerOptions,
        gpu_metrics: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetCpuMetrics(
        options: *mut TRITONSERVER_ServerOptions,
        cpu_metrics: bool,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetMetricsInterval(
        options: *mut TRITONSERVER_ServerOptions,
        metrics_interval_ms: u64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetBackendDirectory(
        options: *mut TRITONSERVER_ServerOptions,
        backend_dir: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetRepoAgentDirectory(
        options: *mut TRITONSERVER_ServerOptions,
        repoagent_dir: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
        options: *mut TRITONSERVER_ServerOptions,
        kind: TRITONSERVER_InstanceGroupKind,
        device_id: c_int,
        fraction: f64,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetBackendConfig(
        options: *mut TRITONSERVER_ServerOptions,
        backend_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetHostPolicy(
        options: *mut TRITONSERVER_ServerOptions,
        policy_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONSERVER_ServerOptionsSetMetricsConfig(
        options: *mut TRITONSERVER_ServerOptions,
        name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) -> *mut TRITONSERVER_Error;
}

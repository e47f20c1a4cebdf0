//! Options of a server that an application creates: each function sets an option of the command line.
//!
//! Knows the names of the options and C's form of their values. The [`Embedder`](crate::Embedder) interprets and
//! checks the values: options are declared once, for every way to start a server.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Result};
use serde_json::{Map, Value};
use triton_sys::*;

use crate::boundary::{Text, exports};
use crate::embedder::{Settings, start_log};

/// The options of a server, behind a C handle.
pub(crate) struct ServerOptions(Mutex<Settings>);

impl Default for ServerOptions {
    /// The reference's defaults where they differ from the command line's.
    fn default() -> Self {
        let options = vec![
            ("model-control-mode".into(), "poll".to_owned()),
            ("strict-model-config".into(), "true".to_owned()),
            ("backend-directory".into(), "/opt/tritonserver/backends".to_owned()),
        ];
        Self(Mutex::new(Settings { options, ..Settings::default() }))
    }
}

impl ServerOptions {
    /// The defaults of the command line.
    pub(crate) fn command_line_defaults() -> Self {
        Self(Mutex::new(Settings { is_strict: true, ..Settings::default() }))
    }

    /// The settings so far.
    pub(crate) fn settings(&self) -> Settings {
        self.lock().clone()
    }

    /// Lets the server open ports.
    pub(crate) fn set_listens(&self, listens: bool) {
        self.lock().listens = listens;
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets an option with one value; `None` restores its default.
    fn set(&self, option: &'static str, value: impl Into<Option<String>>) {
        let options = &mut self.lock().options;
        options.retain(|(name, _)| *name != option);
        options.extend(value.into().map(|value| (option.into(), value)));
    }

    /// Adds values of a repeatable option.
    pub(crate) fn add(&self, option: impl Into<Cow<'static, str>>, values: impl IntoIterator<Item = String>) {
        let option = option.into();
        self.lock().options.extend(values.into_iter().map(|value| (option.clone(), value)));
    }
}

/// A single value for [`ServerOptions::add`].
fn one(value: String) -> [String; 1] {
    [value]
}

fn text(text: &Text) -> Result<String> {
    Ok(text.read()?.into_owned())
}

/// `NAME,SETTING=VALUE`, without the name if it is empty.
fn named_setting(name: &Text, setting: &Text, value: &Text) -> Result<String> {
    let (name, setting, value) = (name.read()?, setting.read()?, value.read()?);
    let comma = if name.is_empty() { "" } else { "," };
    Ok(format!("{name}{comma}{setting}={value}"))
}

fn control_mode(mode: TRITONSERVER_ModelControlMode) -> Result<String> {
    let name = match mode {
        TRITONSERVER_MODEL_CONTROL_NONE => "none",
        TRITONSERVER_MODEL_CONTROL_POLL => "poll",
        TRITONSERVER_MODEL_CONTROL_EXPLICIT => "explicit",
        other => return Err(Error::invalid_arg(format!("unknown control mode '{}'", other.0))),
    };
    Ok(name.to_owned())
}

fn rate_limit_mode(mode: TRITONSERVER_RateLimitMode) -> Result<String> {
    let name = match mode {
        TRITONSERVER_RATE_LIMIT_OFF => "off",
        TRITONSERVER_RATE_LIMIT_EXEC_COUNT => "execution_count",
        other => return Err(Error::invalid_arg(format!("unknown rate limit mode '{}'", other.0))),
    };
    Ok(name.to_owned())
}

/// A resource; device -1 stands for each device.
fn resource(name: &Text, count: usize, device: c_int) -> Result<String> {
    let name = name.read()?;
    Ok(if device < 0 { format!("{name}:{count}") } else { format!("{name}:{count}:{device}") })
}

/// The settings of a cache, from C's JSON object.
fn cache_settings(cache: &Text, json: &Text) -> Result<Vec<String>> {
    let (cache, json) = (cache.read()?, json.read()?);
    let wrong = |error| {
        Error::invalid_arg(format!("the configuration of cache '{cache}' is not a JSON object: {error}"))
    };
    let settings: Map<String, Value> = serde_json::from_str(&json).map_err(wrong)?;
    let setting = |(name, value): (String, Value)| match value {
        Value::String(value) => format!("{cache},{name}={value}"),
        value => format!("{cache},{name}={value}"),
    };
    Ok(settings.into_iter().map(setting).collect())
}

/// A number as an option of the command line, whose range ends earlier: any larger value means the same.
fn int(value: u64) -> String {
    value.min(i32::MAX.unsigned_abs().into()).to_string()
}

fn load_limit(kind: TRITONSERVER_InstanceGroupKind, device: c_int, fraction: f64) -> Result<String> {
    if device < 0 {
        return Err(Error::invalid_arg(format!("the device is {device}; expected a non-negative number")));
    }
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Error::invalid_arg(format!("the fraction is {fraction}; expected a number from 0 to 1")));
    }
    if kind != TRITONSERVER_INSTANCEGROUPKIND_GPU {
        return Err(Error::invalid_arg("load limits are supported for GPUs only"));
    }
    Ok(format!("{device}:{fraction}"))
}

fn host_policy(policy: &Text, setting: &Text, value: &Text) -> Result<String> {
    let name = setting.read()?;
    if !["numa-node", "cpu-cores"].contains(&&*name) {
        return Err(Error::unsupported(format!(
            "Unsupported host policy setting '{name}' (known: 'numa-node', 'cpu-cores')"
        )));
    }
    named_setting(policy, setting, value)
}

/// Functions that each set one option, and a list of both.
macro_rules! setters {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) => $how:ident $option:literal = $value:expr;)*) => {
        /// The C functions that set options, each with its option of the command line.
        pub const SETTERS: &[(&str, &str)] = &[$((stringify!($name), $option)),*];

        exports! {
            fn TRITONSERVER_ServerOptionsNew(options: *mut *mut TRITONSERVER_ServerOptions) {
                start_log();
                options.give(Arc::<ServerOptions>::default())?;
            }

            fn TRITONSERVER_ServerOptionsDelete(options: *mut TRITONSERVER_ServerOptions) {
                options.delete()?;
            }

            $(
                fn $name(options: *mut TRITONSERVER_ServerOptions, $($argument: $type),*) {
                    let options = options.get()?;
                    options.$how($option, $value);
                }
            )*
        }
    };
}

setters! {
    fn TRITONSERVER_ServerOptionsSetServerId(server_id: *const c_char) => set "id" = text(&server_id)?;
    fn TRITONSERVER_ServerOptionsSetModelRepositoryPath(model_repository_path: *const c_char)
        => add "model-repository" = one(text(&model_repository_path)?);
    fn TRITONSERVER_ServerOptionsSetModelControlMode(mode: TRITONSERVER_ModelControlMode)
        => set "model-control-mode" = control_mode(mode)?;
    fn TRITONSERVER_ServerOptionsSetStartupModel(model_name: *const c_char)
        => add "load-model" = one(text(&model_name)?);
    fn TRITONSERVER_ServerOptionsSetStrictModelConfig(strict: bool)
        => set "strict-model-config" = strict.to_string();
    // An empty name is ignored.
    fn TRITONSERVER_ServerOptionsSetModelConfigName(model_config_name: *const c_char)
        => set "model-config-name" = Some(text(&model_config_name)?).filter(|name| !name.is_empty());
    fn TRITONSERVER_ServerOptionsSetRateLimiterMode(mode: TRITONSERVER_RateLimitMode)
        => set "rate-limit" = rate_limit_mode(mode)?;
    fn TRITONSERVER_ServerOptionsAddRateLimiterResource(
        resource_name: *const c_char,
        resource_count: usize,
        device: c_int,
    ) => add "rate-limit-resource" = one(resource(&resource_name, resource_count, device)?);
    fn TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(size: u64)
        => set "pinned-memory-pool-byte-size" = size.min(i64::MAX.unsigned_abs()).to_string();
    fn TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(gpu_device: c_int, size: u64)
        => add "cuda-memory-pool-byte-size" = one(format!("{gpu_device}:{size}"));
    fn TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(gpu_device: c_int, cuda_virtual_address_size: usize)
        => add "cuda-virtual-address-size" = one(format!("{gpu_device}:{cuda_virtual_address_size}"));
    // A size of 0 bytes disables the cache.
    fn TRITONSERVER_ServerOptionsSetResponseCacheByteSize(size: u64)
        => add "cache-config" = (size > 0).then(|| format!("local,size={size}"));
    fn TRITONSERVER_ServerOptionsSetCacheConfig(cache_name: *const c_char, config_json: *const c_char)
        => add "cache-config" = cache_settings(&cache_name, &config_json)?;
    fn TRITONSERVER_ServerOptionsSetCacheDirectory(cache_dir: *const c_char)
        => set "cache-directory" = text(&cache_dir)?;
    fn TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(cc: f64)
        => set "min-supported-compute-capability" = cc.to_string();
    fn TRITONSERVER_ServerOptionsSetExitOnError(exit: bool) => set "exit-on-error" = exit.to_string();
    fn TRITONSERVER_ServerOptionsSetStrictReadiness(strict: bool)
        => set "strict-readiness" = strict.to_string();
    fn TRITONSERVER_ServerOptionsSetExitTimeout(timeout: c_uint)
        => set "exit-timeout-secs" = int(timeout.into());
    fn TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(thread_count: c_uint)
        => set "buffer-manager-thread-count" = int(thread_count.into());
    fn TRITONSERVER_ServerOptionsSetModelLoadThreadCount(thread_count: c_uint)
        => set "model-load-thread-count" = int(thread_count.into());
    fn TRITONSERVER_ServerOptionsSetModelLoadRetryCount(retry_count: c_uint)
        => set "model-load-retry-count" = int(retry_count.into());
    fn TRITONSERVER_ServerOptionsSetModelNamespacing(enable_namespace: bool)
        => set "model-namespacing" = enable_namespace.to_string();
    fn TRITONSERVER_ServerOptionsSetEnablePeerAccess(enable_peer_access: bool)
        => set "enable-peer-access" = enable_peer_access.to_string();
    fn TRITONSERVER_ServerOptionsSetMetrics(metrics: bool) => set "allow-metrics" = metrics.to_string();
    fn TRITONSERVER_ServerOptionsSetGpuMetrics(gpu_metrics: bool)
        => set "allow-gpu-metrics" = gpu_metrics.to_string();
    fn TRITONSERVER_ServerOptionsSetCpuMetrics(cpu_metrics: bool)
        => set "allow-cpu-metrics" = cpu_metrics.to_string();
    fn TRITONSERVER_ServerOptionsSetMetricsInterval(metrics_interval_ms: u64)
        => set "metrics-interval-ms" = int(metrics_interval_ms);
    fn TRITONSERVER_ServerOptionsSetBackendDirectory(backend_dir: *const c_char)
        => set "backend-directory" = text(&backend_dir)?;
    fn TRITONSERVER_ServerOptionsSetRepoAgentDirectory(repoagent_dir: *const c_char)
        => set "repoagent-directory" = text(&repoagent_dir)?;
    fn TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
        kind: TRITONSERVER_InstanceGroupKind,
        device_id: c_int,
        fraction: f64,
    ) => add "model-load-gpu-limit" = one(load_limit(kind, device_id, fraction)?);
    fn TRITONSERVER_ServerOptionsSetBackendConfig(
        backend_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) => add "backend-config" = one(named_setting(&backend_name, &setting, &value)?);
    fn TRITONSERVER_ServerOptionsSetHostPolicy(
        policy_name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) => add "host-policy" = one(host_policy(&policy_name, &setting, &value)?);
    fn TRITONSERVER_ServerOptionsSetMetricsConfig(
        name: *const c_char,
        setting: *const c_char,
        value: *const c_char,
    ) => add "metrics-config" = one(named_setting(&name, &setting, &value)?);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_options_range_become_its_end() {
        for (value, expected) in [
            (0, "0"),
            (7, "7"),
            (2_147_483_647, "2147483647"),
            (2_147_483_648, "2147483647"),
            (u32::MAX.into(), "2147483647"),
            (u64::MAX, "2147483647"),
        ] {
            assert_eq!(int(value), expected);
        }
    }
}

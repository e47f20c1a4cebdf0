//! The command line: each option is declared once, here. Names, defaults and meaning are the reference's where it has
//! the option.

pub(crate) mod gpu;
pub(crate) mod grpc;
mod host_policy;
pub(crate) mod http;
pub(crate) mod metrics;
mod tls;
pub(crate) mod trace;

use std::env;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use nereid_assembly::{BackendSetting, BackendsConfig, Config, Face, GpusConfig, PlatformConfig, PollConfig};
use nereid_core::{HostPolicies, ModelControl, RateLimit, ResourceLimit, ServerOptions};
use nereid_cuda::PoolSizes;
use nereid_listener::Address;
use nereid_protocol::{LogFormat, LogSettings};
use nereid_repository::ReadOptions;

use self::gpu::{DriverOptions, PoolOptions};
use self::grpc::GrpcOptions;
use self::host_policy::HostPolicySetting;
use self::http::HttpOptions;
use self::metrics::MetricsOptions;
use self::trace::TraceOptions;

/// Where the reference looks for backends.
const BACKENDS: &str = "/opt/tritonserver/backends";

/// Serves the models of a repository over HTTP and gRPC.
#[derive(Debug, Parser)]
#[command(
    name = "nereid",
    version,
    disable_help_subcommand = true,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Folder of models to serve. May be given several times.
    #[arg(long, visible_alias = "model-store", value_name = "PATH", required = true, action = ArgAction::Append)]
    pub model_repository: Vec<PathBuf>,

    /// Serve models of the same name in different repositories side by side, instead of refusing them. Clients reach
    /// those whose name no other has.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    pub model_namespacing: bool,

    /// Name the server answers with.
    #[arg(long, value_name = "NAME", default_value = "nereid")]
    pub id: String,

    /// Exit when a model cannot be loaded at start. If false, the others are served.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub exit_on_error: bool,

    #[command(flatten)]
    pub configurations: ConfigurationOptions,

    /// Seconds to wait for requests in progress when told to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u64,

    /// Report ready only when every model is.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub strict_readiness: bool,

    /// How many models are loaded side by side.
    #[arg(long, value_name = "COUNT", default_value = "4")]
    pub model_load_thread_count: NonZeroUsize,

    /// How often loading a model that failed is tried again.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub model_load_retry_count: usize,

    /// How models come and go while the server runs.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub model_control_mode: ModelControlMode,

    /// Model to load at the start, with --model-control-mode=explicit; * for all. May be given several times.
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    pub load_model: Vec<String>,

    /// Seconds between two looks at the repositories, with --model-control-mode=poll. A change is taken up when two
    /// looks have seen the same of it.
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    pub repository_poll_secs: NonZeroU64,

    /// With --model-control-mode=poll, look at the repositories as soon as the file system tells of a change, too. A
    /// change is still taken up when two looks have seen the same of it.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    pub repository_watch: bool,

    /// Limit executions over all models by the resources that instance groups need.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub rate_limit: RateLimitMode,

    /// How much there is of a resource, on each device or on one, as NAME:COUNT or NAME:COUNT:DEVICE. May be given
    /// several times. If it is not given, there is of each as much as the neediest instance needs.
    #[arg(long, value_name = "RESOURCE", value_parser = resource, action = ArgAction::Append)]
    pub rate_limit_resource: Vec<ResourceLimit>,

    /// Setting of a host policy, to which instances belong that name it or, by default, those on what it is called
    /// after: cpu, gpu_0 and so on, model. cpu-cores (0-3,8-11) says on which processors they run, numa-node which
    /// node's memory they use. May be given several times.
    #[arg(long, value_name = "POLICY,SETTING=VALUE", value_parser = host_policy::read, action = ArgAction::Append)]
    pub host_policy: Vec<HostPolicySetting>,

    /// Requests in progress at a time, over all models, before further ones are refused; 0 for any number.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_inflight_requests: usize,

    /// Bytes of answers to one request that may wait for its client to read them, beside the first answer, before the
    /// request fails; 0 for any number. It takes a model that gives several answers to one request.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub max_unread_response_bytes: usize,

    #[command(flatten)]
    pub http: HttpOptions,

    #[command(flatten)]
    pub grpc: GrpcOptions,

    #[command(flatten)]
    pub metrics: MetricsOptions,

    /// Let clients register shared memory and use it for inputs and outputs.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_client_shm: bool,

    #[command(flatten)]
    pub pools: PoolOptions,

    #[command(flatten)]
    pub trace: TraceOptions,

    /// Verbose messages: 0 or false for none; 1 or true for some, and more for more.
    #[arg(long, value_name = "LEVEL", default_value = "0", value_parser = verbose_level)]
    pub log_verbose: u32,

    /// Log messages of level info.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_info: bool,

    /// Log messages of level warning.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_warning: bool,

    /// Log messages of level error.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub log_error: bool,

    /// Form of log lines: default or ISO8601.
    #[arg(long, value_name = "FORMAT", default_value = "default", value_parser = log_format)]
    pub log_format: LogFormat,

    /// File to log to instead of standard error. What is in it stays.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub log_file: String,
}

/// How configurations are found and completed: the same for serving and for checking.
#[derive(Debug, Args)]
pub(crate) struct ConfigurationOptions {
    /// Do not complete configurations from the models' files: each model needs a whole one.
    #[arg(long)]
    pub disable_auto_complete_config: bool,

    /// Deprecated: true is --disable-auto-complete-config.
    #[arg(long, value_name = "BOOL", value_parser = boolean(), action = ArgAction::Set)]
    pub strict_model_config: Option<bool>,

    /// Take a model's configuration from configs/NAME.pbtxt in its folder, where that exists.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub model_config_name: Option<String>,

    /// Folder with a folder for each installed backend. Default: backends, beside the folder of this program, or else
    /// /opt/tritonserver/backends.
    #[arg(long, value_name = "PATH")]
    pub backend_directory: Option<PathBuf>,

    /// Setting of a backend, or of all backends if none is named. May be given several times.
    #[arg(long, value_name = "[BACKEND,]SETTING=VALUE", value_parser = backend_setting, action = ArgAction::Append)]
    pub backend_config: Vec<BackendSetting>,

    #[command(flatten)]
    pub driver: DriverOptions,
}

impl ConfigurationOptions {
    /// How model folders are read.
    pub(crate) fn read_options(&self) -> ReadOptions {
        let strict = self.disable_auto_complete_config || self.strict_model_config == Some(true);
        ReadOptions {
            complete: !strict,
            config_name: self.model_config_name.clone(),
            ..ReadOptions::default()
        }
    }

    /// The folder with a folder for each installed backend.
    pub(crate) fn backend_directory(&self) -> PathBuf {
        let beside = || Some(env::current_exe().ok()?.parent()?.parent()?.join("backends"));
        let found = self.backend_directory.clone().or_else(|| beside().filter(|folder| folder.is_dir()));
        found.unwrap_or_else(|| PathBuf::from(BACKENDS))
    }

    /// Where backends are, and which GPUs are used, with pools of these sizes.
    pub(crate) fn platform(&self, pools: PoolSizes) -> PlatformConfig {
        PlatformConfig {
            backends: BackendsConfig {
                directory: self.backend_directory(),
                settings: self.backend_config.clone(),
            },
            gpus: GpusConfig {
                driver: self.driver.library(),
                min_compute_capability: self.driver.min_supported_compute_capability,
                pools,
            },
        }
    }

    /// What about these options is better said otherwise.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match (self.strict_model_config, self.disable_auto_complete_config) {
            (None, _) => None,
            (Some(false), true) => {
                Some("--disable-auto-complete-config overrides the deprecated --strict-model-config=false")
            }
            (Some(true), _) => {
                Some("--strict-model-config is deprecated: use --disable-auto-complete-config")
            }
            (Some(false), false) => Some(
                "--strict-model-config is deprecated: configurations are completed unless \
                 --disable-auto-complete-config is given",
            ),
        }
    }
}

/// What the command does instead of serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(CheckOptions),
}

/// Looks model repositories over without loading a model: their folders, and every configuration. Exits with 1 if a
/// model would not load.
#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Folders of models, taken together as a server would be given them.
    #[arg(value_name = "REPOSITORY", required = true)]
    pub repositories: Vec<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,

    /// Print the completed configuration of this model instead. Reads the model's file, but makes no instance.
    #[arg(long, value_name = "MODEL", conflicts_with = "json")]
    pub complete: Option<String>,

    #[command(flatten)]
    pub configurations: ConfigurationOptions,
}

impl Options {
    /// How long to wait for requests in progress when told to stop.
    pub(crate) fn exit_timeout(&self) -> Duration {
        Duration::from_secs(self.exit_timeout_secs)
    }

    /// Where metrics are served.
    pub(crate) fn metrics_address(&self) -> Address {
        self.metrics.address(&self.http.address().host)
    }

    /// The server that these options describe.
    ///
    /// # Errors
    /// Options that contradict each other, or a wrong variable of the environment.
    pub(crate) fn config(&self) -> Result<Config, String> {
        let http_host = self.http.address().host;
        let faces = [
            self.grpc.face()?.map(boxed),
            self.metrics.face(&http_host).map(boxed),
            self.http.face()?.map(boxed),
        ];
        Ok(Config {
            repositories: self.model_repository.clone(),
            namespacing: self.model_namespacing,
            reading: self.configurations.read_options(),
            models_at_start: self.models_at_start(),
            poll: self.poll_pause().map(|interval| PollConfig { interval, watch: self.repository_watch }),
            server: self.server()?,
            platform: self.configurations.platform(self.pools.sizes()),
            client_shared_memory: self.allow_client_shm,
            collector: trace::collector(|name| env::var(name).ok()),
            metrics: self.metrics.exposed(),
            faces: faces.into_iter().flatten().collect(),
        })
    }

    fn server(&self) -> Result<ServerOptions, String> {
        Ok(ServerOptions {
            name: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            strict_readiness: self.strict_readiness,
            load_threads: self.model_load_thread_count.get(),
            load_retries: self.model_load_retry_count,
            model_control: self.model_control_mode.into(),
            rate_limit: self.rate_limit(),
            max_inflight_requests: self.max_inflight_requests,
            max_unread: self.max_unread_response_bytes,
            hold_batches: hold("TRITONSERVER_DELAY_SCHEDULER"),
            hold_backlog: hold("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
            latencies: self.metrics.latencies(),
            trace: self.trace.settings()?,
            host_policies: self.host_policies()?,
            ..ServerOptions::default()
        })
    }

    /// What is deprecated among the options given, or has no effect.
    pub(crate) fn advice(&self) -> Vec<String> {
        let mut advice: Vec<_> = self.configurations.advice().map(str::to_owned).into_iter().collect();
        advice.extend(self.trace.advice());
        advice.extend(self.grpc.advice());
        advice.extend(self.metrics.advice());
        advice
    }

    /// The models to load at the start; `None` for all.
    pub(crate) fn models_at_start(&self) -> Option<Vec<String>> {
        let all = self.model_control_mode != ModelControlMode::Explicit || self.load_model == ["*"];
        (!all).then(|| self.load_model.clone())
    }

    /// How long to wait between two looks at the repositories, if they are followed.
    pub(crate) fn poll_pause(&self) -> Option<Duration> {
        let polls = self.model_control_mode == ModelControlMode::Poll;
        polls.then(|| Duration::from_secs(self.repository_poll_secs.get()))
    }

    /// What of the options does not go together.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let (http, grpc, metrics) = (self.http.address(), self.grpc.address(), self.metrics_address());
        if self.http.allow_http && self.grpc.allow_grpc && http.collides(&grpc) {
            Some("--http-port and --grpc-port are the same; each protocol takes a port of its own")
        } else if self.metrics.allow_metrics && self.http.allow_http && http.collides(&metrics) {
            Some("--http-port and --metrics-port are the same; metrics take a port of their own")
        } else if self.metrics.allow_metrics && self.grpc.allow_grpc && grpc.collides(&metrics) {
            Some("--grpc-port and --metrics-port are the same; metrics take a port of their own")
        } else if self.repository_watch && self.model_control_mode != ModelControlMode::Poll {
            Some(
                "--repository-watch is for --model-control-mode=poll; other modes do not follow the repositories",
            )
        } else if self.load_model.is_empty() {
            None
        } else if self.model_control_mode != ModelControlMode::Explicit {
            Some("--load-model is for --model-control-mode=explicit; other modes load all models")
        } else if self.load_model.len() > 1 && self.load_model.iter().any(|name| name == "*") {
            Some("--load-model=* loads all models, so no other --load-model may be given")
        } else {
            None
        }
    }

    /// How executions are limited.
    pub(crate) fn rate_limit(&self) -> RateLimit {
        match self.rate_limit {
            RateLimitMode::Off => RateLimit::Off,
            RateLimitMode::ExecutionCount => RateLimit::ExecutionCount(self.rate_limit_resource.clone()),
        }
    }

    /// Where instances run.
    ///
    /// # Errors
    /// A setting that there is not, which is refused already when options are read.
    pub(crate) fn host_policies(&self) -> Result<HostPolicies, String> {
        host_policy::all(&self.host_policy)
    }

    /// What is logged.
    pub(crate) fn logging(&self) -> LogSettings {
        LogSettings {
            file: self.log_file.clone(),
            info: self.log_info,
            warning: self.log_warning,
            error: self.log_error,
            verbose_level: self.log_verbose,
            format: self.log_format,
        }
    }
}

/// How models come and go while the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelControlMode {
    /// All are loaded at the start, and that is that
    #[default]
    None,
    /// Clients load and unload them
    Explicit,
    /// The server follows the repositories
    Poll,
}

impl From<ModelControlMode> for ModelControl {
    fn from(mode: ModelControlMode) -> Self {
        match mode {
            ModelControlMode::None => Self::None,
            ModelControlMode::Explicit => Self::Explicit,
            ModelControlMode::Poll => Self::Poll,
        }
    }
}

/// How executions are limited over all models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum RateLimitMode {
    /// They are not
    #[default]
    Off,
    /// By resources; instances that executed less often go first
    ExecutionCount,
}

/// Reads `NAME:COUNT` or `NAME:COUNT:DEVICE`.
fn resource(text: &str) -> Result<ResourceLimit, String> {
    let mut parts = text.split(':');
    let name = parts.next().filter(|name| !name.is_empty()).ok_or("the name of the resource is missing")?;
    let count = parts.next().ok_or("the count is missing: NAME:COUNT or NAME:COUNT:DEVICE")?;
    let count = count.parse().map_err(|_| format!("the count '{count}' is not a whole number from 0 on"))?;
    let device = match parts.next() {
        None => None,
        Some(device) => match device.parse() {
            Ok(device) if device >= 0 => Some(device),
            _ => return Err(format!("the device '{device}' is not a number from 0 on")),
        },
    };
    match parts.next() {
        None => Ok(ResourceLimit { name: name.to_owned(), count, device }),
        Some(_) => Err("there are more than three parts: NAME:COUNT or NAME:COUNT:DEVICE".into()),
    }
}

/// A number as the reference has it, within 31 bits, or a boolean.
fn verbose_level(text: &str) -> Result<u32, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(1),
        "false" => Ok(0),
        number => match number.parse() {
            Ok(level) if i32::try_from(level).is_ok() => Ok(level),
            _ => Err(format!("the level is a whole number from 0 to {}, or true or false", i32::MAX)),
        },
    }
}

fn log_format(name: &str) -> Result<LogFormat, String> {
    LogFormat::named(name).ok_or_else(|| LogFormat::unknown(name))
}

/// `true` and `false`, and the other words the reference takes for them.
fn boolean() -> BoolishValueParser {
    BoolishValueParser::new()
}

/// The reference's form: what stands before the first comma is the backend, what follows up to the next equals sign the
/// setting, and the rest its value.
fn backend_setting(text: &str) -> Result<BackendSetting, String> {
    let (backend, setting) = match text.split_once(',') {
        Some(("", _)) => return Err("no backend stands before the comma".into()),
        Some((backend, setting)) => (Some(backend.to_owned()), setting),
        None => (None, text),
    };
    match setting.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok(BackendSetting { backend, key: key.to_owned(), value: value.to_owned() })
        }
        _ => Err("it has the form [<backend>,]<setting>=<value>".into()),
    }
}

fn boxed(face: impl Face + 'static) -> Box<dyn Face> {
    Box::new(face)
}

/// The reference's hooks for tests that need full queues: batchers start at this many requests.
fn hold(variable: &str) -> usize {
    env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;

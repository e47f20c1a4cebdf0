//! The options. Each is declared once, in the files of this crate, and can be set on the command line, in the
//! environment, in a file, or by the program that a server runs in. Names, defaults and meaning are Triton's where it has
//! the option.
//!
//! [`Options::config`] turns them into the configuration of a server. This crate starts nothing, and leaves the process
//! alone.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod abbreviations;
mod access;
mod additions;
mod agents;
mod backends;
mod cache;
mod client;
mod execution;
mod file;
mod gpu;
mod grpc;
mod health;
mod help;
mod host_policy;
mod http;
mod logging;
mod memory;
mod metrics;
mod models;
mod pairs;
mod sagemaker;
mod sources;
mod subcommands;
mod tls;
mod trace;
mod tune;
mod values;
mod vertex_ai;

use std::env;
use std::path::Path;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, ValueEnum};
use nereid_assembly::{CloudOptions, Config, Face, VERSION};
use nereid_core::{Server, ServerOptions};
use nereid_load_report::Reporting;
use nereid_net::listener::Address;
use nereid_protocol::LogSettings;

use self::access::AccessOptions;
pub use self::additions::{AddOptions, InitOptions, TensorDeclaration};
use self::agents::AgentOptions;
use self::backends::ConfigurationOptions;
pub use self::backends::default_backend_directory;
use self::cache::CacheOptions;
pub use self::client::{InferOptions, TopOptions};
use self::execution::ExecutionOptions;
use self::gpu::{DeviceOptions, PoolOptions};
use self::grpc::GrpcOptions;
pub use self::health::HealthOptions;
use self::http::HttpOptions;
use self::logging::LogOptions;
use self::metrics::MetricsOptions;
use self::models::ModelOptions;
pub use self::pairs::{from_pairs, option_names};
use self::sagemaker::SageMakerOptions;
pub use self::sources::parse;
pub use self::subcommands::{
    AccessCommand, CheckOptions, Command, CompletionsOptions, KeysCommand, PullOptions,
};
use self::trace::TraceOptions;
pub use self::tune::TuneOptions;
use self::values::{boolean, int, whole};
use self::vertex_ai::VertexAiOptions;

/// Serves the models of a repository over HTTP and gRPC.
#[derive(Debug, Parser)]
#[command(
    name = "nereid",
    version,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Options {
    /// The subcommand, if the command line names one; otherwise it describes a server.
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    models: ModelOptions,

    #[command(flatten)]
    agents: AgentOptions,

    #[command(flatten)]
    configurations: ConfigurationOptions,

    #[command(flatten)]
    server: ServingOptions,

    #[command(flatten)]
    execution: ExecutionOptions,

    #[command(flatten)]
    access: AccessOptions,

    #[command(flatten)]
    http: HttpOptions,

    #[command(flatten)]
    grpc: GrpcOptions,

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    pools: PoolOptions,

    #[command(flatten)]
    devices: DeviceOptions,

    #[command(flatten)]
    cache: CacheOptions,

    #[command(flatten)]
    sagemaker: SageMakerOptions,

    #[command(flatten)]
    vertex_ai: VertexAiOptions,

    #[command(flatten)]
    trace: TraceOptions,

    #[command(flatten)]
    log: LogOptions,
}

/// The server as a whole.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServingOptions {
    /// Name that the server reports.
    #[arg(long, value_name = "NAME", default_value = "triton")]
    id: String,

    /// Report ready only when every model is ready.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    strict_readiness: bool,

    /// Exit if a model fails to load at start, or a repository cannot be read. If false, the other models are served, and
    /// the server is not live without its repositories.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    exit_on_error: bool,

    /// Seconds to wait for requests in progress at shutdown.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = int::<u64>())]
    exit_timeout_secs: u64,

    /// Requests in progress at a time, over all models, before further ones are refused; 0 for no limit.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = whole::<usize>())]
    max_inflight_requests: usize,

    /// Bytes of requests and answers in memory at a time, over HTTP and gRPC, as they arrived, as they were
    /// decompressed, and until clients have read them; 0 for no limit. Further ones are refused. By default half of the
    /// memory that the process may use, and at least 1 GiB.
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>())]
    max_inflight_bytes: Option<usize>,

    /// Bytes of responses to one request, beyond the first response, that may wait for the client to read them before the
    /// request fails; 0 for no limit. Concerns models that send several responses to a request.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = whole::<usize>())]
    max_unread_response_bytes: usize,

    /// When responses to inference requests report the server's load, for load balancers: in the header
    /// endpoint-load-metrics over HTTP, in the trailer endpoint-load-metrics-bin over gRPC.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, ignore_case = true)]
    load_reports: LoadReports,

    /// Let clients register shared memory and use it for inputs and outputs.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    allow_client_shm: bool,
}

/// When the load is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LoadReports {
    /// Never
    Off,
    /// To requests with the header endpoint-load-metrics-format, as text, json or bin
    #[default]
    OnRequest,
    /// Always, as text unless the request selects another format
    Always,
}

/// The folder that the command serves if no model repository is named.
pub const DEFAULT_REPOSITORY: &str = "models";

const SAGEMAKER_PORT: &str = "--sagemaker-port";

impl Options {
    /// Whether a model repository is named.
    pub fn has_repository(&self) -> bool {
        !self.models.repositories().is_empty()
    }

    /// Serves [`DEFAULT_REPOSITORY`], if no model repository is named.
    pub fn use_default_repository(&mut self) {
        self.models.set_repository(DEFAULT_REPOSITORY);
    }

    /// Time limit for requests in progress at shutdown.
    pub fn exit_timeout(&self) -> Duration {
        Duration::from_secs(self.server.exit_timeout_secs)
    }

    /// Whether a model that fails to load at start ends the server.
    pub fn exits_on_error(&self) -> bool {
        self.server.exit_on_error
    }

    /// The number of I/O threads.
    pub fn io_threads(&self) -> usize {
        self.http.threads()
    }

    /// Whether the server keeps metrics.
    pub fn keeps_metrics(&self) -> bool {
        self.metrics.allow_metrics
    }

    /// The settings of the log.
    pub fn log_settings(&self) -> LogSettings {
        self.log.settings()
    }

    /// The file that further options were read from.
    pub fn config_file(&self) -> Option<&Path> {
        self.configurations.config_file.as_deref()
    }

    /// Checks the options that name models, once those to load at start are loaded.
    ///
    /// # Errors
    /// An option names a model that is not served.
    pub fn check_models(&self, server: &Server) -> Result<(), String> {
        self.vertex_ai.check_model(server)
    }

    fn metrics_address(&self) -> Address {
        self.metrics.address(&self.http.host())
    }

    /// The server that these options describe.
    ///
    /// # Errors
    /// Conflicting options, or an unusable environment variable.
    pub fn config(&self) -> Result<Config, String> {
        let http_host = self.http.host();
        let faces = [
            self.grpc.face()?.map(boxed),
            self.metrics.face(&http_host).map(boxed),
            self.http.face()?.map(boxed),
            self.http.console_face()?.map(boxed),
            self.http.openai_face()?.map(boxed),
            self.vertex_ai.face(&self.http, |name| env::var(name).ok())?.map(boxed),
            self.sagemaker.face(&self.http, |name| env::var(name).ok())?.map(boxed),
        ];
        let mut platform = self.configurations.platform(self.pools.sizes());
        platform.gpus.load_limits = self.devices.load_limits();
        Ok(Config {
            repositories: self.models.repositories(),
            clouds: CloudOptions { cache: self.models.cache(), ..CloudOptions::default() },
            agents: self.agents.agents(),
            namespacing: self.models.namespacing(),
            reading: self.configurations.read_options(),
            models_at_start: self.models.at_start(),
            poll: self.models.poll(),
            residency: self.models.residency(),
            memory_records: self.models.memory_records(),
            server: self.server_options()?,
            response_cache: self.cache.cache(),
            platform,
            client_shared_memory: self.server.allow_client_shm,
            collector: trace::collector(|name| env::var(name).ok()),
            metrics: self.metrics.exposed(),
            access: self.access.rules(),
            audit_log: self.access.audit_log(),
            load_reports: match self.server.load_reports {
                LoadReports::Off => None,
                LoadReports::OnRequest => Some(Reporting::OnRequest),
                LoadReports::Always => Some(Reporting::Always),
            },
            faces: faces.into_iter().flatten().collect(),
        })
    }

    fn server_options(&self) -> Result<ServerOptions, String> {
        Ok(ServerOptions {
            name: self.server.id.clone(),
            version: VERSION.to_owned(),
            strict_readiness: self.server.strict_readiness,
            load_threads: self.models.load_threads(),
            load_retries: self.models.load_retries(),
            model_control: self.models.control(),
            rate_limit: self.execution.rate_limit(),
            load_shedding: self.execution.load_shedding(),
            max_inflight_requests: self.server.max_inflight_requests,
            max_inflight_bytes: self.server.max_inflight_bytes.unwrap_or_else(memory::default_budget),
            max_unread: self.server.max_unread_response_bytes,
            hold_batches: hold("TRITONSERVER_DELAY_SCHEDULER"),
            hold_backlog: hold("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
            latencies: self.metrics.latencies(),
            trace: self.trace.settings()?,
            host_policies: self.execution.host_policies()?,
            ..ServerOptions::default()
        })
    }

    /// Warnings about the given options: deprecated, without effect, or not implemented yet.
    pub fn advice(&self) -> Vec<String> {
        let mut advice: Vec<_> = self.configurations.advice().map(str::to_owned).into_iter().collect();
        advice.extend(self.cache.advice().map(str::to_owned));
        advice.extend(self.execution.advice());
        advice.extend(self.devices.advice());
        advice.extend(self.trace.advice());
        advice.extend(self.grpc.advice());
        advice.extend(self.metrics.advice());
        advice
    }

    /// A conflict between options.
    pub fn contradiction(&self) -> Option<String> {
        let contradiction = || self.models.contradiction().or_else(|| self.cache.contradiction());
        let contradiction = || contradiction().or_else(|| self.http.contradiction());
        self.wrong_ports().or_else(|| contradiction().map(str::to_owned))
    }

    /// The addresses of the protocols that are served, by the options of their ports.
    fn addresses(&self) -> Vec<(&'static str, Address)> {
        let http = self.http.allow_http.then(|| self.http.address());
        let grpc = self.grpc.allow_grpc.then(|| self.grpc.address());
        let metrics = self.metrics.allow_metrics.then(|| self.metrics_address());
        let all = [
            ("--http-port", http),
            ("--console-port", self.http.console_address()),
            ("--openai-port", self.http.openai_address()),
            ("--grpc-port", grpc),
            ("--metrics-port", metrics),
            (SAGEMAKER_PORT, self.sagemaker.address()),
            ("--vertex-ai-port", self.vertex_ai.address()),
        ];
        all.into_iter().filter_map(|(option, address)| Some((option, address?))).collect()
    }

    /// Ports that are the same, or outside of the range that another protocol allows.
    fn wrong_ports(&self) -> Option<String> {
        let addresses = self.addresses();
        for (index, (option, address)) in addresses.iter().enumerate() {
            if let Some((other, _)) = addresses[..index].iter().find(|(_, other)| other.collides(address)) {
                if address.as_tcp().is_none() {
                    return Some(format!(
                        "{other} and {option} are the same; each protocol needs its own socket"
                    ));
                }
                return Some(format!("{other} and {option} are the same; each protocol needs its own port"));
            }
        }
        let sagemaker = self.sagemaker.address()?;
        let others = addresses.iter().filter(|(option, _)| *option != SAGEMAKER_PORT);
        let ports = others.filter_map(|(option, address)| Some((option, address.as_tcp()?)));
        let mut on_same_host =
            ports.filter(|(_, address)| sagemaker.as_tcp().is_some_and(|own| own.host == address.host));
        let (option, address) = on_same_host.find(|(_, address)| !self.sagemaker.allows(address.port))?;
        Some(format!("{option} is {}, which is not in --sagemaker-safe-port-range", address.port))
    }
}

/// The error of a command line whose options conflict, with the usage.
pub fn conflict(reason: String) -> clap::Error {
    help::command().error(ErrorKind::ArgumentConflict, reason)
}

/// A warning for each given option that has no effect, with the reason.
fn without_effect<const N: usize>(
    why: &'static str,
    options: [(bool, &'static str); N],
) -> impl Iterator<Item = String> {
    let given = options.into_iter().filter(|(given, _)| *given);
    given.map(move |(_, name)| format!("{name} has no effect: {why}"))
}

fn boxed(face: impl Face + 'static) -> Box<dyn Face> {
    Box::new(face)
}

/// Triton's hooks for tests that need full queues: batchers start at this many requests.
fn hold(variable: &str) -> usize {
    env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod embedded;
#[cfg(test)]
mod keywords;
#[cfg(test)]
mod manual;
#[cfg(test)]
mod page;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod tests;

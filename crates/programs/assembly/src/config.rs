//! The configuration of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::{MetricRegistry, ServerOptions};
use nereid_load_report::Reporting;
use nereid_metrics::MetricsOptions;
use nereid_object_stores::CloudOptions;
use nereid_protocol::LogControl;
use nereid_repository::ReadOptions;
use nereid_residency::ResidencyOptions;
use nereid_shared_memory::FaultHandler;
use nereid_trace::CollectorOptions;
use tokio::runtime::Handle;

use crate::agents::AgentConfig;
use crate::caches::CacheConfig;
use crate::faces::Face;
use crate::memory_records::MemoryRecords;
use crate::platform::PlatformConfig;

/// Configuration of a server.
pub struct Config {
    /// The model repositories: folders, or addresses in clouds such as `s3://bucket/models`.
    pub repositories: Vec<PathBuf>,
    /// Access to repositories in clouds, and the cache of their files.
    pub clouds: CloudOptions,
    /// The repository agents.
    pub agents: AgentConfig,
    /// Whether models of the same name in different repositories are served side by side.
    pub namespacing: bool,
    /// How to read model folders. The GPUs are those of `platform`.
    pub reading: ReadOptions,
    /// The models to load at start; `None` for all.
    pub models_at_start: Option<Vec<String>>,
    /// How to poll the repositories; `None` for never.
    pub poll: Option<PollConfig>,
    /// Which models are in memory.
    pub residency: ResidencyOptions,
    /// Where the memory of models is recorded for the next start, unless `residency.records` names a folder.
    pub memory_records: MemoryRecords,
    /// The server itself. `gpus` and `gpu_limits` come from `platform`, `metrics` from the process; without a
    /// `trace_store`, `trace` configures one, and without a `residency`, the options above do.
    pub server: ServerOptions,
    /// The response cache, if any. It intercepts requests after `server.interceptors`.
    pub response_cache: Option<CacheConfig>,
    /// Backends and GPUs.
    pub platform: PlatformConfig,
    /// Whether clients may register shared memory.
    pub client_shared_memory: bool,
    /// The collector of traces in mode `opentelemetry`, unless the settings of `server.trace` name another.
    pub collector: CollectorOptions,
    /// Metrics to expose. GPU metrics require GPUs.
    pub metrics: MetricsOptions,
    /// The rights of clients.
    pub access: AccessRules,
    /// The file of the audit log: who changed what, and who was refused.
    pub audit_log: Option<PathBuf>,
    /// When to send load reports to clients; `None` for never.
    pub load_reports: Option<Reporting>,
    /// The faces: addresses and protocols.
    pub faces: Vec<Box<dyn Face>>,
}

/// The version that the server reports. Clients compare the name with Triton's, so the version identifies this server.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+nereid");

impl Default for Config {
    /// No model repository and no face.
    fn default() -> Self {
        Self {
            repositories: Vec::new(),
            clouds: CloudOptions::default(),
            agents: AgentConfig::default(),
            namespacing: false,
            reading: ReadOptions::default(),
            models_at_start: None,
            poll: None,
            residency: ResidencyOptions::default(),
            memory_records: MemoryRecords::Off,
            server: ServerOptions {
                name: "triton".to_owned(),
                version: VERSION.to_owned(),
                strict_readiness: true,
                load_threads: 4,
                max_unread: 256 << 20,
                ..ServerOptions::default()
            },
            response_cache: None,
            platform: PlatformConfig::default(),
            client_shared_memory: true,
            collector: CollectorOptions::default(),
            metrics: MetricsOptions { gpu: true, ..MetricsOptions::default() },
            access: AccessRules::default(),
            audit_log: None,
            load_reports: Some(Reporting::default()),
            faces: Vec::new(),
        }
    }
}

/// The rights of clients, over all protocols.
#[derive(Clone, Debug, Default)]
pub enum AccessRules {
    /// Every client may do everything.
    Trusting,
    /// Every client may do everything, except that clients of other machines need a certificate or the key of a restricted
    /// API to load files of their own or to use shared memory.
    #[default]
    Wary,
    /// The access policy in this file, which the server follows.
    Policy(PathBuf),
}

/// How to poll the repositories.
#[derive(Clone, Debug)]
pub struct PollConfig {
    /// The time between two polls.
    pub interval: Duration,
    /// Whether changes that the file system reports start a poll, too.
    pub watch: bool,
}

/// The parts of the process that a server uses.
#[derive(Clone, Default)]
pub struct Process {
    /// Runs the faces. `None` starts a runtime for this server.
    pub runtime: Option<Handle>,
    /// The settings of the process's log, which clients may read and change.
    pub log: Arc<LogControl>,
    /// Lets clients register system shared memory; without it, registrations are refused.
    pub memory_faults: Option<FaultHandler>,
    /// The metrics of native backends. Triton's C interface keeps them for the process, not for a server: see
    /// `nereid_triton_host::metric_registry`.
    pub backend_metrics: MetricRegistry,
}

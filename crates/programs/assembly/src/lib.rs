//! Builds a running server from a typed configuration, and stops it.
//!
//! A [`Config`] describes the server and its [faces](Face); a [`Process`] holds the process-wide parts: the tokio
//! runtime, the metrics registry of native backends, the handler of memory faults. [`start`] combines both into a
//! [`RunningServer`]. Several may run in one process.
//!
//! This crate does not parse options, read their environment variables or handle signals, and it installs no log
//! subscriber. The program does that.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod advice;
mod agents;
mod backend_settings;
mod backends;
mod caches;
mod config;
mod engine_check;
mod error;
mod faces;
mod gpus;
mod hub_engines;
mod installed;
mod isolation;
mod llamacpp;
mod memory_records;
mod netdef;
mod onnx_engine;
mod openvino;
mod platform;
mod poll;
mod pull;
mod python;
mod pytorch;
mod repositories;
mod running;
mod tensorflow;
mod token_keys;
mod traces;
mod transformers;

pub use agents::AgentConfig;
pub use backends::{BackendSetting, BackendsConfig, InstalledBackends};
pub use caches::CacheConfig;
pub use config::{AccessRules, Config, PollConfig, Process, VERSION};
pub use engine_check::EngineCheck;
pub use error::{StartError, StopError};
pub use faces::{
    ConsolePort, Endpoint, Face, FaceContext, Grpc, Http, Metrics, OpenAiPort, OpenAiSettings, SageMaker,
    Serving, VertexAi,
};
pub use gpus::{DriverLibrary, Gpus, GpusConfig};
pub use hub_engines::{FrameworkLibrary, engines, libraries};
pub use isolation::{HOST, HOST_INFORMS, host};
pub use memory_records::MemoryRecords;
pub use nereid_load_report::Reporting;
pub use nereid_metrics::MetricsOptions;
pub use nereid_net::listener::{Address, LocalAddress, TlsFiles};
pub use nereid_object_stores::{CacheOptions, CloudOptions, redacted};
pub use nereid_onnxruntime::external_data;
pub use nereid_openai::{AnswerFolder, OpenAiPrefix};
pub use nereid_repository::{
    Additions, AgentDefault, LocalModel, NamedAgent, ReadOptions, Sources, StagedModel, Transfer,
};
pub use nereid_residency::ResidencyOptions;
pub use nereid_trace::CollectorOptions;
pub use platform::{Platform, PlatformConfig};
pub use pull::{Parts, PullProgress, is_address, pull};
pub use repositories::Registration;
pub use running::{LoadOutcome, RunningServer, start};

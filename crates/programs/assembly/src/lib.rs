//! Builds a running server from a typed configuration, and stops it.
//!
//! A [`Config`] says what to serve and on which [faces](Face); a [`Process`] holds what belongs to the process that the
//! server runs in: the tokio runtime, the registry of the metrics that native backends keep, the handler of memory
//! faults. [`start`] makes a [`RunningServer`] of both. Several may run in one process.
//!
//! This crate knows no command line, no environment of options and no signal, and installs nothing in the process: no log
//! subscriber, no signal handler. That is up to the program.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod agents;
mod backends;
mod caches;
mod config;
mod error;
mod faces;
mod gpus;
mod isolation;
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
mod traces;

pub use agents::AgentConfig;
pub use backends::{BackendSetting, BackendsConfig, InstalledBackends};
pub use caches::CacheConfig;
pub use config::{Config, PollConfig, Process, VERSION};
pub use error::{StartError, StopError};
pub use faces::{Endpoint, Face, FaceContext, Grpc, Http, Metrics, SageMaker, Serving, VertexAi};
pub use gpus::{DriverLibrary, Gpus, GpusConfig};
pub use isolation::{HOST, HOST_INFORMS, host};
pub use nereid_object_stores::{CacheOptions, CloudOptions};
pub use nereid_repository::{AgentDefault, NamedAgent};
pub use platform::{Platform, PlatformConfig};
pub use pull::{PullProgress, is_address, pull};
pub use repositories::Registration;
pub use running::{LoadOutcome, RunningServer, start};

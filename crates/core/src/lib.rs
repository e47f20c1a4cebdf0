//! The server without a face: the model table, admission of requests, scheduling, execution and statistics.
//!
//! [`Server::infer`] is the one way in for every protocol. This crate knows of no protocol, no framework, no storage
//! and no C; it is told of models by whoever reads repositories, and of backends by whoever registers them.

#![forbid(unsafe_code)]

mod admission;
mod classification;
mod inflight;
mod instance;
mod model;
mod scheduler;
mod server;
mod signature;
mod statistics;
mod table;

pub use inflight::ResponseStream;
pub use model::{Labels, Model, ModelSpec};
pub use nereid_backend_api as backend_api;
pub use nereid_model_config as model_config;
pub use scheduler::{Claim, Scheduler};
pub use server::{Server, ServerOptions};
pub use signature::{InputSignature, OutputSignature, Signature};
pub use statistics::{BatchStatistics, DurationStatistics, InferStatistics, ModelStatistics};
pub use table::{ModelStatus, ModelTable, VersionState};

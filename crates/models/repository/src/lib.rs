//! Reads model folders into the specifications that the server loads.
//!
//! This crate implements the layout of repositories. It depends on no backend, request or protocol.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod additions;
mod agents;
mod fingerprint;
mod gguf;
mod model_folder;
mod needed_files;
mod registered;
mod route;
mod sent;
mod source;
mod store;
mod texts;
mod transformers;
mod watch;

pub use additions::{Additions, ExternalData, LocalModel, Sources, StagedModel, Transfer};
pub use agents::{
    AGENTS_FILE, Agent, AgentDefault, Agents, AgentsOfRepository, NamedAgent, agents_of_folder, own_agents,
};
pub use gguf::{GgufPart, is_gguf_model};
pub use model_folder::{Gpus, ReadOptions, config_path, entries, read_model, version_number};
pub use route::{NextPiece, Route, RouteAnswer, RouteBody, RouteError, RouteFuture, RoutedObject, Way};
#[cfg(feature = "conformance")]
pub use source::conformance::check_source;
pub use source::{Misplaced, Repositories};
#[cfg(feature = "conformance")]
pub use store::conformance;
pub use store::{Entry, Fetch, FetchedFolder, LocalStore, Object, ObjectKind, Store};
pub use texts::{text_files, text_root};
pub use transformers::{has_transformers_model, is_of_transformers_model, is_transformers_model};
pub use watch::Watch;

//! Checks model repositories, by default without loading a model.
//!
//! Every configuration is read as the server reads it, and every broken rule is reported with its place; folders are
//! checked for missing and unused files. What only a model's own file can tell is left to its backend: [`complete`]
//! asks it, for one model. Knows no command line, and prints nothing.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod agents;
mod complete;
mod config;
mod deep;
mod ensemble;
mod json;
mod model;
mod report;
mod repository;
mod table;

use nereid_core::Backends;
use nereid_repository::ReadOptions;

pub use agents::AgentContext;
pub use complete::complete;
pub use report::{AgentNames, CheckedModel, Finding, Report, Severity};
pub use repository::check;
pub use table::draw as draw_table;

/// What models are checked against.
pub struct Context<'a> {
    /// How model folders are read.
    pub reading: ReadOptions,
    /// The backends of the server.
    pub backends: &'a Backends,
    /// The repository agents of the server.
    pub agents: AgentContext<'a>,
    /// The numbers of the machine's GPUs.
    pub gpus: Vec<i32>,
    /// Whether models in which no mistake is found are loaded, one after another, to find those that only their backends can
    /// find.
    pub deep: bool,
}

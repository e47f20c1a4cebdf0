//! Checks model repositories, by default without loading a model.
//!
//! Every configuration is read as the server reads it, and every violation is reported with its location; folders are
//! checked for missing and unused files. What is quickly known of a model's own file comes from its [engine](Engines); the
//! rest is left to its backend: [`complete`] queries it, for one model. This crate neither parses command lines nor prints.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod agents;
mod complete;
mod config;
mod deep;
mod engines;
mod ensemble;
mod json;
mod model;
mod parameters;
mod report;
mod repository;
mod table;
mod texts;

use nereid_core::Backends;
use nereid_repository::ReadOptions;

pub use agents::AgentContext;
pub use complete::{complete, completed};
pub use engines::Engines;
pub use report::{AgentNames, CheckedModel, Finding, Report, Severity};
pub use repository::{check, check_model};
pub use table::{draw as draw_table, wrap as wrap_cell};

/// Context of the checks.
pub struct Context<'a> {
    /// How to read model folders.
    pub reading: ReadOptions,
    /// The backends of the server.
    pub backends: &'a Backends,
    /// The engines of the backends.
    pub engines: &'a dyn Engines,
    /// The repository agents of the server.
    pub agents: AgentContext<'a>,
    /// The numbers of the machine's GPUs.
    pub gpus: Vec<i32>,
    /// Whether models in which no mistake is found are loaded, one after another, to find those that only their
    /// backends can find.
    pub deep: bool,
}

#[cfg(test)]
mod tests;

//! What the tests of several crates share: a scripted backend, a gate that holds its batches, and configurations from
//! a few words of text.
//!
//! It knows `backend-api` and `model-config` only, so that the unit tests of `core` can use it too: with a dependency on
//! `core` they would see two of them.

#![forbid(unsafe_code)]

mod backend;
mod config;
pub mod conformance;
pub mod corpus;
mod gate;
mod recorder;
pub mod scripts;

pub use backend::{ScriptedBackend, ScriptedModel};
pub use config::{config, context, normalised};
pub use gate::Gate;
pub use recorder::{Executions, Recorder};

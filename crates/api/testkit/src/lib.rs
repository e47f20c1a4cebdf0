//! Test fixtures for several crates: a scripted backend, a gate that holds its batches, configurations from short texts, and a
//! small tokenizer.
//!
//! This crate depends only on `backend-api` and `model-config`, so that the unit tests of `core` can use it too: with a
//! dependency on `core`, they would be linked with two copies of it.

#![forbid(unsafe_code)]

mod backend;
mod config;
pub mod conformance;
pub mod corpus;
mod gate;
mod recorder;
pub mod scripts;
mod texts;

pub use backend::{ScriptedBackend, ScriptedModel};
pub use config::{config, context, normalised};
pub use gate::Gate;
pub use recorder::{Executions, Recorder};
pub use texts::TOKENIZER;

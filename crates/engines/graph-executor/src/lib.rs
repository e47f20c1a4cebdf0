//! Executes batches on frameworks that run graphs: the part that their backends share.
//!
//! A backend's author does three things. When a model is loaded, describe the graph as a [`Signature`] and make a
//! [`GraphModel`] of it, which checks the configuration against the graph. Implement [`Engine`] on the framework's
//! session: gather an input, run, read an output. And return [`Executor::new`] as the model's instance.
//!
//! The rest is implemented here once, so that a model behaves the same on every engine: grouping requests with
//! compatible inputs, gathering them into batches, ragged and optional inputs, batch inputs and batch outputs,
//! scattering outputs to requests, states of sequences, and outputs in memory that the client chose.
//!
//! The crate opens no file and runs no graph: it knows no model format and no framework.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod check;
mod contents;
mod elements;
mod engine;
mod executor;
mod inputs;
mod lanes;
mod model;
mod signature;

pub use contents::Contents;
pub use elements::{Elements, Words, fits_address};
pub use engine::{Engine, RunInput, Target};
pub use executor::Executor;
pub use inputs::{Input, Source, optional_inputs};
pub use lanes::Lanes;
pub use model::{GraphModel, Output, Shapes};
pub use signature::{Dims, Port, Signature};

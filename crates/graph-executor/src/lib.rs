//! Executes batches on anything that runs a graph: what the backends of all such frameworks share.
//!
//! A backend's author does three things. When a model is loaded, describe the graph as a [`Signature`] and make a
//! [`GraphModel`] of it, which checks the configuration against the graph. Implement [`Engine`] on the framework's
//! session: gather an input, run, read an output. And return [`Executor::new`] as the model's instance.
//!
//! Everything else is written here once, so that a model answers alike whichever engine runs it: grouping requests whose
//! inputs fit together, gathering them into batches, ragged and optional inputs, batch inputs and batch outputs,
//! scattering outputs to requests, states of sequences, and outputs in memory that the client chose.
//!
//! The crate opens no file and runs no graph: it knows no model format and no framework.

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

//! What all engines for ONNX models do alike: a model's configuration is held against what its file declares, requests
//! are joined into batches, and outputs are cut apart again.
//!
//! An engine implements [`Engine`] and hands it to [`Executor`], which is the instance that a backend gives to the
//! server. The rules of joining and cutting, ragged inputs and optional ones included, are written here once, so that
//! a model answers the same whichever engine runs it.
//!
//! The crate opens no file and runs no graph: it knows neither protobuf nor any engine.

#![forbid(unsafe_code)]

mod check;
mod contents;
mod executor;
mod inputs;
mod signature;

pub use check::{inputs as check_inputs, outputs as check_outputs};
pub use contents::Contents;
pub use executor::{Engine, Executor, Given, Output, Served, Shapes, Target};
pub use inputs::{Input, Source, optional as optional_inputs, resolve as resolve_inputs};
pub use signature::{Dims, Port, Signature};

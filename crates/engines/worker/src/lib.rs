//! Runs instances of models in separate processes: starts, watches, limits and restarts a process, and passes requests,
//! responses and the model's calls of the server between the two.
//!
//! [`Process`] is one process: its [calls](Process::call), and a thread that watches it and serves its side channel.
//! [`Worker`] keeps one running, and restarts it when it dies; [`WorkerInstance`] executes batches in it. A
//! [`WorkerModel`] is a model with such instances. [`host`] is the other side: it serves the calls of a server in a
//! process, with any backend.
//!
//! The protocol is that of `nereid-worker-protocol`. Processes are not trusted: one that breaks the protocol is killed,
//! and its requests get an error. This crate knows no language and no framework.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod calls;
mod convert;
mod host;
mod instance;
mod label;
mod launch;
mod life;
mod lines;
mod metrics;
mod mirror;
mod model;
mod process;
mod requests;
mod sandbox;
mod service;
mod supervisor;
mod wake;
mod worker;

pub use host::{host, instance_arguments, model_arguments};
pub use instance::WorkerInstance;
pub use launch::Launch;
pub use model::{Arguments, Program, WorkerModel};
pub use process::{Limits, Process};
pub use sandbox::SandboxSettings;
pub use worker::{State, Worker, WorkerEvents, Workers};

//! Measurements of the server beside a baseline that moves the same bytes.

mod cache;
mod client;
mod clouds;
mod embedded;
mod frameworks;
mod grpc;
mod http;
mod load;
mod nvidia;
mod onnxruntime;
mod pairs;
mod processes;
mod programs;
mod python;
mod reference;
mod report;
mod repository;
mod scheduling;
mod server;
mod summary;

use anyhow::Result;
use clap::Subcommand;

use crate::project::Project;

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// Binary inference requests over HTTP: small ones beside nginx answering with as many bytes, large ones beside an echo
    Http(http::Options),
    /// Inference requests over gRPC, beside a bare service that echoes the same messages
    Grpc(grpc::Options),
    /// A large model from S3, beside a bare download of the same ranges
    Clouds(clouds::Options),
    /// A server within a program: calls through the C interface beside Rust's, and Python's requests beside gRPC
    Embedded,
    /// What the server adds to OpenVINO and ONNX Runtime, beside their own Python
    Frameworks(frameworks::Options),
    /// What the server costs on top of ONNX Runtime, with real models
    Onnxruntime,
    /// Nereid and NVIDIA's tritonserver, with the same models, backend libraries and load
    Reference(reference::Options),
    /// Python models in Nereid's own backend, beside NVIDIA's server with its own
    Python(python::Options),
    /// The response cache: hits and misses beside the same model without it, and hits beside NVIDIA's server with its own
    Cache(cache::Options),
    /// What a request costs between a protocol and a backend, with backends that do nothing or take a millisecond
    Scheduling,
    /// Starting with and following a repository of many small models, and its index
    Repository(repository::Options),
}

/// Runs one measurement.
pub fn run(project: &Project, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Http(options) => http::run(project, options),
        Bench::Grpc(options) => grpc::run(project, options),
        Bench::Clouds(options) => clouds::run(project, options),
        Bench::Embedded => embedded::run(project),
        Bench::Frameworks(options) => frameworks::run(project, options),
        Bench::Onnxruntime => onnxruntime::run(project),
        Bench::Reference(options) => reference::run(project, options),
        Bench::Python(options) => python::run(project, options),
        Bench::Cache(options) => cache::run(project, options),
        Bench::Scheduling => scheduling::run(project),
        Bench::Repository(options) => repository::run(project, options),
    }
}

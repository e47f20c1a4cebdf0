//! Benchmarks of the server against a baseline that moves the same bytes, and the guard of the instructions that a request
//! takes.

mod access;
mod cache;
mod callgrind;
mod client;
mod clouds;
mod console;
mod dynamo;
mod embedded;
mod frameworks;
mod grpc;
mod guard;
mod http;
mod language;
mod load;
mod nvidia;
mod onnxruntime;
mod operations;
mod pairs;
mod processes;
mod programs;
mod python;
mod ray;
mod reference;
mod report;
mod repository;
mod scaling;
mod scheduling;
mod server;
mod shapes;
mod summary;
mod training;
mod transfers;

use std::path::Path;

use anyhow::Result;
use clap::Subcommand;

use crate::project::Project;

/// The benchmark to run.
#[derive(Subcommand)]
pub enum Bench {
    /// Binary inference requests over HTTP: small ones against nginx with responses of equal size, large ones against
    /// an echo
    Http(http::Options),
    /// Inference requests over gRPC, against a bare service that echoes the same messages
    Grpc(grpc::Options),
    /// Instructions per request, by Callgrind, against the committed baseline
    Guard(guard::Options),
    /// The cost of an access policy for a request: keys, tokens, rights and limits, against their targets; and the latency of a
    /// client's requests while another one floods the model
    Access,
    /// A large model from S3, against a bare download of the same ranges
    Clouds(clouds::Options),
    /// The console: its cost with and without open pages, and the same load with and without them
    Console(console::Options),
    /// A worker of NVIDIA Dynamo with Nereid's library, against one with NVIDIA's
    Dynamo(dynamo::Options),
    /// Embedded servers: calls through the C interface against Rust's, and Python's requests against gRPC
    Embedded,
    /// The server's overhead on OpenVINO and ONNX Runtime, against their own Python
    Frameworks(frameworks::Options),
    /// A language model: tokens a second, processor time and time to the first token, against llama.cpp's library alone
    Language(language::Options),
    /// The server's overhead on ONNX Runtime, with real models
    Onnxruntime,
    /// Many models: on demand, batches and instances that follow the load, conditional ensembles, releases, forests, and tuning
    Operations(operations::Options),
    /// Nereid and NVIDIA's tritonserver, with the same models, backend libraries and load
    Reference(reference::Options),
    /// Python models in Nereid's own backend, against NVIDIA's server with its own
    Python(python::Options),
    /// Servers behind Envoy, Nereid within Ray Serve, and the same models in plain Python on Ray Serve
    Ray(ray::Options),
    /// The response cache: hits and misses against the same model without it, and hits against NVIDIA's server with its
    /// own
    Cache(cache::Options),
    /// The cost of a request over the number of connections, against nginx, and over the size of its tensor, against an echo
    Scaling(scaling::Options),
    /// Other shapes of load, with targets: many models in turn, idle connections, live sequences, one request at a time, ensembles,
    /// a model of a gigabyte
    Shapes(shapes::Options),
    /// The cost of a request between a protocol and a backend, with backends that do nothing or take a millisecond
    Scheduling,
    /// Cache lines that pass between threads for a request, over the number of I/O threads, by an emulator
    Transfers(transfers::Options),
    /// Starting with and following a repository of many small models, and its index
    Repository(repository::Options),
}

/// Counts the instructions of requests, and fails if there are more than the baseline allows.
pub fn guard(project: &Project) -> Result<()> {
    guard::run(project, &guard::Options::default())
}

/// Sends a server the load that its counts guide a build by. Writes models into the folder.
pub fn train(project: &Project, program: &Path, folder: &Path) -> Result<()> {
    training::run(project, program, &programs::traffic(project)?, folder)
}

/// Runs one measurement.
pub fn run(project: &Project, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Http(options) => http::run(project, options),
        Bench::Grpc(options) => grpc::run(project, options),
        Bench::Guard(options) => guard::run(project, options),
        Bench::Access => access::run(project),
        Bench::Clouds(options) => clouds::run(project, options),
        Bench::Console(options) => console::run(project, options),
        Bench::Dynamo(options) => dynamo::run(project, options),
        Bench::Embedded => embedded::run(project),
        Bench::Frameworks(options) => frameworks::run(project, options),
        Bench::Language(options) => language::run(project, options),
        Bench::Onnxruntime => onnxruntime::run(project),
        Bench::Operations(options) => operations::run(project, options),
        Bench::Reference(options) => reference::run(project, options),
        Bench::Python(options) => python::run(project, options),
        Bench::Ray(options) => ray::run(project, options),
        Bench::Cache(options) => cache::run(project, options),
        Bench::Scaling(options) => scaling::run(project, options),
        Bench::Scheduling => scheduling::run(project),
        Bench::Shapes(options) => shapes::run(project, options),
        Bench::Transfers(options) => transfers::run(project, options),
        Bench::Repository(options) => repository::run(project, options),
    }
}

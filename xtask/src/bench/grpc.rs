//! Inference requests over gRPC: the cost of a request to a model that does nothing.
//!
//! The baseline is a bare tonic service that decodes the same messages and echoes their tensors. Both get the same load
//! in turn; figures are compared within each pair.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use super::http::write_repository;
use super::load::{LoadResults, parse_results};
use super::programs::on_core;
use super::server::Server;
use super::summary::{heading, rows};
use super::{pairs, programs};
use crate::project::Project;

/// Requests in flight on one connection, as in a client that shares one.
const EACH: u32 = 8;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Length of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Numbers of requests in flight, eight on each connection, each measured on its own
    #[arg(long, value_delimiter = ',', default_value = "8,64", value_parser = clap::value_parser!(u32).range(1..=512))]
    in_flight: Vec<u32>,
    /// Sizes of the tensor in bytes, each measured on its own
    #[arg(long, value_delimiter = ',', default_value = "64,1048576", value_parser = clap::value_parser!(u32).range(4..=64 << 20))]
    bytes: Vec<u32>,
    /// Ways to send requests, each measured on its own
    #[arg(long, value_delimiter = ',', default_value = "unary,stream")]
    ways: Vec<Way>,
    /// Pairs of runs for each load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Additional argument for the server; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    server_arg: Vec<String>,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// One unary call per request
    Unary,
    /// Requests of one connection share one stream
    Stream,
}

/// One load.
pub struct Load<'a> {
    program: &'a Path,
    way: Way,
    in_flight: u32,
    bytes: u32,
    core: Option<u32>,
}

/// Runs the whole comparison and prints its table.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let program = programs::traffic(project)?;
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    let nereid = Server::nereid(&binary, &write_repository(folder.path())?, &options.server_arg)?;
    let echo = Server::grpc_echo(&program)?;
    let cores = thread::available_parallelism()?.get();
    println!("{cores} cores, shared by the server and the load (1 thread); {} s a run", options.seconds);
    println!("{}", heading("load"));
    for bytes in &options.bytes {
        for way in &options.ways {
            for in_flight in &options.in_flight {
                let load =
                    Load { program: &program, way: *way, in_flight: *in_flight, bytes: *bytes, core: None };
                let run =
                    |server: &Server, seconds| load.run(server, seconds).with_context(|| load.to_string());
                let pairs = pairs::measure(&nereid, &echo, options.pairs, options.seconds, run)?;
                print!("{}", rows(&load.to_string(), echo.name, &pairs));
            }
        }
    }
    Ok(())
}

impl<'a> Load<'a> {
    /// Calls with a tensor of that size, from one processor only.
    pub(super) fn calls(program: &'a Path, in_flight: u32, bytes: u32, core: u32) -> Self {
        Self { program, way: Way::Unary, in_flight, bytes, core: Some(core) }
    }

    /// Requests with a tensor of that size, from any processor.
    pub(super) fn of(program: &'a Path, way: Way, in_flight: u32, bytes: u32) -> Self {
        Self { program, way, in_flight, bytes, core: None }
    }

    /// Requests with a tensor of that size, each after the answer to the one before.
    pub(super) fn one_at_a_time(program: &'a Path, way: Way, bytes: u32) -> Self {
        Self::of(program, way, 1, bytes)
    }

    fn connections(&self) -> u32 {
        if self.in_flight.is_multiple_of(EACH) { self.in_flight / EACH } else { 1 }
    }

    /// Sends for some seconds. Any error of any request fails the run.
    pub(super) fn run(&self, server: &Server, seconds: u32) -> Result<LoadResults> {
        self.run_for(server, &seconds.to_string(), None)
    }

    /// Like `run`, for a number of requests. Each waits until the server sleeps, and every byte of the answers is checked.
    pub(super) fn run_requests(&self, server: &Server, requests: u32) -> Result<LoadResults> {
        self.run_for(server, &format!("{requests}x"), Some(server.pid()))
    }

    fn run_for(&self, server: &Server, extent: &str, resting: Option<u32>) -> Result<LoadResults> {
        let address = server.grpc.with_context(|| format!("{} does not serve gRPC", server.name))?;
        let mut load = Command::new(self.program);
        load.args(["load", &address.to_string(), self.way.name()])
            .args([self.connections(), self.in_flight].map(|number| number.to_string()))
            .args([extent, &self.bytes.to_string()])
            .args(resting.map(|pid| pid.to_string()));
        let output = on_core(load, self.core).output().context("cannot start the load")?;
        ensure!(
            output.status.success(),
            "the load failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        parse_results(&String::from_utf8_lossy(&output.stdout))
    }
}

impl fmt::Display for Load<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, unit) = if self.bytes >= 1 << 20 { (self.bytes >> 20, "M") } else { (self.bytes, "") };
        f.pad(&format!("{} {} {size}{unit}", self.way.name(), self.in_flight))
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Stream => "stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_bear_eight_requests_each() {
        let load =
            |in_flight, bytes| Load { program: Path::new(""), way: Way::Unary, in_flight, bytes, core: None };
        assert_eq!(load(64, 4).connections(), 8);
        assert_eq!(load(8, 4).connections(), 1);
        assert_eq!(load(5, 4).connections(), 1);
        assert_eq!(load(64, 1 << 20).to_string(), "unary 64 1M");
        assert_eq!(load(8, 64).to_string(), "unary 8 64");
    }
}

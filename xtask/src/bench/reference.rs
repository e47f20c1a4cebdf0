//! Nereid and NVIDIA's tritonserver under the same load: the same models, the same backend libraries, the same client.
//!
//! Both run at the same time, and only one of them is under load. Runs alternate, and ratios are taken within each pair,
//! so a machine that slows down does not tilt the result. The tables are Markdown, ready for a document.

pub(super) mod setup;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use self::setup::Setup;
use super::client::Request;
use super::load::{Load, LoadResults, parse_results};
use super::programs::{LOAD_CORE, SERVER_CORE, on_core};
use super::report;
use super::server::Server;
use super::summary::Pair;
use super::{pairs, programs};
use crate::project::Project;

/// Idle time before a server's memory at rest is read.
const REST: Duration = Duration::from_millis(500);

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Length of each run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Pairs of runs for each load, and of starts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Requests in flight: connections over HTTP, requests on one connection over gRPC
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    in_flight: u32,
    /// Run the server on one processor and the load on another, so that they do not compete
    #[arg(long)]
    apart: bool,
    /// Loads to measure
    #[arg(long, value_delimiter = ',', default_values_t = Kind::value_variants().iter().copied())]
    loads: Vec<Kind>,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Interpreter of an environment with the requirements of the end-to-end tests, instead of making one
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// 64 bytes over HTTP
    Http,
    /// 1 MiB over HTTP
    HttpLarge,
    /// 1 MiB over HTTP, in system shared memory both ways
    SharedMemory,
    /// 64 bytes over gRPC
    Grpc,
    /// 1 MiB over gRPC
    GrpcLarge,
    /// 64 bytes on a stream of gRPC
    Stream,
    /// 64 bytes over HTTP through an ensemble of two models
    Ensemble,
    /// 64 bytes over HTTP through a Python model
    Python,
}

/// The figures of both servers under one load.
pub(super) struct Measured {
    pub kind: Kind,
    pub pairs: Vec<Pair>,
}

/// A figure of both servers.
#[derive(Clone, Copy)]
pub(super) struct Both<T> {
    pub nereid: T,
    pub reference: T,
}

/// The figures of both servers that no load affects.
pub(super) struct Footprint {
    /// Time from the start of the process until it is ready, with two small models.
    pub starts: Vec<Both<Duration>>,
    /// Bytes resident then.
    pub at_rest: Vec<Both<u64>>,
    /// Bytes resident after all loads.
    pub after_load: Both<u64>,
}

/// Measures, and prints the tables.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let traffic = programs::traffic(project)?;
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    let core = options.apart.then_some(SERVER_CORE);
    let setup = Setup::new(project, folder.path(), &binary, options.python.as_deref(), core)?;

    let (mut starts, mut at_rest) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs {
        println!("start, pair {pair}");
        let (nereid, reference) = (start(|| setup.nereid_at_rest())?, start(|| setup.reference_at_rest())?);
        starts.push(Both { nereid: nereid.0, reference: reference.0 });
        at_rest.push(Both { nereid: nereid.1, reference: reference.1 });
    }

    let servers = Both { nereid: setup.nereid()?, reference: setup.reference()? };
    let mut measured = Vec::new();
    for kind in &options.loads {
        println!("{kind}: {} pairs of {} s", options.pairs, options.seconds);
        let load = Prepared::new(*kind, &setup, folder.path(), &traffic, options)?;
        let run = |server: &Server, seconds| load.run(server, seconds);
        let (nereid, reference) = (&servers.nereid, &servers.reference);
        let pairs = pairs::measure(nereid, reference, options.pairs, options.seconds, run)?;
        measured.push(Measured { kind: *kind, pairs });
    }
    let after_load =
        Both { nereid: servers.nereid.resident_bytes()?, reference: servers.reference.resident_bytes()? };
    let cores = match options.apart {
        true => "1 core for the server, 1 for the load".to_owned(),
        false => {
            let cores = thread::available_parallelism()?;
            format!("{cores} cores, shared by the server and the load (1 thread)")
        }
    };
    println!("\n{cores}; {} in flight\n", options.in_flight);
    let rows: Vec<_> = measured.iter().map(|it| (title(it.kind), &it.pairs[..])).collect();
    print!("{}", report::loads(&rows));
    print!("\n{}", footprint(&Footprint { starts, at_rest, after_load }));
    Ok(())
}

/// Starts a server: how long that took, and its memory at rest.
fn start(server: impl FnOnce() -> Result<Server>) -> Result<(Duration, u64)> {
    let begin = Instant::now();
    let server = server()?;
    let took = begin.elapsed();
    thread::sleep(REST);
    Ok((took, server.resident_bytes()?))
}

/// A load, ready to run against either server.
enum Prepared {
    Http { load: Load, connections: u32 },
    Grpc { program: PathBuf, way: &'static str, in_flight: u32, bytes: usize, core: Option<u32> },
}

impl Prepared {
    fn new(kind: Kind, setup: &Setup, folder: &Path, traffic: &Path, options: &Options) -> Result<Self> {
        let (in_flight, core) = (options.in_flight, options.apart.then_some(LOAD_CORE));
        let http = |request: &Request| -> Result<Self> {
            let folder = folder.join(kind.to_string());
            fs::create_dir_all(&folder)?;
            Ok(Self::Http { load: Load::new(&folder, request)?.on_core(core), connections: in_flight })
        };
        let grpc = |way, bytes| Ok(Self::Grpc { program: traffic.to_owned(), way, in_flight, bytes, core });
        match kind {
            Kind::Http => http(&setup::request("identity", setup::SMALL)),
            Kind::HttpLarge => http(&setup::request("identity", setup::LARGE)),
            Kind::SharedMemory => http(&setup.region.request("identity")),
            Kind::Grpc => grpc("unary", setup::SMALL),
            Kind::GrpcLarge => grpc("unary", setup::LARGE),
            Kind::Stream => grpc("stream", setup::SMALL),
            Kind::Ensemble => http(&setup::request("ensemble", setup::SMALL)),
            Kind::Python => http(&setup::request("python", setup::SMALL)),
        }
    }

    /// Sends for some seconds. Any error of any request fails the run.
    fn run(&self, server: &Server, seconds: u32) -> Result<LoadResults> {
        match self {
            Self::Http { load, connections } => load.run(server.address, *connections, seconds),
            Self::Grpc { program, way, in_flight, bytes, core } => {
                let address = server.grpc.context("the server does not serve gRPC")?;
                let mut load = Command::new(program);
                load.args(["load", &address.to_string(), way, "1", &in_flight.to_string()])
                    .args([seconds.to_string(), bytes.to_string()]);
                let output = on_core(load, *core).output().context("cannot start the load")?;
                anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                parse_results(&String::from_utf8_lossy(&output.stdout))
            }
        }
        .with_context(|| format!("the load on {} failed", server.name))
    }
}

/// Start and memory.
fn footprint(footprint: &Footprint) -> String {
    let mut text = report::heading();
    let mebibytes =
        |bytes: Both<u64>| (bytes.nereid as f64 / 1_048_576.0, bytes.reference as f64 / 1_048_576.0);
    let starts = footprint.starts.iter();
    let starts = starts.map(|start| (start.nereid.as_secs_f64() * 1e3, start.reference.as_secs_f64() * 1e3));
    let at_rest = footprint.at_rest.iter().copied().map(mebibytes);
    report::row(&mut text, "start until ready, two small models", "ms", &starts.collect::<Vec<_>>());
    report::row(&mut text, "memory at rest, two small models", "MiB", &at_rest.collect::<Vec<_>>());
    report::row(&mut text, "memory after these loads", "MiB", &[mebibytes(footprint.after_load)]);
    text
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Http => "HTTP, 64 bytes",
        Kind::HttpLarge => "HTTP, 1 MiB",
        Kind::SharedMemory => "HTTP, 1 MiB in shared memory",
        Kind::Grpc => "gRPC, 64 bytes",
        Kind::GrpcLarge => "gRPC, 1 MiB",
        Kind::Stream => "gRPC stream, 64 bytes",
        Kind::Ensemble => "ensemble of two models, HTTP, 64 bytes",
        Kind::Python => "Python model, HTTP, 64 bytes",
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::HttpLarge => "http-large",
            Self::SharedMemory => "shared-memory",
            Self::Grpc => "grpc",
            Self::GrpcLarge => "grpc-large",
            Self::Stream => "stream",
            Self::Ensemble => "ensemble",
            Self::Python => "python",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_display_their_command_line_names() {
        for kind in Kind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.to_string());
        }
    }

    #[test]
    fn start_and_memory_are_rows_of_their_own() {
        fn both<T>(nereid: T, reference: T) -> Both<T> {
            Both { nereid, reference }
        }
        let text = footprint(&Footprint {
            starts: vec![both(Duration::from_millis(25), Duration::from_millis(250))],
            at_rest: vec![both(20 << 20, 100 << 20)],
            after_load: both(30 << 20, 1100 << 20),
        });
        let rows: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| start until ready, two small models | 25 ms | 250 ms | 10.0× |",
                "| memory at rest, two small models | 20 MiB | 100 MiB | 5.0× |",
                "| memory after these loads | 30 MiB | 1,100 MiB | 36.7× |",
            ]
        );
    }
}

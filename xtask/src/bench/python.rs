//! Python models in Nereid's own backend, against NVIDIA's server with its own: the same models, interpreter and load.
//!
//! Both servers run at the same time, and only one of them is under load. Runs alternate, and ratios are taken within
//! each pair. The tables are Markdown, ready for a document.

mod setup;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use self::setup::{LARGE, SMALL, Setup};
use super::load::{Load, LoadResults, parse_results};
use super::report;
use super::server::Server;
use super::summary::median;
use super::{pairs, programs};
use crate::project::Project;

/// Idle time before the memory of a server's processes is read.
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
    /// Loads to measure
    #[arg(long, value_delimiter = ',', default_values_t = Kind::value_variants().iter().copied())]
    loads: Vec<Kind>,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Interpreter of an environment with the requirements of the end-to-end tests, instead of making one
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Run NVIDIA's library in Nereid, too, instead of Nereid's own backend
    #[arg(long)]
    library: bool,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The sum and difference of 16 numbers over HTTP, one request at a time
    AddSub,
    /// AddSub over 8 connections
    AddSub8,
    /// 1 MiB in and out over HTTP, one request at a time
    Large,
    /// A decoupled model's 1,000 responses on a stream of gRPC
    Decoupled,
    /// A model that calls another model
    Bls,
}

struct Servers {
    nereid: Server,
    reference: Server,
}

/// Measures, and prints the tables.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let traffic = programs::traffic(project)?;
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    let setup = Setup::new(project, folder.path(), &binary, options.python.as_deref(), options.library)?;

    let mut starts = Vec::new();
    let mut memory = Vec::new();
    for pair in 1..=options.pairs {
        println!("start of 8 instances, pair {pair}");
        let (nereid, reference) = (start(|| setup.nereid_of_eight())?, start(|| setup.reference_of_eight())?);
        starts.push((nereid.took_ms, reference.took_ms));
        memory.push((nereid.mebibytes_each, reference.mebibytes_each));
    }
    let bare = setup.bare_mebibytes()?;

    let servers = Servers { nereid: setup.nereid()?, reference: setup.reference()? };
    let mut measured = Vec::new();
    for kind in &options.loads {
        println!("{kind}: {} pairs of {} s", options.pairs, options.seconds);
        let load = Prepared::new(*kind, folder.path(), &traffic)?;
        let run = |server: &Server, seconds| load.run(server, seconds);
        let (nereid, reference) = (&servers.nereid, &servers.reference);
        let pairs = pairs::measure(nereid, reference, options.pairs, options.seconds, run)?;
        measured.push((kind.title(), pairs));
    }
    println!("\n{} cores, shared by the server and the load (1 thread)\n", thread::available_parallelism()?);
    let rows: Vec<_> = measured.iter().map(|(title, pairs)| (*title, &pairs[..])).collect();
    print!("{}", report::loads(&rows));
    let mut text = report::heading();
    report::row(&mut text, "start until 8 instances that import numpy are ready", "ms", &starts);
    report::row(&mut text, "memory of each instance's process", "MiB", &memory);
    print!("\n{text}");
    println!("\n`python3 -c \"import numpy\"` has {bare:.1} MiB.");
    Ok(())
}

/// The figures of one start.
struct Started {
    took_ms: f64,
    /// Resident memory of each of the server's processes, as a median.
    mebibytes_each: f64,
}

fn start(server: impl FnOnce() -> Result<Server>) -> Result<Started> {
    let begin = Instant::now();
    let server = server()?;
    let took_ms = begin.elapsed().as_secs_f64() * 1e3;
    thread::sleep(REST);
    let bytes = server.resident_bytes_of_children()?;
    ensure!(bytes.len() == 8, "{} has {} processes for 8 instances", server.name, bytes.len());
    Ok(Started { took_ms, mebibytes_each: median(bytes.iter().map(|bytes| *bytes as f64 / 1_048_576.0)) })
}

/// A load, ready to run against either server.
enum Prepared {
    Http { load: Load, connections: u32 },
    Decoupled { program: PathBuf },
}

impl Prepared {
    fn new(kind: Kind, folder: &Path, traffic: &Path) -> Result<Self> {
        let (request, connections) = match kind {
            Kind::AddSub => (setup::add_sub(), 1),
            Kind::AddSub8 => (setup::add_sub(), 8),
            Kind::Large => (setup::request("large", LARGE), 1),
            Kind::Bls => (setup::request("bls", SMALL), 1),
            Kind::Decoupled => return Ok(Self::Decoupled { program: traffic.to_owned() }),
        };
        let folder = folder.join(kind.to_string());
        fs::create_dir_all(&folder)?;
        Ok(Self::Http { load: Load::new(&folder, &request)?, connections })
    }

    /// Sends for some seconds. Any error of any request fails the run.
    fn run(&self, server: &Server, seconds: u32) -> Result<LoadResults> {
        match self {
            Self::Http { load, connections } => load.run(server.address, *connections, seconds),
            Self::Decoupled { program } => {
                let address = server.grpc.context("the server does not serve gRPC")?;
                let output = Command::new(program)
                    .args(["load", &address.to_string(), "decoupled", "1", "1"])
                    .args([seconds.to_string(), SMALL.to_string()])
                    .output()
                    .context("cannot start the load")?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                parse_results(&String::from_utf8_lossy(&output.stdout))
            }
        }
        .with_context(|| format!("the load on {} failed", server.name))
    }
}

impl Kind {
    fn title(self) -> &'static str {
        match self {
            Self::AddSub => "sum and difference of 16 numbers, HTTP",
            Self::AddSub8 => "the same, 8 connections",
            Self::Large => "1 MiB in and out, HTTP",
            Self::Decoupled => "1,000 responses of a decoupled model, gRPC stream",
            Self::Bls => "a request that calls another model, HTTP",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddSub => "add-sub",
            Self::AddSub8 => "add-sub8",
            Self::Large => "large",
            Self::Decoupled => "decoupled",
            Self::Bls => "bls",
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
}

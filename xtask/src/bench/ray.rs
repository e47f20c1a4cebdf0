//! Servers behind Envoy, Nereid within Ray Serve, and plain Python on Ray Serve. The measurement is a Python program, because the programs
//! of clusters are started by the tests in Python; this module builds its requirements and starts it.

use anyhow::Result;
use clap::Args;

use super::programs;
use crate::package::wheel;
use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    clients: Vec<u32>,
    /// Seconds for each number of clients
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Servers, and replicas of Serve
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: u32,
}

/// Prints a table in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, None)?;
    let built = ["--package", "nereid-libtritonserver"];
    show(project.cargo(&["build", "--locked", "--release"]).args(built).args([
        "--lib",
        "--bin",
        "nereid-command",
    ]))?;
    wheel::pack(project, "release")?;
    let python = end_to_end_environment(project)?;
    let mut measure = python.command(project, &["tests/measure/ray_serve.py"]);
    let clients: Vec<_> = options.clients.iter().map(u32::to_string).collect();
    measure.env("NEREID_BINARY", binary).args(["--clients", &clients.join(",")]);
    measure.args(["--seconds", &options.seconds.to_string(), "--replicas", &options.replicas.to_string()]);
    show(&mut measure)
}

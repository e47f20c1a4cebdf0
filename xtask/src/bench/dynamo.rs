//! A worker of NVIDIA Dynamo with Nereid's library, and one with NVIDIA's. The measurement is a Python program, because the programs of
//! clusters are started by the tests in Python; this module builds the library and starts it.

use anyhow::Result;
use clap::Args;

use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Numbers of elements in a tensor
    #[arg(long, value_delimiter = ',', default_values_t = [16, 4096])]
    sizes: Vec<u32>,
    /// Clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Seconds for each of three rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// Prints a table in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let packages = ["--package", "nereid-libtritonserver", "--package", "nereid-cli"];
    show(project.cargo(&["build", "--locked", "--release"]).args(packages))?;
    let python = end_to_end_environment(project)?;
    let mut measure = python.command(project, &["tests/measure/dynamo_worker.py"]);
    let sizes: Vec<_> = options.sizes.iter().map(u32::to_string).collect();
    measure.env("NEREID_BINARY", project.target.join("release/nereid")).args(["--sizes", &sizes.join(",")]);
    measure.args(["--clients", &options.clients.to_string(), "--seconds", &options.seconds.to_string()]);
    show(&mut measure)
}

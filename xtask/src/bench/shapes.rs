//! Loads of other shapes than one model over a few connections. The measurement is a Python program, because the models are those of the
//! tests; this module builds its requirements and starts it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::programs;
use crate::project::{Project, show};
use crate::test::operations_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// What to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = ["models", "connections", "sequences", "single", "ensembles", "gigabyte"].map(str::to_owned),
        value_parser = ["models", "connections", "sequences", "single", "ensembles", "gigabyte"]
    )]
    parts: Vec<String>,
    /// Seconds for each load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Runs of each load, in turn with the one that it is compared with
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints a table in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-kserve", "--example", "echo"]))?;
    let python = operations_environment(project)?;
    let mut measure = python.command(project, &["tests/measure/shapes.py"]);
    measure.env("NEREID_BINARY", binary).args(["--parts", &options.parts.join(",")]);
    measure.args(["--seconds", &options.seconds.to_string(), "--pairs", &options.pairs.to_string()]);
    measure.arg("--echo").arg(project.target.join("release/examples/echo"));
    show(&mut measure)
}

//! A large model from S3, against a bare download and against NVIDIA's server. The measurement is a Python program,
//! because both servers are started as in the end-to-end tests; this module prepares its requirements and starts it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::programs;
use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Size of the model, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    megabytes: u32,
    /// Number of measurements of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints a table in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let python = end_to_end_environment(project)?;
    let (megabytes, rounds) = (options.megabytes.to_string(), options.rounds.to_string());
    show(python.command(project, &["tests/measure/clouds.py"]).arg(binary).args([megabytes, rounds]))
}

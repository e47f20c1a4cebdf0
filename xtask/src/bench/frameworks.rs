//! The server's overhead on OpenVINO, ONNX Runtime and TensorFlow, with real models. The measurement is a Python
//! program, because it compares with the frameworks' own Python; this module fetches its requirements and starts it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::programs;
use crate::fetch::{self, Fetch};
use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints a table in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    fetch::run(project, Fetch::Examples)?;
    let python = end_to_end_environment(project)?;
    show(python.command(project, &["tests/measure/frameworks.py"]).arg(binary))
}

//! Many models well: on demand, batches and instances that follow the load, conditional ensembles, releases, forests, and tuning. The
//! measurement is a Python program, because the models and their clients are those of the tests; this module builds its requirements and
//! starts it.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::programs;
use crate::project::{Project, show};
use crate::test::operations_environment;

/// The parts of the measurement.
const PARTS: [&str; 8] =
    ["many", "eviction", "batching", "instances", "ensembles", "releases", "forests", "tuning"];

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// What to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = PARTS.map(str::to_owned),
        value_parser = PARTS
    )]
    parts: Vec<String>,
    /// Number of models of the part `many`
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    models: u32,
    /// Seconds for each load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints tables in Markdown, and draws the charts of `docs/pictures`.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let bench = forest_bench(project)?;
    let python = operations_environment(project)?;
    let mut measure = python.command(project, &["tests/measure/operations.py"]);
    measure.env("NEREID_BINARY", binary).args(["--parts", &options.parts.join(",")]);
    measure.args(["--models", &options.models.to_string(), "--seconds", &options.seconds.to_string()]);
    measure.arg("--forest-bench").arg(bench);
    show(&mut measure)
}

/// Builds the benchmark of forests. Returns its program.
fn forest_bench(project: &Project) -> Result<PathBuf> {
    let mut cargo =
        project.cargo(&["bench", "--package", "nereid-forest", "--no-run", "--message-format=json"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the benchmark of forests does not build");
    let text = String::from_utf8(output.stdout)?;
    let is_bench = |message: &serde_json::Value| message["target"]["kind"][0] == "bench";
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program =
        messages.filter(is_bench).find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.context("cargo names no program of the benchmark of forests")
}

//! A repository of many small models: start time, cost of polling, latency of the index.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use super::client::{Request, post};
use super::programs;
use super::server::Server;
use crate::project::Project;

const MODEL: &str = r#"backend: "identity"
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

/// The number of requests for the index.
const ASKED: usize = 20;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Number of models
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    models: u32,
    /// Seconds to poll the unchanged repository, once a second
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Measures and prints what was found.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    write_models(folder.path(), options.models)?;
    let flags = ["--model-control-mode=poll", "--repository-poll-secs=1"].map(str::to_owned);
    let start = Instant::now();
    // All models are ready when `identity` is.
    let server = Server::nereid(&binary, folder.path(), &flags)?;
    println!("{} models are loaded after {:.2} s", options.models + 1, start.elapsed().as_secs_f64());

    thread::sleep(Duration::from_secs(2));
    let before = server.cpu()?;
    thread::sleep(Duration::from_secs(options.seconds.into()));
    let cpu = server.cpu()?.saturating_sub(before) / options.seconds;
    println!("a poll without changes takes {:.1} ms of CPU", cpu.as_secs_f64() * 1e3);

    let index = Request { path: "/v2/repository/index".into(), header_length: 0, body: Vec::new() };
    let mut times = Vec::new();
    for _ in 0..ASKED {
        let start = Instant::now();
        let answer = post(server.address, &index)?;
        times.push(start.elapsed());
        ensure!(answer.status == 200, "the index is refused: {answer:?}");
    }
    times.sort_unstable();
    println!("the index takes {:.1} ms (median of {ASKED})", times[ASKED / 2].as_secs_f64() * 1e3);
    Ok(())
}

fn write_models(folder: &Path, count: u32) -> Result<()> {
    let numbered = (0..count).map(|number| format!("model_{number}"));
    for name in numbered.chain(["identity".to_owned()]) {
        fs::create_dir_all(folder.join(&name).join("1"))?;
        fs::write(folder.join(&name).join("config.pbtxt"), MODEL)?;
    }
    Ok(())
}

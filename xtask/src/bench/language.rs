//! Language models on llama.cpp, against its library alone and, on demand, against other servers with OpenAI's interface. The measurement
//! is a Python program, because the tests' oracle calls the library in Python; this module starts it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::programs;
use crate::fetch::llama_server::{self, LlamaServer};
use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    clients: Vec<u32>,
    /// Requests of each client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    requests: u32,
    /// Threads of the engine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Measure this model instead of a small one from PyPI
    #[arg(long, value_name = "GGUF")]
    model: Option<PathBuf>,
    /// Measure a running server, too, and the processor time of its process: NAME=URL, or NAME=URL,PID
    #[arg(long, value_name = "NAME=URL")]
    beside: Vec<String>,
    /// Measure llama.cpp's own server, too, all on the library that it is built with. It is built once, which takes many minutes
    #[arg(long)]
    llama_server: bool,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Prints tables in Markdown.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let python = end_to_end_environment(project)?;
    let mut command = python.command(project, &["tests/measure/language.py"]);
    let clients: Vec<_> = options.clients.iter().map(u32::to_string).collect();
    command.env("NEREID_BINARY", binary).args(["--clients", &clients.join(",")]);
    command.args(["--requests", &options.requests.to_string(), "--threads", &options.threads.to_string()]);
    if let Some(model) = &options.model {
        command.arg("--model").arg(model);
    }
    if options.llama_server {
        let LlamaServer { program, library } = llama_server::build(project)?;
        command.arg("--llama-server").arg(program).arg("--library").arg(library);
    }
    for server in &options.beside {
        command.args(["--beside", server]);
    }
    show(&mut command)
}

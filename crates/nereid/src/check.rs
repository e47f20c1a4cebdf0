//! `nereid check`: looks a model repository over without loading a model.
//!
//! Every configuration is read as the server reads it, every broken rule is told with its place, and the folders are
//! looked at for what is missing and for what nothing reads. What only a model's own file can tell is left to its
//! backend; `--complete` asks that for one model.

mod complete;
mod config;
mod ensemble;
mod json;
mod model;
mod report;
mod repository;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use nereid_cuda::Pools;
use nereid_repository::ReadOptions;

use crate::backends::Installed;
use crate::options::CheckOptions;
use crate::{backends, gpus};

/// What models are held against.
struct Settings<'a> {
    reading: ReadOptions,
    /// The backends that the server has.
    backends: &'a Installed,
    /// The machine's GPUs, by their numbers.
    gpus: Vec<i32>,
}

/// Prints what it finds. Fails where a model, or a repository, would not load.
pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    let found = gpus::find(&options.configurations.driver).and_then(|gpus| {
        let backends = Installed::new(&options.configurations, &gpus, Arc::<Pools>::default());
        Ok((gpus.numbers, backends.map_err(|error| error.to_string())?))
    });
    let (gpus, backends) = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!("nereid check: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut reading = options.configurations.read_options();
    reading.gpus = backends::gpus(&gpus, &backends.registry);
    if let Some(name) = &options.complete {
        return match complete::complete(name, &options.repositories, &reading, &backends.registry) {
            Ok(text) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("nereid check: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let settings = Settings { reading, backends: &backends, gpus };
    let report = repository::check(&options.repositories, &settings);
    print(&match options.json {
        true => json::write(&report),
        false => report.to_string(),
    });
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(text: &str) {
    // Whoever reads this may stop early, as `head` does.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

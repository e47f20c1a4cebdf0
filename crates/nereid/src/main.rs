//! The `nereid` command: flags to options, build, run, drain; or check a repository. Everything it does is done by the crates it puts
//! together.

#![forbid(unsafe_code)]

mod check;
mod logging;
mod options;
mod run;

use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use nereid_protocol::LogControl;

fn main() -> ExitCode {
    let options = options::Options::parse();
    if let Some(options::Command::Check(options)) = &options.command {
        return check::run(options);
    }
    if let Some(reason) = options.contradiction() {
        options::Options::command().error(ErrorKind::ArgumentConflict, reason).exit();
    }
    let log = Arc::new(LogControl::new(options.logging()));
    if let Err(reason) = logging::start(&log) {
        eprintln!("error: {reason}");
        return ExitCode::FAILURE;
    }
    let status = match run::run(&options, log) {
        Ok(()) => 0,
        Err(reason) => {
            tracing::error!("{reason}");
            1
        }
    };
    // Threads that load or execute may still be at it.
    nereid_onnxruntime::leave(status);
    ExitCode::from(status)
}

//! The `nereid` command: reads options, and runs a server or checks a repository. It owns the process: log, signals and
//! exit. Everything else is done by the crates it puts together.

#![forbid(unsafe_code)]

mod check;
mod logging;
mod options;
mod run;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use clap::CommandFactory;
use clap::error::ErrorKind;
use nereid_protocol::LogControl;

fn main() -> ExitCode {
    let options = options::parse(env::args_os().collect(), |name| env::var_os(name))
        .unwrap_or_else(|error| error.exit());
    if let Some(options::Command::Check(options)) = &options.command {
        return check::run(options);
    }
    if let Some(reason) = options.contradiction() {
        options::Options::command().error(ErrorKind::ArgumentConflict, reason).exit();
    }
    let log = Arc::new(LogControl::new(options.log.settings()));
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
    // Threads that load or execute may still be running.
    nereid_onnxruntime::leave(status);
    ExitCode::from(status)
}

//! The command: reads options, and runs a server, checks or pulls a repository, prints completions, or hosts a backend
//! for a server. It owns the process: log, signals and exit. Other crates do everything else.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use clap::CommandFactory;
use clap::error::ErrorKind;
use nereid_protocol::LogControl;

use crate::screen::Screen;
use crate::{check, completions, hosting, logging, options, pull, run};

/// Runs the command line of this process to completion.
pub(crate) fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == nereid_assembly::HOST) {
        return hosting::run(arguments);
    }
    let options = options::parse(env::args_os().collect(), |name| env::var_os(name))
        .unwrap_or_else(|error| error.exit());
    match &options.command {
        Some(options::Command::Check(options)) => return check::run(options),
        Some(options::Command::Pull(options)) => return pull::run(options),
        Some(options::Command::Completions(options)) => return completions::print(options.shell),
        None => {}
    }
    if let Some(reason) = options.contradiction() {
        options::Options::command().error(ErrorKind::ArgumentConflict, reason).exit();
    }
    let log = Arc::new(LogControl::new(options.log.settings()));
    let screen = Screen::of_errors().map(Arc::new);
    if let Err(reason) = logging::start(&log, screen.as_ref()) {
        eprintln!("error: {reason}");
        return ExitCode::FAILURE;
    }
    if let Err(reason) = run::run(&options, log, screen.as_deref()) {
        tracing::error!("{reason}");
        // Threads that load or execute may still be running, in libraries whose destructors would wait for them.
        nereid_dylib::leave_now(1);
    }
    // An interrupted load may still be running.
    nereid_dylib::leave(0);
    ExitCode::SUCCESS
}

//! Reads the options of this process, and runs what they name.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use nereid_options::{Command, conflict, parse};
use nereid_protocol::LogControl;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::screen::Screen;
use crate::{access, check, completions, hosting, keys, pull, run};

/// Runs the command line of this process to completion.
pub(crate) fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == nereid_assembly::HOST) {
        return hosting::run(arguments);
    }
    let options =
        parse(env::args_os().collect(), |name| env::var_os(name)).unwrap_or_else(|error| error.exit());
    match &options.command {
        Some(Command::Check(options)) => return check::run(options),
        Some(Command::Pull(options)) => return pull::run(options),
        Some(Command::Keys(options)) => return keys::run(&options.command),
        Some(Command::Access(options)) => return access::run(&options.command),
        Some(Command::Completions(options)) => return completions::print(options.shell),
        None => {}
    }
    if let Some(reason) = options.contradiction() {
        conflict(reason).exit();
    }
    let log = Arc::new(LogControl::new(options.log_settings()));
    let screen = Screen::of_errors().map(Arc::new);
    let terminal = screen.clone().map(BoxMakeWriter::new);
    if let Err(reason) = nereid_logging::start(&log, terminal) {
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

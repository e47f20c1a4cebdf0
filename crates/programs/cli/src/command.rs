//! Reads the options of this process, and runs what they name.

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use nereid_options::{Command, DEFAULT_REPOSITORY, conflict, parse};
use nereid_protocol::LogControl;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::screen::Screen;
use crate::{access, add, check, client, completions, health, hosting, init, keys, pull, run, tune, version};

/// The exit status of a command line that cannot be run.
const USAGE: u8 = 2;

/// Help for a start without a model repository.
const NO_REPOSITORY: &str = "\
error: --model-repository must be specified, because there is no folder 'models' here
  nereid init models                  make one, with an example model, which 'nereid' then serves
  nereid add SOURCE                   put a model into it: model.onnx, model.pt, model.py, a SavedModel, hf://owner/name
  nereid --model-repository=FOLDER    serve another one; 'nereid -h' lists further options";

/// Runs the command line of this process to completion.
pub(crate) fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == nereid_assembly::HOST) {
        return hosting::run(arguments);
    }
    let mut options = match parse(env::args_os().collect(), |name| env::var_os(name)) {
        Ok(options) => options,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return version::print(),
        Err(error) => error.exit(),
    };
    match options.command.take() {
        Some(Command::Init(options)) => return init::run(&options),
        Some(Command::Add(options)) => return add::run(&options),
        Some(Command::Check(options)) => return check::run(&options),
        Some(Command::Pull(options)) => return pull::run(&options),
        Some(Command::Health(options)) => return health::run(options),
        Some(Command::Infer(options)) => return client::infer(&options),
        Some(Command::Top(options)) => return client::top(&options),
        Some(Command::Tune(options)) => return tune::run(&options),
        Some(Command::Keys(options)) => return keys::run(&options.command),
        Some(Command::Access(options)) => return access::run(&options.command),
        Some(Command::Completions(options)) => return completions::print(options.shell),
        None => {}
    }
    if let Some(reason) = options.contradiction() {
        conflict(reason).exit();
    }
    let is_default = !options.has_repository();
    if is_default {
        if !Path::new(DEFAULT_REPOSITORY).is_dir() {
            eprintln!("{NO_REPOSITORY}");
            return ExitCode::from(USAGE);
        }
        options.use_default_repository();
    }
    let log = Arc::new(LogControl::new(options.log_settings()));
    let screen = Screen::of_errors().map(Arc::new);
    let terminal = screen.clone().map(BoxMakeWriter::new);
    if let Err(reason) = nereid_logging::start(&log, terminal) {
        eprintln!("error: {reason}");
        return ExitCode::FAILURE;
    }
    if is_default {
        tracing::info!("no --model-repository is given: serving the folder '{DEFAULT_REPOSITORY}'");
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

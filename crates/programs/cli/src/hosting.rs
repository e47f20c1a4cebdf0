//! Hosts a backend for a server: `nereid host-backend ...`, which only servers start.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{Level, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::fmt::writer::MakeWriterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The program of such a process: this process's own file, even if it was replaced since.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// Runs until the server ends it. `arguments` are those after the first.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    start_log();
    // The library may crash here, and a core dump would be as large as the models.
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
        tracing::warn!("cannot turn core dumps off: {error}");
    }
    if let Err(error) = nereid_allocator::release_freed_memory() {
        tracing::warn!("cannot start the thread that releases memory: {error}");
    }
    let outcome = nereid_assembly::host(arguments);
    if let Err(error) = &outcome {
        tracing::error!("{error}");
    }
    // Threads of the library may still be running.
    nereid_dylib::leave_now(outcome.is_err().into())
}

/// Log lines for the server, which adds time and place: information to standard output, warnings and errors to standard
/// error.
fn start_log() {
    let informs = std::env::var_os(nereid_assembly::HOST_INFORMS).is_some();
    let is_wanted = move |metadata: &Metadata<'_>| {
        *metadata.level() <= Level::WARN
            || informs && *metadata.level() == Level::INFO && metadata.target().starts_with("nereid")
    };
    let writer = io::stderr.with_max_level(Level::WARN).or_else(io::stdout);
    let lines = layer().with_ansi(false).without_time().with_level(false).with_target(false);
    tracing_subscriber::registry().with(lines.with_writer(writer).with_filter(filter_fn(is_wanted))).init();
}

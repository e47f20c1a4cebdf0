//! The commands that are clients of a server: `nereid infer` and `nereid top`.

use std::io::stdout;
use std::process::ExitCode;

use nereid_options::{InferOptions, TopOptions};
use nereid_terminal::single_line;
use tokio::runtime::{Builder, Runtime};

/// Sends a request, and prints the answer or the error.
pub(crate) fn infer(options: &InferOptions) -> ExitCode {
    let outcome = options
        .request()
        .and_then(|request| runtime()?.block_on(nereid_terminal::infer(&request, &mut stdout().lock())));
    ended("nereid infer", outcome)
}

/// Shows the overview of a server.
pub(crate) fn top(options: &TopOptions) -> ExitCode {
    let outcome =
        options.top().and_then(|top| runtime()?.block_on(nereid_terminal::top(&top, &mut stdout().lock())));
    ended("nereid top", outcome)
}

fn runtime() -> Result<Runtime, String> {
    Builder::new_current_thread().enable_all().build().map_err(|error| format!("cannot start: {error}"))
}

fn ended(command: &str, outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{command}: {}", single_line(&reason));
            ExitCode::FAILURE
        }
    }
}

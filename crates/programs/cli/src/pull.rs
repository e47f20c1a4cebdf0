//! `nereid pull`: downloads models into a folder, with a progress bar on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::process::ExitCode;

use nereid_assembly::{BackendsConfig, CloudOptions, Parts, PullProgress, engines, pull};
use nereid_options::PullOptions;

use crate::bars::line;

/// Prints the downloaded models.
pub(crate) fn run(options: &PullOptions) -> ExitCode {
    let parts = Parts::within(&options.folder);
    match pull_with_progress(&options.address, &options.folder, &parts, &BackendsConfig::default()) {
        Ok(models) => {
            for model in models {
                // The reader may close the pipe early, as `head` does.
                let _ = writeln!(std::io::stdout(), "{}", options.folder.join(model).display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid pull: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Downloads models into a folder for the engines of these backends. Returns their names.
///
/// # Errors
/// Why they cannot be downloaded.
pub(crate) fn pull_with_progress(
    address: &str,
    folder: &Path,
    parts: &Parts,
    backends: &BackendsConfig,
) -> Result<Vec<String>, String> {
    let is_terminal = stderr().is_terminal();
    let report = |progress: PullProgress<'_>| {
        // Without a total, nothing is known yet, or the model came with its archive.
        if is_terminal && progress.total > 0 {
            // A closed terminal is not a failure.
            let _ = write!(stderr(), "\r\x1b[K{}", line(progress));
        }
    };
    let clouds = CloudOptions { engines: engines(backends), ..CloudOptions::default() };
    let outcome = pull(address, folder, parts, clouds, &report);
    if is_terminal {
        let _ = writeln!(stderr());
    }
    outcome
}

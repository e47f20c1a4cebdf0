//! `nereid check`: prints what a check of model repositories finds.

use std::io::Write;
use std::process::ExitCode;

use nereid_assembly::Platform;
use nereid_check::Context;
use nereid_cuda::PoolSizes;

use crate::options::CheckOptions;

/// Prints what it finds. Fails where a model, or a repository, would not load.
pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    match check(options) {
        Ok((text, code)) => {
            // Its reader may stop early, as `head` does.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            code
        }
        Err(error) => {
            eprintln!("nereid check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What to print, and how to exit.
fn check(options: &CheckOptions) -> Result<(String, ExitCode), String> {
    let reading = options.configurations.read_options();
    // No model is loaded, so no memory is set apart.
    let config = options.configurations.platform(PoolSizes { pinned: 0, devices: [].into() });
    let platform = Platform::find(&config, reading.complete).map_err(|error| error.to_string())?;
    let context = Context {
        reading: platform.reading(reading),
        backends: &platform.backends.registry,
        gpus: platform.gpus.numbers.clone(),
        deep: options.deep,
    };
    if let Some(name) = &options.complete {
        let text = nereid_check::complete(name, &options.repositories, &context);
        return Ok((text.map_err(|error| error.to_string())?, ExitCode::SUCCESS));
    }
    let report = nereid_check::check(&options.repositories, &context);
    let text = if options.json { report.to_json() } else { report.to_string() };
    Ok((text, if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

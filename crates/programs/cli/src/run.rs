//! Runs a server until a signal stops the process.

use std::sync::Arc;

use nereid_assembly::{LoadOutcome, Process, RunningServer, start};
use nereid_core::{ModelStatus, Server};
use nereid_options::Options;
use nereid_protocol::LogControl;
use nereid_shared_memory::FaultHandler;
use tokio::sync::oneshot;

use crate::bars::show_progress;
use crate::descriptors;
use crate::hosting;
use crate::overview;
use crate::screen::Screen;
use crate::signals;

/// The most characters on a line of a name or state in the table of models.
const CELL_WIDTH: usize = 100;

/// Serves until a signal. Shows the progress of downloads on the terminal, if there is one.
///
/// # Errors
/// The server did not start, or requests were still in progress at the end of the exit timeout.
pub(crate) fn run(options: &Options, log: Arc<LogControl>, screen: Option<&Screen>) -> Result<(), String> {
    for advice in options.advice() {
        tracing::warn!("{advice}");
    }
    if let Some(file) = options.config_file() {
        tracing::info!("reading options from '{}', too", file.display());
    }
    let mut config = options.config()?;
    config.platform.backends.program = Some(hosting::PROGRAM.into());
    descriptors::raise_limit();
    // From now on a signal ends the server, even while models are loading.
    let stop = signals::listen(options.exit_timeout())?;
    let runtime = nereid_net::io_runtime::start(options.io_threads())
        .map_err(|error| format!("cannot start the I/O threads: {error}"))?;
    nereid_allocator::release_freed_memory()
        .map_err(|error| format!("cannot start the thread that releases memory: {error}"))?;
    let outcome = runtime.block_on(async {
        let memory_faults = FaultHandler::install()
            .map_err(|error| format!("cannot install the handler of memory faults: {error}"))?;
        let process = Process {
            runtime: Some(runtime.handle().clone()),
            log: Arc::clone(&log),
            memory_faults: Some(memory_faults),
            backend_metrics: nereid_triton_host::metric_registry(),
        };
        let running = start(config, process).map_err(|error| error.to_string())?;
        if let Some(audit) = running.audit_log().cloned() {
            signals::on_hangup(move || audit.reopen())?;
        }
        let ended = {
            let until_end = wait_for_end(options, &running, stop, screen.is_some());
            match screen {
                None => until_end.await,
                Some(screen) => tokio::select! {
                    biased;
                    ended = until_end => ended,
                    never = show_progress(&running, screen, &log) => match never {},
                },
            }
        };
        finish(options, running, ended).await
    });
    // A stuck load or poll may block one of its threads.
    runtime.shutdown_background();
    outcome
}

/// Completes with `stop` or, with `--exit-on-error`, once a model has failed to load.
async fn wait_for_end(
    options: &Options,
    running: &RunningServer,
    mut stop: oneshot::Receiver<()>,
    on_terminal: bool,
) -> Result<(), String> {
    let loaded = tokio::select! {
        loaded = running.loaded() => loaded,
        _ = &mut stop => return Ok(()),
    };
    check_loaded(options, running, loaded, on_terminal)?;
    stop.await.map_err(|error| format!("cannot wait for a signal: {error}"))
}

/// Stops the server. `ended` is an error if serving failed.
async fn finish(options: &Options, running: RunningServer, ended: Result<(), String>) -> Result<(), String> {
    signals::limit_stop(options.exit_timeout());
    let stopped = running.stop(options.exit_timeout()).await;
    ended?;
    stopped.map_err(|error| error.to_string())?;
    tracing::info!("all requests are answered and all models unloaded");
    Ok(())
}

/// Prints the models once those to load at start are loaded: on a terminal, with where they run, and the server's addresses.
fn check_loaded(
    options: &Options,
    running: &RunningServer,
    loaded: LoadOutcome,
    on_terminal: bool,
) -> Result<(), String> {
    let server = running.server();
    let failures = match loaded {
        Ok(failures) => failures,
        Err(error) if options.exits_on_error() => return Err(error.to_string()),
        Err(error) => {
            tracing::error!("the server is not live: {error}");
            return Ok(());
        }
    };
    match on_terminal {
        true => overview::show(running),
        false => show_models(server),
    }
    options.check_models(server)?;
    if options.exits_on_error() && !failures.is_empty() {
        return Err("not every model could be loaded; --exit-on-error=false serves the others".into());
    }
    Ok(())
}

/// The state of a model, with its reason.
pub(crate) fn status(model: &ModelStatus) -> String {
    match model.reason() {
        None => model.state.name().to_owned(),
        Some(reason) => format!("{}: {reason}", model.state.name()),
    }
}

fn show_models(server: &Server) {
    let rows: Vec<_> = server
        .models()
        .index()
        .map(|model| {
            let version = model.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
            let wrap = |text: &str| nereid_check::wrap_cell(text, CELL_WIDTH);
            [wrap(&model.id.to_string()), version, wrap(&status(&model))]
        })
        .collect();
    let table = nereid_check::draw_table(["Model", "Version", "Status"], &rows);
    tracing::info!(log.table = true, "{table}");
}

//! Stop signals, and the time limit for stopping.
//!
//! Both use their own threads, because a stuck backend may block every other thread of the server, including the I/O
//! threads. If the server has not ended in time, the process exits regardless.

use std::io;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::thread::{self, Builder};
use std::time::Duration;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// The time that a stop has beyond the exit timeout: for traces that are still to be written, and for what libraries do
/// at the end of the process.
const MARGIN: Duration = Duration::from_secs(1);

/// Time limit for logging the last line: the log's reader may be stuck, too.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Listens for SIGTERM and SIGINT. The first signal resolves the receiver and starts the time limit for stopping. Later
/// ones change nothing, as in the reference.
///
/// # Errors
/// The signal handlers cannot be installed.
pub(crate) fn listen(exit_timeout: Duration) -> Result<oneshot::Receiver<()>, String> {
    let failed = |error: io::Error| format!("cannot listen for signals: {error}");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let entered = runtime.enter();
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    drop(entered);
    let (first, received) = oneshot::channel();
    let listening = async move {
        let name = next(&mut terminate, &mut interrupt).await;
        limit_stop(exit_timeout);
        tracing::info!("received {name}: no new inference requests are accepted");
        // Without a receiver, the server is already stopping for another reason.
        let _ = first.send(());
        loop {
            let name = next(&mut terminate, &mut interrupt).await;
            tracing::info!("received {name}: the server is already stopping");
        }
    };
    let thread = Builder::new().name("nereid-signals".into());
    thread.spawn(move || runtime.block_on(listening)).map_err(failed)?;
    Ok(received)
}

/// Calls `reopen` at each SIGHUP, which log rotation sends. Call it within a tokio runtime. Without
/// it, the signal ends the process.
///
/// # Errors
/// The signal handler cannot be installed.
pub(crate) fn on_hangup(reopen: impl Fn() + Send + 'static) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot listen for SIGHUP: {error}");
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reopen();
        }
    });
    Ok(())
}

/// The name of the next signal.
async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// Exits the process unless it has ended within the exit timeout and a [`MARGIN`]. Only the first call counts.
pub(crate) fn limit_stop(exit_timeout: Duration) {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let spawned = Builder::new().name("nereid-exit".into()).spawn(move || {
            thread::sleep(exit_timeout.saturating_add(MARGIN));
            let (done, logged) = channel();
            thread::spawn(move || {
                let seconds = exit_timeout.as_secs();
                tracing::error!("the server did not stop within {seconds} seconds and is ended now");
                done.send(()).unwrap_or_default();
            });
            let _ = logged.recv_timeout(LAST_LINE);
            nereid_dylib::leave_now(1);
        });
        if let Err(error) = spawned {
            tracing::error!("cannot start the thread that limits the time to stop: {error}");
        }
    });
}

//! Polls the repositories: at intervals and, if they are watched, as soon as the file system reports a change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::Server;
use nereid_repository::Watch;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::running::{LoadOutcome, outcome};

/// A change is polled again after this long without a report: while a model is being copied, reports keep coming.
const QUIET: Duration = Duration::from_millis(500);

/// Polls the repositories until dropped, once the models of the start are loaded: at intervals, and on changes in
/// `watched` folders. A slow poll delays the next one.
pub(crate) async fn run(
    server: Arc<Server>,
    loaded: watch::Receiver<Option<LoadOutcome>>,
    interval: Duration,
    watched: Option<Vec<PathBuf>>,
) {
    let _ = outcome(loaded).await;
    let changes = Arc::<Notify>::default();
    let watch = watched.and_then(|repositories| watch(&repositories, Arc::clone(&changes)));
    // Nobody reports what changed before, since the models of the start were listed.
    changes.notify_one();
    let mut pending = false;
    loop {
        match &watch {
            None => sleep(interval).await,
            Some(_) => wait(&changes, pending, interval).await,
        }
        let polling = Arc::clone(&server);
        pending = match spawn_blocking(move || polling.poll(interval)).await {
            Ok(Ok(pending)) => pending,
            Ok(Err(error)) => {
                tracing::warn!("cannot poll the repositories, everything stays as it is: {error}");
                false
            }
            Err(error) => {
                tracing::error!("polling the repositories failed: {error}");
                false
            }
        };
    }
}

/// Waits for the next reason to poll: the end of the interval, or a change, once no more changes are reported.
async fn wait(changes: &Notify, pending: bool, interval: Duration) {
    let quiet = async { while timeout(QUIET, changes.notified()).await.is_ok() {} };
    // In either case, at most the interval.
    let _ =
        if pending { timeout(interval, quiet).await } else { timeout(interval, changes.notified()).await };
}

fn watch(repositories: &[PathBuf], changes: Arc<Notify>) -> Option<Watch> {
    let watch = Watch::new(repositories, move || changes.notify_one());
    let warn = |error| tracing::warn!("cannot watch the repositories, they are only polled: {error}");
    watch.map_err(warn).ok()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn without_changes_the_interval_passes() {
        let start = Instant::now();
        wait(&Notify::new(), false, INTERVAL).await;
        assert_eq!(start.elapsed().as_secs(), INTERVAL.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn change_ends_the_interval_and_is_kept_between_waits() {
        let (changes, start) = (Notify::new(), Instant::now());
        changes.notify_one();
        wait(&changes, false, INTERVAL).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_change_is_polled_after_a_quiet_time_or_the_interval() {
        let changes = Arc::<Notify>::default();
        let reporting = Arc::clone(&changes);
        let reporter = tokio::spawn(async move {
            for _ in 0..10 {
                sleep(QUIET / 2).await;
                reporting.notify_one();
            }
        });
        let start = Instant::now();
        wait(&changes, true, INTERVAL).await;
        let expected = QUIET * 6;
        assert!(start.elapsed().abs_diff(expected) < Duration::from_millis(20), "{:?}", start.elapsed());
        reporter.await.unwrap();
        // The interval limits the wait for silence.
        let reporting = Arc::clone(&changes);
        let reporter = tokio::spawn(async move {
            loop {
                sleep(QUIET / 2).await;
                reporting.notify_one();
            }
        });
        let start = Instant::now();
        wait(&changes, true, INTERVAL).await;
        assert_eq!(start.elapsed().as_secs(), INTERVAL.as_secs());
        reporter.abort();
    }
}

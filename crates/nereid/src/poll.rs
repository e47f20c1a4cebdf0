//! Follows the repositories: looks at them now and then, and with `--repository-watch` as soon as the file system tells of
//! a change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::Server;
use nereid_repository::Watch;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// A change is looked at again when nothing was told for so long: whoever copies a model tells all the time.
const QUIET: Duration = Duration::from_millis(500);

/// Looks at the repositories for as long as the server runs, with such pauses; in between, too, if they are watched. A
/// look that takes long delays the next.
pub(crate) fn start(runtime: &Runtime, server: &Arc<Server>, pause: Duration, watched: Option<&[PathBuf]>) {
    let server = Arc::clone(server);
    let news = Arc::<Notify>::default();
    let watch = watched.and_then(|repositories| watch(repositories, Arc::clone(&news)));
    runtime.spawn(async move {
        let mut waits = false;
        loop {
            match &watch {
                None => sleep(pause).await,
                Some(_) => wait(&news, waits, pause).await,
            }
            let polling = Arc::clone(&server);
            waits = match spawn_blocking(move || polling.poll(pause)).await {
                Ok(Ok(waits)) => waits,
                Ok(Err(error)) => {
                    tracing::warn!("cannot look for changes, everything stays as it is: {error}");
                    false
                }
                Err(error) => {
                    tracing::error!("looking for changes failed: {error}");
                    false
                }
            };
        }
    });
}

/// Waits for the next reason to look: news, or the end of the pause. If a change was seen already, then until no more
/// is told.
async fn wait(news: &Notify, waits: bool, pause: Duration) {
    let quiet = async { while timeout(QUIET, news.notified()).await.is_ok() {} };
    // Either way, no longer than without a watch.
    let _ = if waits { timeout(pause, quiet).await } else { timeout(pause, news.notified()).await };
}

fn watch(repositories: &[PathBuf], news: Arc<Notify>) -> Option<Watch> {
    let watch = Watch::new(repositories, move || news.notify_one());
    let told =
        |error| tracing::warn!("changes are seen when the repositories are polled, not before: {error}");
    watch.map_err(told).ok()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn without_news_the_pause_goes_by() {
        let start = Instant::now();
        wait(&Notify::new(), false, PAUSE).await;
        assert_eq!(start.elapsed().as_secs(), PAUSE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn news_end_the_pause_and_are_not_lost_while_nobody_waits() {
        let (news, start) = (Notify::new(), Instant::now());
        news.notify_one();
        wait(&news, false, PAUSE).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_looked_at_again_when_it_is_quiet_or_the_pause_is_over() {
        let news = Arc::<Notify>::default();
        let telling = Arc::clone(&news);
        let teller = tokio::spawn(async move {
            for _ in 0..10 {
                sleep(QUIET / 2).await;
                telling.notify_one();
            }
        });
        let start = Instant::now();
        wait(&news, true, PAUSE).await;
        let expected = QUIET * 6;
        assert!(start.elapsed().abs_diff(expected) < Duration::from_millis(20), "{:?}", start.elapsed());
        teller.await.unwrap();
        // Without end, it is not waited for.
        let telling = Arc::clone(&news);
        let teller = tokio::spawn(async move {
            loop {
                sleep(QUIET / 2).await;
                telling.notify_one();
            }
        });
        let start = Instant::now();
        wait(&news, true, PAUSE).await;
        assert_eq!(start.elapsed().as_secs(), PAUSE.as_secs());
        teller.abort();
    }
}

//! Long computations of the faces, off the threads that serve connections.
//!
//! Parsing or writing megabytes of JSON, classifying an output and (de)compressing a body take milliseconds to seconds. On an
//! I/O thread such work would stop every connection of that thread. It runs on tokio's blocking threads instead, one
//! task fewer at once than there are processors, so that connections always have one. All servers of a process share
//! this limit, because they share the processors.

use std::sync::LazyLock;

use nereid_backend_api::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// The least work that pays for a change of threads, in bytes read or written.
const LONG: usize = 128 << 10;

/// One permit per task that may run.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new(processors.saturating_sub(1).max(1))
});

/// Whether work on this many bytes is long.
pub fn is_long(bytes: usize) -> bool {
    bytes > LONG
}

/// Runs `work` on a blocking thread when its turn comes, or on the caller's thread outside of a runtime. Dropping the
/// future abandons the turn; work that has begun runs to its end.
///
/// # Errors
/// `Internal` if the work panicked, `Unavailable` if the runtime ended first.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let Ok(runtime) = Handle::try_current() else { return Ok(work()) };
    let turn = TURNS.acquire().await.map_err(|error| Error::internal(error.to_string()))?;
    let task = runtime.spawn_blocking(move || {
        // Held by the work, even if the caller was dropped.
        let _turn = turn;
        work()
    });
    task.await.map_err(|error| match error.is_cancelled() {
        true => Error::unavailable("the server is stopping"),
        false => Error::internal(format!("long work failed: {error}")),
    })
}

/// Runs `work` on this many bytes: like [`run`] if it is long, else at once.
///
/// # Errors
/// See [`run`].
pub async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if is_long(bytes) { run(work).await } else { Ok(work()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn long_work_runs_on_other_threads_within_the_limit() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let here = thread::current().id();
        let tasks = (0..40).map(|index| {
            run(move || {
                MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                (index, thread::current().id() != here)
            })
        });
        let outcomes: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes, (0..40).map(|index| (index, true)).collect::<Vec<_>>());
        let processors = thread::available_parallelism().unwrap().get();
        assert!(MOST.load(Ordering::SeqCst) <= processors.saturating_sub(1).max(1));
    }

    #[tokio::test]
    async fn panic_in_long_work_is_an_error_and_gives_the_turn_back() {
        for _ in 0..1000 {
            let outcome: Result<()> = run(|| std::panic::resume_unwind(Box::new("boom"))).await;
            assert!(outcome.is_err());
        }
        assert_eq!(run(|| 7).await.unwrap(), 7);
    }

    #[test]
    fn work_outside_of_a_runtime_runs_at_once() {
        let here = thread::current().id();
        assert!(nereid_backend_api::block_on(run(move || thread::current().id() == here)).unwrap());
    }
}

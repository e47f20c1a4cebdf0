//! Runs the engine's planning on a thread of its own, for a limited time.
//!
//! Planning cannot be interrupted, and some graphs keep it busy without end. The caller goes on when the time is over,
//! and the thread is abandoned. Few may be: after that, work is refused until one of them ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How many threads of one model may be abandoned at a time.
const MOST_ABANDONED: usize = 2;
/// The engine recurses over graphs and dimensions. Only what is touched takes memory.
const STACK: usize = 256 << 20;

/// Runs work for a model, and counts the threads that did not end in time.
#[derive(Default)]
pub(crate) struct Bounded {
    abandoned: Arc<AtomicUsize>,
}

impl Bounded {
    /// The result of `work`, or the reason why there is none.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if self.abandoned.load(Ordering::Acquire) >= MOST_ABANDONED {
            return Err("planning for earlier inputs did not end in time, and still runs".into());
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let abandoned = Arc::clone(&self.abandoned);
        // Counted from the start, so that the count is right whether the thread or the wait ends first.
        abandoned.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(abandoned);
        let thread = thread::Builder::new().name("onnx-planning".into()).stack_size(STACK).spawn(move || {
            let _counted = counted;
            let _ = sender.send(work());
        });
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        let outcome = receiver.recv_timeout(limit);
        if outcome.is_ok() {
            // It has nothing left to do; the count is right when this returns.
            let _ = thread.join();
        }
        outcome.unwrap_or_else(|_| Err(format!("planning took longer than {} s", limit.as_secs_f32())))
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn results_and_errors_come_back() {
        let bounded = Bounded::default();
        for number in 0..5 {
            assert_eq!(bounded.run(LONG, move || Ok(number)), Ok(number));
            assert_eq!(bounded.run(LONG, || Err::<(), _>("wrong".into())), Err("wrong".into()));
        }
        assert_eq!(bounded.abandoned.load(Ordering::Acquire), 0);
    }

    #[test]
    fn work_without_end_is_abandoned_and_only_so_often() {
        let bounded = Bounded::default();
        let mut gates = Vec::new();
        for _ in 0..MOST_ABANDONED {
            let (open, gate) = channel::<()>();
            gates.push(open);
            let error =
                bounded.run(Duration::ZERO, move || gate.recv().map_err(|_| String::new())).unwrap_err();
            assert!(error.contains("took longer"), "{error}");
        }
        let error = bounded.run(LONG, || Ok(())).unwrap_err();
        assert!(error.contains("still runs"), "{error}");
        // Their work ends, and so does the refusal.
        drop(gates);
        while bounded.abandoned.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        assert_eq!(bounded.run(LONG, || Ok(7)), Ok(7));
    }
}

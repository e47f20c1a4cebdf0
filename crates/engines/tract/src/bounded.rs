//! Runs the engine's planning on a thread of its own, for a limited time.
//!
//! Planning cannot be interrupted, and some graphs keep it busy without end. The caller continues when the time is over,
//! and the thread is abandoned. Few may be, of one model and of all together: after that, work is refused until one of them
//! ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

/// How many threads of one model may be abandoned at a time.
const MOST_ABANDONED: usize = 2;
/// How many threads of all models may be, including threads of earlier loads.
const MOST_TOGETHER: usize = 16;
/// The engine recurses over graphs and dimensions. Only what is touched takes memory.
const STACK: usize = 256 << 20;

/// The abandoned threads of all models of a backend.
pub(crate) type Together = Arc<AtomicUsize>;

/// Runs work for a model, and counts the threads that did not end in time.
#[derive(Default)]
pub(crate) struct Bounded {
    abandoned: Arc<AtomicUsize>,
    together: Together,
}

impl Bounded {
    /// For one of several models that count together.
    pub(crate) fn new(together: &Together) -> Self {
        Self { together: Arc::clone(together), ..Self::default() }
    }

    /// The result of `work`, or the reason why it was not run to its end.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if self.abandoned.load(Ordering::Acquire) >= MOST_ABANDONED {
            return Err("planning for earlier inputs did not end in time, and still runs".into());
        }
        if self.together.load(Ordering::Acquire) >= MOST_TOGETHER {
            return Err("planning for other models did not end in time, and still runs".into());
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        // Counted from the start, so that the count is right whether the thread or the wait ends first.
        let counted = CountGuard::new(&self.abandoned);
        // Holds a count once the thread is abandoned. It ends with the thread, or here if that has ended.
        let abandoned = Arc::<OnceLock<CountGuard>>::default();
        let of_thread = Arc::clone(&abandoned);
        let thread = thread::Builder::new().name("onnx-planning".into()).stack_size(STACK).spawn(move || {
            let _counted = (counted, of_thread);
            let _ = sender.send(work());
        });
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        let outcome = receiver.recv_timeout(limit);
        if outcome.is_ok() {
            // It has nothing left to do; the count is right when this returns.
            let _ = thread.join();
        }
        outcome.unwrap_or_else(|_| {
            let _ = abandoned.set(CountGuard::new(&self.together));
            Err(format!("planning took longer than {} s", limit.as_secs_f32()))
        })
    }
}

struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for CountGuard {
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

    #[test]
    fn models_together_abandon_only_so_many() {
        let together = Together::default();
        let mut gates = Vec::new();
        // Each model is loaded, abandons a thread and goes.
        for _ in 0..MOST_TOGETHER {
            let (open, gate) = channel::<()>();
            gates.push(open);
            let work = move || gate.recv().map_err(|_| String::new());
            let error = Bounded::new(&together).run(Duration::ZERO, work).unwrap_err();
            assert!(error.contains("took longer"), "{error}");
        }
        let error = Bounded::new(&together).run(LONG, || Ok(())).unwrap_err();
        assert!(error.contains("other models"), "{error}");
        // One that ends makes room for one.
        drop(gates.pop());
        while together.load(Ordering::Acquire) == MOST_TOGETHER {
            thread::yield_now();
        }
        assert_eq!(Bounded::new(&together).run(LONG, || Ok(7)), Ok(7));
        drop(gates);
        while together.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}

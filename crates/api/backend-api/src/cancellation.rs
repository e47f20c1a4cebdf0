//! Cancellation of a request: a flag that any thread may read, and wakers of waiting tasks.
//!
//! A request without waiting tasks costs one flag: no lock, no allocation.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::ResponseSink;

/// The flag of one request, embedded in the request's state.
#[derive(Default)]
pub struct CancelSignal {
    cancelled: AtomicBool,
    /// Created by the first waiter.
    waiters: OnceLock<Box<Mutex<Waiters>>>,
}

#[derive(Default)]
struct Waiters {
    wakers: Vec<(u64, Waker)>,
    next_key: u64,
}

impl CancelSignal {
    /// Cancels the request and wakes all waiting tasks. Call it without holding locks.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Pairs with the fence in `poll`: this thread sees the waker, or the waiter sees the flag.
        fence(Ordering::SeqCst);
        if let Some(waiters) = self.waiters.get() {
            let wakers = std::mem::take(&mut lock(waiters).wakers);
            wakers.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Registers the task to be woken by the cancellation. `key` identifies the waiter.
    fn poll(&self, key: &mut Option<u64>, context: &Context<'_>) -> Poll<()> {
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        let mut waiters = lock(self.waiters.get_or_init(Box::default));
        let key = *key.get_or_insert_with(|| {
            waiters.next_key += 1;
            waiters.next_key
        });
        match waiters.wakers.iter_mut().find(|(known, _)| *known == key) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => waiters.wakers.push((key, context.waker().clone())),
        }
        drop(waiters);
        fence(Ordering::SeqCst);
        if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn forget(&self, key: u64) {
        if let Some(waiters) = self.waiters.get() {
            let mut waiters = lock(waiters);
            let index = waiters.wakers.iter().position(|(known, _)| *known == key);
            let waker = index.map(|index| waiters.wakers.swap_remove(index));
            // A waker may do anything when it is dropped.
            drop(waiters);
            drop(waker);
        }
    }
}

fn lock(waiters: &Mutex<Waiters>) -> MutexGuard<'_, Waiters> {
    // No operation under this lock panics halfway.
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cancellation of one request, for work done for it on other threads or in other requests. May outlive the
/// request.
#[derive(Clone)]
pub struct Cancellation(Arc<dyn ResponseSink>);

impl Cancellation {
    pub(crate) fn of(sink: Arc<dyn ResponseSink>) -> Self {
        Self(sink)
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Completes when the request is cancelled; never completes otherwise.
    pub async fn cancelled(&self) {
        let mut watch = self.watch();
        poll_fn(|context| watch.poll(context)).await;
    }

    /// A waiter for the cancellation. Dropping it stops waiting.
    pub fn watch(&self) -> CancelWatch {
        CancelWatch { cancellation: self.clone(), key: None }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancellation").field(&self.is_cancelled()).finish()
    }
}

/// Waits for a request's cancellation until dropped.
pub struct CancelWatch {
    cancellation: Cancellation,
    key: Option<u64>,
}

impl CancelWatch {
    /// Completes when the request is cancelled; registers the task until then.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        match self.cancellation.0.cancel_signal() {
            Some(signal) => signal.poll(&mut self.key, context),
            None if self.cancellation.is_cancelled() => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for CancelWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelWatch").field(&self.cancellation.is_cancelled()).finish()
    }
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        if let (Some(signal), Some(key)) = (self.cancellation.0.cancel_signal(), self.key) {
            signal.forget(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::{Answer, Phase, block_on};

    #[derive(Default)]
    struct Sink(CancelSignal);

    impl ResponseSink for Sink {
        fn deliver(&self, _: Option<Answer>, _: bool) {}
        fn mark(&self, _: Phase, _: Instant) {}
        fn is_cancelled(&self) -> bool {
            self.0.is_cancelled()
        }
        fn cancel_signal(&self) -> Option<&CancelSignal> {
            Some(&self.0)
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sink() -> (Arc<Sink>, Cancellation) {
        let sink = Arc::<Sink>::default();
        (Arc::clone(&sink), Cancellation::of(sink))
    }

    #[test]
    fn waiter_is_woken_once_unless_dropped() {
        let (sink, cancellation) = sink();
        let (kept, dropped) = (Arc::<Count>::default(), Arc::<Count>::default());
        let (mut watch, mut other) = (cancellation.watch(), cancellation.watch());
        let waker = |count: &Arc<Count>| Waker::from(Arc::clone(count));
        for _ in 0..3 {
            assert!(watch.poll(&Context::from_waker(&waker(&kept))).is_pending());
            assert!(other.poll(&Context::from_waker(&waker(&dropped))).is_pending());
        }
        drop(other);
        sink.0.cancel();
        sink.0.cancel();
        assert_eq!([&kept, &dropped].map(|count| count.0.load(Ordering::Relaxed)), [1, 0]);
        assert!(watch.poll(&Context::from_waker(Waker::noop())).is_ready() && cancellation.is_cancelled());
    }

    #[test]
    fn cancellation_during_registration_wakes_the_waiter() {
        for _ in 0..200 {
            let (sink, cancellation) = sink();
            let waiting = thread::spawn(move || block_on(cancellation.cancelled()));
            sink.0.cancel();
            waiting.join().unwrap();
        }
    }
}

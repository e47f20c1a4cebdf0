//! Polls a future only when it was woken.
//!
//! A task that selects among several futures polls all of them at each wake-up. For a future that is woken about once,
//! next to one that is woken for every request, that is wasteful, and polling it may take a lock that all threads
//! share.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;

/// Polls a future at first, and then only after it was woken, however often the task is polled for other reasons.
pub fn when_woken<F: Future>(future: F) -> WhenWoken<F> {
    let signal = Arc::new(Signal { woken: AtomicBool::new(true), task: AtomicWaker::new() });
    WhenWoken { future, waker: Waker::from(Arc::clone(&signal)), signal }
}

pin_project! {
    /// See [`when_woken`].
    pub struct WhenWoken<F> {
        #[pin]
        future: F,
        waker: Waker,
        signal: Arc<Signal>,
    }
}

struct Signal {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Set first: a task that misses the wake-up has not looked yet.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> Future for WhenWoken<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.signal.task.register(context.waker());
        if !this.signal.woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        this.signal.woken.store(false, Ordering::Relaxed);
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::ready;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[test]
    fn future_is_polled_once_per_wake_up() {
        for wakes in [0, 1, 3] {
            let (polls, waker) = (Cell::new(0), Cell::new(None));
            let future = poll_fn(|context| {
                polls.set(polls.get() + 1);
                waker.set(Some(context.waker().clone()));
                Poll::<()>::Pending
            });
            let mut future = pin!(when_woken(future));
            let mut poll =
                || assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            for wake in 0..=wakes {
                (0..5).for_each(|_| poll());
                assert_eq!(polls.get(), wake + 1);
                waker.take().unwrap().wake();
            }
        }
    }

    #[test]
    fn self_waking_future_is_polled_again() {
        let mut left = 3;
        let future = poll_fn(|context| {
            left -= 1;
            context.waker().wake_by_ref();
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut future = pin!(when_woken(future));
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && poll().is_pending() && poll().is_ready());
    }

    /// Wake-ups come from other threads at any time, and the task that polls changes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost() {
        for round in 0..2000 {
            let (send, receive) = oneshot::channel();
            let mut woken = Box::pin(when_woken(receive));
            // One task polls it first, then another waits for it.
            let first = poll_fn(|context| Poll::Ready(woken.as_mut().poll(context).is_ready())).await;
            assert!(!first);
            let waiting = tokio::spawn(async move {
                let mut other = pin!(sleep(Duration::from_nanos(round)));
                let both = poll_fn(|context| {
                    let _ = other.as_mut().poll(context);
                    Poll::Ready(ready!(woken.as_mut().poll(context)))
                });
                timeout(Duration::from_secs(30), both).await
            });
            let sending = tokio::spawn(async move { send.send(round) });
            assert_eq!(sending.await.unwrap(), Ok(()));
            assert_eq!(waiting.await.unwrap().unwrap(), Ok(round));
        }
    }
}

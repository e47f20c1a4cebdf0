//! Runs a future without a thread of its own: whoever wakes it drives it.
//!
//! States: `Resting` -> `Driven` (somebody polls it) -> `Called` (woken meanwhile: it is polled once more) -> ... ->
//! `Resting`.
//!
//! A task woken by a thread that drives another one already waits until that one rests. So tasks that wake each other do
//! not grow the stack, and what one does while it is polled may wake any other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

const RESTING: u8 = 0;
const DRIVEN: u8 = 1;
const CALLED: u8 = 2;

thread_local! {
    /// The tasks that this thread drives next; `None` while it drives none.
    static NEXT: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

/// A future that is polled by whoever wakes it.
pub(super) struct Task {
    state: AtomicU8,
    /// `None` when it is done. Locked only while it is `Driven`, by the one who drives, so never waited for.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Task {
    /// A task that rests.
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(RESTING), future: Mutex::new(Some(Box::pin(future))) })
    }

    /// Polls it, now or, if this thread is within another task, as soon as that one rests.
    pub(super) fn go_on(self: &Arc<Self>) {
        if self.call() {
            drive(Arc::clone(self));
        }
    }

    /// Whether the caller has to see to it that it is polled.
    fn call(&self) -> bool {
        let called = |state: u8| match state {
            RESTING => Some(DRIVEN),
            DRIVEN => Some(CALLED),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, called) == Ok(RESTING)
    }

    /// Polls it until it rests.
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            let mut future = self.future.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(running) = future.as_mut() {
                let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut context)));
                match polled {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(())) => *future = None,
                    Err(_) => {
                        tracing::error!("a request to an ensemble panicked; it was answered with an error");
                        *future = None;
                    }
                }
            }
            drop(future);
            let rested = self.state.compare_exchange(DRIVEN, RESTING, Ordering::AcqRel, Ordering::Acquire);
            if rested.is_ok() {
                return;
            }
            self.state.store(DRIVEN, Ordering::Release);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.go_on();
    }
}

/// Drives a task, and those that are woken meanwhile by this thread.
fn drive(task: Arc<Task>) {
    let is_within_another = NEXT.with_borrow_mut(|next| match next {
        Some(next) => {
            next.push_back(Arc::clone(&task));
            true
        }
        None => {
            *next = Some(VecDeque::new());
            false
        }
    });
    if is_within_another {
        return;
    }
    let mut task = Some(task);
    while let Some(driven) = task {
        driven.poll();
        drop(driven);
        task = NEXT.with_borrow_mut(|next| {
            let following = next.as_mut().and_then(VecDeque::pop_front);
            if following.is_none() {
                *next = None;
            }
            following
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn a_task_that_wakes_itself_is_polled_again_and_one_that_is_done_is_not() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let task = Task::new(poll_fn(move |context| {
            if counted.fetch_add(1, Ordering::Relaxed) == 4 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        task.go_on();
        assert_eq!(polls.load(Ordering::Relaxed), 5);
        task.go_on();
        assert_eq!(polls.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn tasks_that_wake_each_other_in_a_long_row_do_not_grow_the_stack() {
        const ROW: usize = 100_000;
        let reached = Arc::new(AtomicUsize::new(0));
        let mut following: Option<Arc<Task>> = None;
        for _ in 0..ROW {
            let (next, reached) = (following.take(), Arc::clone(&reached));
            following = Some(Task::new(async move {
                reached.fetch_add(1, Ordering::Relaxed);
                if let Some(next) = next {
                    next.go_on();
                }
            }));
        }
        following.unwrap().go_on();
        assert_eq!(reached.load(Ordering::Relaxed), ROW);
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let task = Task::new(async { panic!("on purpose") });
        task.go_on();
        assert!(task.future.lock().unwrap().is_none());
        let reached = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reached);
        Task::new(async move {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .go_on();
        assert_eq!(reached.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn no_call_of_many_threads_is_missed() {
        // Each call adds to what there is before it wakes; the last poll has to see all of it.
        const THREADS: usize = 4;
        const CALLS: usize = 5_000;
        let (there, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (there_now, seen_last) = (Arc::clone(&there), Arc::clone(&seen));
        let task = Task::new(poll_fn(move |_| {
            seen_last.store(there_now.load(Ordering::Acquire), Ordering::Release);
            Poll::Pending
        }));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CALLS {
                        there.fetch_add(1, Ordering::AcqRel);
                        task.go_on();
                    }
                });
            }
        });
        assert_eq!(seen.load(Ordering::Acquire), THREADS * CALLS);
    }
}

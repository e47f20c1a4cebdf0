//! Runs futures without a thread or a runtime of their own: the thread that wakes a task polls it.
//!
//! States: `Idle` -> `Running` (a thread polls it) -> `Woken` (during the poll: polled once more) -> ... -> `Idle`.
//!
//! A task woken by a thread that polls another one already waits until that one is idle. So tasks that wake each other do
//! not grow the stack, and what one does while it is polled may wake any other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const WOKEN: u8 = 2;

thread_local! {
    /// The tasks that this thread runs next; `None` while it runs none.
    static NEXT: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

/// A future that is polled by the thread that wakes it.
pub(crate) struct Task {
    state: AtomicU8,
    /// `None` when it is done. Locked only by the thread that runs it, so never waited for.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Task {
    /// A task that is idle until it is woken.
    pub(crate) fn new(future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(IDLE), future: Mutex::new(Some(Box::pin(future))) })
    }

    /// Polls it, now or, if this thread runs another task, as soon as that one is idle.
    pub(crate) fn run(self: &Arc<Self>) {
        if self.claim() {
            run(Arc::clone(self));
        }
    }

    /// Whether the caller has to run it.
    fn claim(&self) -> bool {
        let woken = |state: u8| match state {
            IDLE => Some(RUNNING),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, woken) == Ok(IDLE)
    }

    /// Polls it until it is idle.
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
                        tracing::error!(
                            "a task of a request panicked; the request was answered with an error"
                        );
                        *future = None;
                    }
                }
            }
            drop(future);
            let idle = self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if idle.is_ok() {
                return;
            }
            self.state.store(RUNNING, Ordering::Release);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.run();
    }
}

/// Runs a task, and those that it wakes on this thread.
fn run(task: Arc<Task>) {
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
    while let Some(running) = task {
        running.poll();
        drop(running);
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
        task.run();
        assert_eq!(polls.load(Ordering::Relaxed), 5);
        task.run();
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
                    next.run();
                }
            }));
        }
        following.unwrap().run();
        assert_eq!(reached.load(Ordering::Relaxed), ROW);
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let task = Task::new(async { panic!("on purpose") });
        task.run();
        assert!(task.future.lock().unwrap().is_none());
        let reached = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reached);
        Task::new(async move {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .run();
        assert_eq!(reached.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn no_call_of_many_threads_is_missed() {
        // Each call adds work before it wakes the task; the last poll must see all of it.
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
                        task.run();
                    }
                });
            }
        });
        assert_eq!(seen.load(Ordering::Acquire), THREADS * CALLS);
    }
}

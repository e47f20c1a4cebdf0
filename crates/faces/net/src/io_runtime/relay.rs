//! Wakes tasks of the I/O threads from other threads, and from within themselves.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::swap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;
use rustix::fd::OwnedFd;
use rustix::io::write;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::lanes::Role;

thread_local! {
    /// The relay of the runtime whose I/O thread this is.
    static HERE: RefCell<Option<Arc<Relay>>> = const { RefCell::new(None) };
    /// The relay's address, for a cheap comparison.
    static ADDRESS: Cell<usize> = const { Cell::new(0) };
    /// The task that this thread polls.
    static POLLED: Cell<Polled> = const { Cell::new(Polled { task: 0, woken: false }) };
}

/// Consecutive polls of a task that wakes itself, before other tasks run.
const POLLS: usize = 4;

/// The relay of one runtime.
pub(crate) struct Relay {
    threads: usize,
    role: Role,
    /// Number of parked threads: waiting for events, or to be unparked.
    parked: AtomicUsize,
    /// Number of times that a thread was unparked.
    #[cfg(test)]
    unparks: AtomicUsize,
    /// Write end of a pipe: a byte in it notifies the driver of tasks to wake.
    event: OwnedFd,
    /// Tasks to wake. Adding the first one writes the byte.
    woken: Mutex<Vec<Arc<Task>>>,
}

/// A task as other threads wake it.
struct Task {
    waker: Waker,
    relay: Arc<Relay>,
}

/// A task while it is polled.
#[derive(Clone, Copy)]
struct Polled {
    /// The address of the [`Task`].
    task: usize,
    /// Whether the task has woken itself.
    woken: bool,
}

/// Restores what the thread polled before.
struct Polling(Polled);

impl Polling {
    fn begin(task: &Waker) -> Self {
        Self(POLLED.replace(Polled { task: task.data().addr(), woken: false }))
    }

    /// Whether the task has woken itself since the last call.
    fn was_woken(&self) -> bool {
        let polled = POLLED.get();
        POLLED.set(Polled { woken: false, ..polled });
        polled.woken
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLED.set(self.0);
    }
}

impl Relay {
    /// Creates a relay for `threads` threads, and the pipe end for [`listen`](Self::listen).
    pub(super) fn new(threads: usize, role: Role) -> io::Result<(Arc<Self>, OwnedFd)> {
        let (listener, event) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let relay = Self {
            threads,
            role,
            parked: AtomicUsize::new(0),
            #[cfg(test)]
            unparks: AtomicUsize::new(0),
            event,
            woken: Mutex::default(),
        };
        Ok((Arc::new(relay), listener))
    }

    /// The relay of the runtime whose I/O thread calls.
    pub(super) fn here() -> Option<Arc<Self>> {
        HERE.with_borrow(Clone::clone)
    }

    pub(super) fn role(&self) -> &Role {
        &self.role
    }

    /// The calling thread is an I/O thread of the runtime.
    pub(crate) fn enter(self: &Arc<Self>) {
        HERE.set(Some(Arc::clone(self)));
        ADDRESS.set(self.address());
    }

    pub(crate) fn parked(&self) {
        self.parked.fetch_add(1, SeqCst);
    }

    pub(crate) fn unparked(&self) {
        self.parked.fetch_sub(1, SeqCst);
        #[cfg(test)]
        self.unparks.fetch_add(1, SeqCst);
    }

    /// Whether the calling thread is an I/O thread of the runtime.
    fn is_here(&self) -> bool {
        // The thread keeps the relay alive, so its address is unique.
        ADDRESS.get() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Task>>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a task from a thread outside the runtime.
    fn wake(task: Arc<Task>) {
        let relay = Arc::clone(&task.relay);
        // Only if all threads are parked is one of them certain to wait for events.
        if relay.parked.load(SeqCst) < relay.threads {
            return task.waker.wake_by_ref();
        }
        let mut woken = relay.lock();
        woken.push(task);
        if woken.len() == 1 {
            drop(woken);
            // It only fails when the pipe is full, which wakes the driver as well.
            let _ = write(&relay.event, &[0]);
        }
    }

    /// Wakes the tasks on an I/O thread, for as long as the runtime lives.
    ///
    /// # Errors
    /// The system cannot watch for the event.
    pub(crate) fn listen(self: Arc<Self>, listener: OwnedFd) -> io::Result<impl Future<Output = ()> + Send> {
        let mut event = Receiver::from_owned_fd(listener)?;
        Ok(async move {
            // Usually longer than the pipe's contents, so that one read empties it.
            let mut bytes = [0; 16];
            let mut woken = Vec::new();
            while event.read(&mut bytes).await.is_ok() {
                swap(&mut *self.lock(), &mut woken);
                woken.drain(..).for_each(|task: Arc<Task>| task.waker.wake_by_ref());
            }
        })
    }
}

impl Task {
    /// Wakes the task if this is an I/O thread, without touching shared state.
    fn wake_here(self: &Arc<Self>) -> bool {
        let polled = POLLED.get();
        if polled.task == Arc::as_ptr(self).addr() {
            POLLED.set(Polled { woken: true, ..polled });
            return true;
        }
        let here = self.relay.is_here();
        if here {
            self.waker.wake_by_ref();
        }
        here
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.wake_here() {
            Relay::wake(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.wake_here() {
            Relay::wake(Arc::clone(self));
        }
    }
}

/// Polls a future so that other threads wake it at little cost.
pub fn relayed<F: Future>(future: F) -> Relayed<F> {
    Relayed { future, task: None }
}

pin_project! {
    /// See [`relayed`].
    pub struct Relayed<F> {
        #[pin]
        future: F,
        // The task that polled it last, and how it is woken.
        task: Option<(Waker, Waker)>,
    }
}

impl<F: Future> Future for Relayed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let known = this.task.as_ref().is_some_and(|(own, _)| own.will_wake(context.waker()));
        if !known {
            let relay = Relay::here();
            let own = context.waker().clone();
            *this.task = relay.map(|relay| (own.clone(), Waker::from(Arc::new(Task { waker: own, relay }))));
        }
        let Some((own, waker)) = this.task else { return this.future.poll(context) };
        // HTTP connections wake themselves with each body. Polling such a task again at once avoids unparking a thread
        // to take it.
        let polling = Polling::begin(waker);
        for _ in 0..POLLS {
            let polled = this.future.as_mut().poll(&mut Context::from_waker(waker));
            if polled.is_ready() || !polling.was_woken() {
                return polled;
            }
        }
        own.wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;

//! Futures of a thread that waits for files too: who wakes one makes a file readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use rustix::event::{EventfdFlags, eventfd};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of one thread.
pub(crate) struct Tasks {
    tasks: FuturesUnordered<Task>,
    bell: Arc<Bell>,
}

struct Bell {
    file: OwnedFd,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Fails only when the counter is full, and then the file is readable anyway.
            let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
        }
    }
}

impl Tasks {
    pub(crate) fn new() -> io::Result<Self> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(Bell { file, rung: AtomicBool::new(false) });
        Ok(Self { tasks: FuturesUnordered::new(), bell })
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Box::pin(task));
    }

    /// A file that is readable once a future can continue.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.file.as_fd()
    }

    /// Continues all futures that can.
    pub(crate) fn run(&mut self) {
        if self.bell.rung.load(Ordering::Acquire) {
            // Before the flag: a wake-up in between is seen below, and one afterwards rings again.
            let _ = rustix::io::read(&self.bell.file, &mut [0; 8]);
            self.bell.rung.store(false, Ordering::Release);
        }
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut context = Context::from_waker(&waker);
        while let Poll::Ready(Some(())) = Pin::new(&mut self.tasks).poll_next(&mut context) {}
    }
}

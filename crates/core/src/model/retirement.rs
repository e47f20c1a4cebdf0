//! The end of a version: once its last holder lets go, its instances end on a thread of their own.
//!
//! Whoever found a version in the table holds it, and so does every request until it is answered. The last holder is
//! often a client's I/O thread or an instance, and neither may run what a backend does when it ends. So all that ends is
//! handed to a thread that lives for this alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::instance::Pool;
use crate::load_guard::LoadGuard;
use crate::scheduler::Scheduler;
use crate::source::ModelId;

/// Ends a version when dropped. It is the last field of [`Model`](super::Model), since fields are dropped in order: what
/// it holds is then held by nobody else but the instances' threads.
pub(super) struct Retirement {
    /// The model and its version.
    id: (ModelId, u64),
    parts: Option<Parts>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    is_ended: AtomicBool,
    afterwards: OnceLock<Afterwards>,
    /// Let go of when the backend is done with the files.
    guard: LoadGuard,
}

type Afterwards = Box<dyn Fn() + Send + Sync>;

/// What runs code of the backend when it ends.
struct Parts {
    scheduler: Arc<dyn Scheduler>,
    pool: Option<Arc<Pool>>,
}

impl Retirement {
    pub(super) fn new(
        id: (ModelId, u64),
        scheduler: Arc<dyn Scheduler>,
        pool: Option<Arc<Pool>>,
        guard: LoadGuard,
    ) -> Self {
        let parts = Some(Parts { scheduler, pool });
        let (threads, is_ended, afterwards) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        Self { id, parts, threads, is_ended, afterwards, guard }
    }

    /// The guard of the version's files.
    pub(super) fn guard(&self) -> &LoadGuard {
        &self.guard
    }

    /// An instance's thread, which is waited for.
    pub(super) fn add_thread(&self, thread: JoinHandle<()>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Calls `afterwards` when the last holder is gone and all has ended. Only the first one counts.
    pub(super) fn then(&self, afterwards: impl Fn() + Send + Sync + 'static) {
        let _ = self.afterwards.set(Box::new(afterwards));
    }

    /// Takes no further request, executes what is queued, and ends the instances, now and on this thread. The last holder
    /// then lets go of the rest on its own thread.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        if let Some(parts) = &self.parts {
            parts.end(std::mem::take(&mut self.threads.lock().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

impl Parts {
    fn end(&self, threads: Vec<JoinHandle<()>>) {
        self.scheduler.close();
        if self.pool.is_none() {
            self.scheduler.next(0);
        }
        for thread in threads {
            // An instance's thread catches its backend's panics, so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

impl Drop for Retirement {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        let afterwards = self.afterwards.take();
        if *self.is_ended.get_mut() {
            drop(parts);
            afterwards.into_iter().for_each(|afterwards| afterwards());
            return;
        }
        let ((id, version), guard) = (self.id.clone(), std::mem::take(&mut self.guard));
        let spawned = Builder::new().name("nereid-drain".into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                parts.end(threads);
                drop(parts);
                drop(guard);
            }));
            match ended {
                Ok(()) => tracing::info!("unloaded '{id}' version {version}"),
                Err(_) => {
                    tracing::error!("the backend of '{id}' version {version} panicked when it was unloaded")
                }
            }
            afterwards.into_iter().for_each(|afterwards| afterwards());
        });
        if let Err(error) = spawned {
            let id = &self.id.0;
            tracing::error!("cannot start a thread to unload '{id}', which stays in memory: {error}");
        }
    }
}

//! Ends versions: once one is no longer referenced, its instances end on a separate thread.
//!
//! Callers that found a version in the table hold it, and so does every request until it is answered. The last holder is often
//! a client's I/O thread or an instance, and neither may run the clean-up of a backend. A short-lived thread runs it instead.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::executor::Executor;
use crate::interceptors::Gate;
use crate::load_guard::LoadGuard;
use crate::spec::ModelId;

/// The versions of a server that left the table and have not ended.
#[derive(Default)]
pub(crate) struct Retirements {
    /// The numbers of their loads.
    loads: Mutex<BTreeSet<u64>>,
    ended: Condvar,
}

impl Retirements {
    fn begin(self: &Arc<Self>, load: u64) -> Ending {
        self.lock().insert(load);
        Ending { load, all: Arc::clone(self) }
    }

    /// Waits until all have ended.
    pub(crate) fn wait(&self) {
        let left = |loads: &mut BTreeSet<u64>| !loads.is_empty();
        drop(self.ended.wait_while(self.lock(), left).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until a version has ended, but no longer than `limit`.
    pub(crate) fn wait_for(&self, load: u64, limit: Duration) {
        let is_left = |loads: &mut BTreeSet<u64>| loads.contains(&load);
        drop(self.ended.wait_timeout_while(self.lock(), limit, is_left));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A version that left the table; dropped when it has ended.
struct Ending {
    load: u64,
    all: Arc<Retirements>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.all.lock().remove(&self.load);
        self.all.ended.notify_all();
    }
}

/// Ends a version when dropped. It is the last field of [`Model`](super::Model): fields are dropped in order, so the other
/// references of the version have been dropped by then.
pub(super) struct Retirement {
    /// The model and its version.
    id: (ModelId, u64),
    parts: Option<Parts>,
    is_ended: AtomicBool,
    afterwards: OnceLock<Afterwards>,
    /// Set once the version has left the table.
    ending: Mutex<Option<Ending>>,
    /// Dropped once the backend no longer uses the files.
    guard: LoadGuard,
}

type Afterwards = Box<dyn Fn() + Send + Sync>;

/// The parts whose end runs code of the backend.
struct Parts {
    gate: Option<Arc<Gate>>,
    executor: Arc<dyn Executor>,
}

impl Retirement {
    pub(super) fn new(
        id: (ModelId, u64),
        gate: Option<Arc<Gate>>,
        executor: Arc<dyn Executor>,
        guard: LoadGuard,
    ) -> Self {
        let parts = Some(Parts { gate, executor });
        Self {
            id,
            parts,
            is_ended: AtomicBool::new(false),
            afterwards: OnceLock::new(),
            ending: Mutex::default(),
            guard,
        }
    }

    /// The guard of the version's files.
    pub(super) fn guard(&self) -> &LoadGuard {
        &self.guard
    }

    /// Records that the version has left the table, until it has ended.
    pub(super) fn begin(&self, load: u64, all: &Arc<Retirements>) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(all.begin(load));
    }

    /// Calls `afterwards` once the version has ended. Only the first callback is called.
    pub(super) fn then(&self, afterwards: impl Fn() + Send + Sync + 'static) {
        let _ = self.afterwards.set(Box::new(afterwards));
    }

    /// Refuses further requests, executes queued ones, and ends the instances, on the calling thread. The last holder later
    /// drops the rest on its own thread.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        if let Some(parts) = &self.parts {
            parts.end();
        }
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(ending);
    }
}

impl Parts {
    fn end(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
        self.executor.close();
    }
}

impl Drop for Retirement {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let afterwards = self.afterwards.take();
        if *self.is_ended.get_mut() {
            drop(parts);
            drop(std::mem::take(&mut self.guard));
            report_unloaded(&self.id);
            afterwards.into_iter().for_each(|afterwards| afterwards());
            return;
        }
        let (id, guard) = (self.id.clone(), std::mem::take(&mut self.guard));
        let ending = self.ending.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let spawned = Builder::new().name("nereid-drain".into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                parts.end();
                drop(parts);
                drop(guard);
            }));
            match ended {
                Ok(()) => report_unloaded(&id),
                Err(_) => {
                    let (model, version) = &id;
                    tracing::error!(
                        "the backend of '{model}' version {version} panicked when it was unloaded"
                    )
                }
            }
            afterwards.into_iter().for_each(|afterwards| afterwards());
            drop(ending);
        });
        if let Err(error) = spawned {
            let id = &self.id.0;
            tracing::error!("cannot start a thread to unload '{id}', which stays in memory: {error}");
        }
    }
}

/// Logs that a version is completely unloaded.
fn report_unloaded((id, version): &(ModelId, u64)) {
    tracing::info!("successfully unloaded '{id}' version {version}");
}

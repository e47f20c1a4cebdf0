//! The end of a version: once it is no longer referenced, its instances end on a separate thread.
//!
//! Callers that found a version in the table hold it, and so does every request until it is answered. The last holder is often
//! a client's I/O thread or an instance, and neither may run the clean-up of a backend. A short-lived thread runs it instead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use crate::executor::Executor;
use crate::interceptors::Gate;
use crate::load_guard::LoadGuard;
use crate::spec::ModelId;

/// Ends a version when dropped. It is the last field of [`Model`](super::Model): fields are dropped in order, so the other
/// references of the version are gone by then.
pub(super) struct Retirement {
    /// The model and its version.
    id: (ModelId, u64),
    parts: Option<Parts>,
    is_ended: AtomicBool,
    afterwards: OnceLock<Afterwards>,
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
        Self { id, parts, is_ended: AtomicBool::new(false), afterwards: OnceLock::new(), guard }
    }

    /// The guard of the version's files.
    pub(super) fn guard(&self) -> &LoadGuard {
        &self.guard
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

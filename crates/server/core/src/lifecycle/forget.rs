//! Forgets the state of models that are gone: clients choose the names of models to load, so the table would grow forever.
//!
//! A model is gone when the source does not list it, no version of it is loaded, being loaded or unloaded, and it is not
//! required. Each request for the index lists the source and forgets. Without such requests, the source is listed when many
//! models are idle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

use super::{LifeCycle, Listing};
use crate::spec::ModelId;
use crate::table::ModelTable;

/// As many idle models are not worth listing the source for.
const FEW: usize = 256;

/// Decides when the source is listed next.
#[derive(Default)]
pub(super) struct ForgetSchedule {
    /// How many idle models were left the last time.
    left: AtomicUsize,
    is_running: AtomicBool,
}

impl LifeCycle {
    /// Forgets the models that are gone, by a listing of the source. Returns the table in which they were found: an index of it
    /// leaves out these models only.
    pub(crate) fn forget_gone(&self, listing: &Listing) -> Arc<ModelTable> {
        let table = self.table().load_full();
        let Ok(listed) = listing else { return table };
        if table.idle().next().is_none() {
            return table;
        }
        let names: BTreeSet<_> = listed.iter().map(|listed| listed.name.as_str()).collect();
        // No task begins while the lock is held, so what is idle stays so.
        let mut tasks = self.lock();
        let table = self.table().load_full();
        let is_gone = |id: &ModelId| !names.contains(id.name.as_str()) && !tasks.is_concerned(&id.name);
        let gone: Vec<_> = table.idle().filter(is_gone).collect();
        if gone.is_empty() {
            return table;
        }
        self.change(|table| gone.iter().for_each(|id| table.forget(id)));
        let left = self.table().load();
        for name in gone.iter().map(|id| &id.name).filter(|name| left.namespaces(name).next().is_none()) {
            tasks.known.remove(name);
            tasks.dependencies.set(name, BTreeSet::new());
        }
        table
    }

    /// Forgets models once the number of idle ones has doubled since the last time.
    pub(super) fn forget_if_many(self: &Arc<Self>) {
        let enough = 2 * self.forgetting.left.load(Ordering::Relaxed).max(FEW);
        if self.table().load().idle().nth(enough).is_none()
            || self.forgetting.is_running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let this = Arc::clone(self);
        let spawned = Builder::new().name("nereid-list".into()).spawn(move || {
            this.forget_gone(&this.catalog().refresh());
            this.forgetting.left.store(this.table().load().idle().count(), Ordering::Relaxed);
            this.forgetting.is_running.store(false, Ordering::Release);
        });
        if let Err(error) = spawned {
            tracing::warn!("cannot start a thread to list the models: {error}");
            self.forgetting.is_running.store(false, Ordering::Release);
        }
    }
}

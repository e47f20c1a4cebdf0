//! Evicts models: unloads them to free their memory, while they stay wanted and can be loaded again for their next request.
//!
//! An evicted model counts as served for the server's readiness. Its record is kept, so that a poll that finds the same files
//! does not load it.

use std::sync::Arc;

use nereid_backend_api::{Error, Result};

use super::records::{Records, all};
use super::{LifeCycle, REMOVAL_LIMIT, Record};
use crate::spec::ModelId;
use crate::table::VersionState;

impl LifeCycle {
    /// Evicts every model of that name on the calling thread, which may be one that loads models, and waits a few seconds until
    /// its memory is free.
    pub(crate) fn evict_now(self: &Arc<Self>, name: &str) -> Result<()> {
        let mut records = self.lock().take(name).ok_or_else(|| {
            Error::unavailable(format!("model '{name}' cannot be evicted: it is being loaded or unloaded"))
        })?;
        let loads: Vec<_> = self.table.load().ready_of(name).map(|model| model.load_number()).collect();
        let outcome = self.evict_every(name, &mut records);
        self.give_back(name, records);
        if outcome.is_ok() {
            loads.into_iter().for_each(|load| self.retirements.wait_for(load, REMOVAL_LIMIT));
        }
        outcome
    }

    /// Evicts every model of that name.
    pub(super) fn evict_every(self: &Arc<Self>, name: &str, records: &mut Records) -> Result<()> {
        let table = self.table.load_full();
        if table.ready_of(name).next().is_none() {
            return Err(Error::not_found(format!("model '{name}' cannot be evicted: it is not loaded")));
        }
        all(table.namespaces(name).map(|namespace| {
            let id = ModelId { name: name.to_owned(), namespace: namespace.clone() };
            self.evict(&id, records.of(&id))
        }))
    }

    fn evict(self: &Arc<Self>, id: &ModelId, known: &Record) -> Result<()> {
        let table = self.table.load_full();
        let refused = |why: String| Err(Error::unavailable(format!("model '{id}' cannot be evicted: {why}")));
        let served: Vec<_> = table.versions(id).filter_map(|(_, state)| state.model()).collect();
        if served.iter().any(|model| model.is_composite()) {
            return refused("it consists of other models and holds no memory of its own".into());
        }
        if known.is_overridden {
            return refused("it was loaded with files or a configuration that only the client has".into());
        }
        if let Some(user) = table.ready().find(|user| user.dependencies().contains(&id.name)) {
            return refused(format!("'{}' consists of it", user.id()));
        }
        let ready = table.versions(id).filter(|(_, state)| matches!(state, VersionState::Ready(_)));
        let versions = ready.map(|(version, _)| (version, None)).collect();
        drop(served);
        drop(table);
        self.replace_or_evict(id, versions, true);
        Ok(())
    }
}

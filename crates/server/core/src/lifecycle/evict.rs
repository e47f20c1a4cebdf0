//! Evicts models: unloads them to free their memory, while they stay wanted and can be loaded again for their next request.
//!
//! Models that consist of an evicted one leave first: they take no memory, and their next request loads them with their members.
//! An evicted model counts as served for the server's readiness. Its record is kept, so that a poll that finds the same files
//! does not load it.

use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::{Error, Result};

use super::records::Records;
use super::{LifeCycle, REMOVAL_LIMIT};
use crate::spec::ModelId;
use crate::table::VersionState;

impl LifeCycle {
    /// Evicts every model of that name and those that consist of it. Returns their names, that one last.
    pub(crate) fn evict(self: &Arc<Self>, name: &str) -> Result<Vec<String>> {
        self.evict_with_users(name, Duration::ZERO)
    }

    /// [`evict`](Self::evict), which waits a few seconds for the end of requests that hold models, and for the memory.
    pub(crate) fn evict_and_wait(self: &Arc<Self>, name: &str) -> Result<Vec<String>> {
        let loads: Vec<_> = self.table.load().ready_of(name).map(|model| model.load_number()).collect();
        let evicted = self.evict_with_users(name, REMOVAL_LIMIT)?;
        loads.into_iter().for_each(|load| self.retirements.wait_for(load, REMOVAL_LIMIT));
        Ok(evicted)
    }

    fn evict_with_users(self: &Arc<Self>, name: &str, patience: Duration) -> Result<Vec<String>> {
        let mut taken = self.lock().take_with_users(name).ok_or_else(|| {
            Error::unavailable(format!("model '{name}' cannot be evicted: it is being loaded or unloaded"))
        })?;
        let outcome = self.evict_taken(name, &mut taken, patience);
        taken.into_iter().for_each(|(name, records)| self.give_back(&name, records));
        outcome
    }

    fn evict_taken(
        self: &Arc<Self>,
        name: &str,
        taken: &mut [(String, Records)],
        patience: Duration,
    ) -> Result<Vec<String>> {
        let table = self.table.load_full();
        let refused =
            |why: String| Err(Error::unavailable(format!("model '{name}' cannot be evicted: {why}")));
        if table.ready_of(name).next().is_none() {
            return Err(Error::not_found(format!("model '{name}' cannot be evicted: it is not loaded")));
        }
        if table.ready_of(name).any(|model| model.is_composite()) {
            return refused("it consists of other models and holds no memory of its own".into());
        }
        for (user, records) in taken.iter_mut() {
            if table.ready_of(user).any(|model| records.of(model.id()).is_overridden) {
                let subject =
                    if user == name { "it".to_owned() } else { format!("'{user}' consists of it, and") };
                return refused(format!(
                    "{subject} was loaded with files or a configuration that only the client has"
                ));
            }
        }
        drop(table);
        let mut evicted = Vec::new();
        for (leaving, _) in taken.iter() {
            if let Some(user) = self.holding_user(leaving, patience) {
                return refused(format!("'{user}' consists of it"));
            }
            let table = self.table.load_full();
            let namespaces: Vec<_> = table.namespaces(leaving).cloned().collect();
            for namespace in namespaces {
                let id = ModelId { name: leaving.clone(), namespace };
                let ready = table.versions(&id).filter(|(_, state)| matches!(state, VersionState::Ready(_)));
                let versions: Vec<_> = ready.map(|(version, _)| (version, None)).collect();
                if !versions.is_empty() {
                    self.replace_or_evict(&id, versions, true);
                }
            }
            if table.ready_of(leaving).next().is_some() {
                evicted.push(leaving.clone());
            }
        }
        Ok(evicted)
    }

    /// A model that consists of this one, and is served or held by requests that found it in the table. Waits for their end.
    fn holding_user(&self, name: &str, patience: Duration) -> Option<ModelId> {
        let served = self.table.load().ready().find(|user| user.dependencies().contains(name)).cloned();
        if let Some(user) = served {
            return Some(user.id().clone());
        }
        let held = || self.retired_models().into_iter().find(|user| user.dependencies().contains(name));
        let load = held()?.load_number();
        self.retirements.wait_for(load, patience);
        held().map(|user| user.id().clone())
    }
}

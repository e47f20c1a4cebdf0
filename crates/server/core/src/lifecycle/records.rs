//! All models of one name, in all namespaces: clients and polls name them together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nereid_backend_api::{Error, ErrorCode, Result};

use super::fetch::FetchOutcome;
use super::members::MemberLoads;
use super::tasks::LoadReason;
use super::{LifeCycle, Record};
use crate::scope::{Scope, ScopedName};
use crate::source::Overrides;
use crate::spec::{ModelId, ModelSpec};
use crate::table::VersionState;

/// The records of all models of a name, by namespace.
#[derive(Clone, Default)]
pub(super) struct Records(BTreeMap<String, Record>);

impl Records {
    /// Whether there is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(Record::is_empty)
    }

    /// Whether a change of one was seen by a poll and not loaded.
    pub(super) fn awaits_poll(&self) -> bool {
        self.0.values().any(|known| known.seen.is_some() && known.seen.as_ref() != known.tried())
    }

    /// Whether one was read since it was reconciled with its members.
    pub(super) fn needs_reconciling(&self) -> bool {
        self.0.values().any(|known| known.needs_reconciling)
    }

    /// The specifications that depend on other models.
    pub(super) fn pending(&self) -> impl Iterator<Item = &ModelSpec> {
        self.0.values().filter_map(|known| known.pending.as_ref().map(|pending| &pending.spec))
    }

    /// Why the last load of a model failed, if it did.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.0.values().find_map(|known| known.failure.as_ref())
    }

    /// The models that have a record.
    pub(super) fn ids(&self, name: &str) -> impl Iterator<Item = ModelId> {
        let id = move |namespace: &String| ModelId { name: name.to_owned(), namespace: namespace.clone() };
        self.0.keys().map(id)
    }

    pub(super) fn of(&mut self, id: &ModelId) -> &mut Record {
        self.0.entry(id.namespace.clone()).or_default()
    }
}

impl LifeCycle {
    /// Applies the outcomes of a fetch to the models of a name.
    pub(super) fn apply_fetched(
        self: &Arc<Self>,
        fetched: Vec<FetchOutcome>,
        overrides: &Overrides,
        reason: LoadReason,
        records: &mut Records,
    ) -> Result<()> {
        all(fetched.into_iter().map(|fetched| match fetched {
            FetchOutcome::Model(model) => {
                let id = model.id.clone();
                self.load(model, !overrides.is_empty(), reason, records.of(&id))
            }
            FetchOutcome::Unchanged(id) => {
                let table = self.table.load();
                let mut served = table.versions(&id).filter_map(|(_, state)| state.model());
                if reason == LoadReason::Start && !served.any(|model| model.is_on_demand()) {
                    self.require(&id);
                }
                Ok(())
            }
            FetchOutcome::Gone(id) => {
                self.unload(&id, records.of(&id));
                Ok(())
            }
            FetchOutcome::Unknown(error) => Err(error),
        }))
    }

    /// Reconciles every model of that name with its members.
    pub(super) fn reconcile_all(
        self: &Arc<Self>,
        name: &str,
        circle: Option<&Error>,
        members: MemberLoads,
        records: &mut Records,
    ) -> Result<()> {
        let outcomes = records.0.iter_mut().map(|(namespace, known)| {
            known.needs_reconciling = false;
            let id = ModelId { name: name.to_owned(), namespace: namespace.clone() };
            self.reconcile(&id, known, circle, members)
        });
        all(outcomes)
    }

    /// The names of the members of all models of that name.
    pub(super) fn members_of_all(&self, name: &str, records: &Records) -> BTreeSet<String> {
        let of_one = |(namespace, known): (&String, &Record)| {
            self.members_of(&ModelId { name: name.to_owned(), namespace: namespace.clone() }, known)
        };
        records.0.iter().flat_map(of_one).collect()
    }

    /// The serving versions of that name, each with the identity of its load, and whether others were evicted.
    pub(super) fn served_of_all(&self, name: &str) -> (BTreeMap<(String, u64), usize>, bool) {
        let table = self.table.load();
        let is_evicted = table.states_of(ScopedName::everywhere(name)).any(VersionState::is_evicted);
        let served = table.ready_of(name);
        let served = served
            .map(|model| ((model.id().namespace.clone(), model.version()), Arc::as_ptr(model) as usize));
        (served.collect(), is_evicted)
    }

    /// Unloads every model of that name and scope.
    pub(super) fn unload_every(self: &Arc<Self>, name: &str, scope: &Scope, records: &mut Records) {
        let table = self.table.load_full();
        for namespace in table.namespaces(name) {
            let id = ModelId { name: name.to_owned(), namespace: namespace.clone() };
            if scope.contains(&id) {
                self.unload(&id, records.of(&id));
            }
        }
        records.0.retain(|namespace, _| !scope.has(name, namespace));
    }
}

/// Combines outcomes. A failed load takes precedence over a model that could not be read.
pub(super) fn all(outcomes: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.code() != ErrorCode::InvalidArg);
    let first = match errors.as_slice() {
        [] => return Ok(()),
        [only] => return Err(only.clone()),
        [first, ..] => first,
    };
    let messages: Vec<_> = errors.iter().map(Error::message).collect();
    Err(Error::new(first.code(), messages.join("; ")))
}

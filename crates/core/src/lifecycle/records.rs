//! All models of one name, in whatever namespaces: clients and looks name them together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nereid_backend_api::{Error, ErrorCode, Result};

use super::{LifeCycle, Record};
use crate::source::{ModelId, Overrides};

/// What is known of the models of a name, by their namespaces.
#[derive(Clone, Default)]
pub(super) struct Records(BTreeMap<String, Record>);

impl Records {
    /// Whether nothing is known of any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(Record::is_empty)
    }

    /// Whether a change of one was seen and not taken up.
    pub(super) fn awaits_poll(&self) -> bool {
        self.0.values().any(|known| known.seen.is_some() && known.seen.as_ref() != known.tried())
    }

    /// Whether an ensemble was read since it was settled.
    pub(super) fn needs_reconciling(&self) -> bool {
        self.0.values().any(|known| known.needs_reconciling)
    }

    fn of(&mut self, id: &ModelId) -> &mut Record {
        self.0.entry(id.namespace.clone()).or_default()
    }
}

impl LifeCycle {
    /// Loads every model of that name. Files that come with the request are a model of no namespace.
    pub(super) fn load_every(
        self: &Arc<Self>,
        name: &str,
        overrides: &Overrides,
        records: &mut Records,
    ) -> Result<()> {
        let mut ids = if overrides.files.is_empty() { self.ids(name) } else { Vec::new() };
        if ids.is_empty() {
            ids.push(ModelId::plain(name));
        }
        all(ids.iter().map(|id| self.load(id, overrides, records.of(id))))
    }

    /// Looks for changes of every model of that name, and of those that had it.
    pub(super) fn poll_all(self: &Arc<Self>, name: &str, records: &mut Records) -> Result<()> {
        let known =
            records.0.keys().map(|namespace| ModelId { name: name.into(), namespace: namespace.clone() });
        let ids: BTreeSet<_> = known.chain(self.ids(name)).collect();
        all(ids.iter().map(|id| self.poll(id, records.of(id))))
    }

    /// Settles every ensemble of that name.
    pub(super) fn reconcile_all(
        self: &Arc<Self>,
        name: &str,
        circle: Option<&Error>,
        records: &mut Records,
    ) -> Result<()> {
        let outcomes = records.0.iter_mut().map(|(namespace, known)| {
            known.needs_reconciling = false;
            self.reconcile(&ModelId { name: name.to_owned(), namespace: namespace.clone() }, known, circle)
        });
        all(outcomes)
    }

    /// The names of the models that the ensembles of that name consist of.
    pub(super) fn members_of_all(&self, name: &str, records: &Records) -> BTreeSet<String> {
        let of_one = |(namespace, known): (&String, &Record)| {
            self.members_of(&ModelId { name: name.to_owned(), namespace: namespace.clone() }, known)
        };
        records.0.iter().flat_map(of_one).collect()
    }

    /// What of that name is served: of each version, which load of it.
    pub(super) fn served_of_all(&self, name: &str) -> BTreeMap<(String, u64), usize> {
        let table = self.table.load();
        let served = table.ready_of(name);
        served
            .map(|model| ((model.id().namespace.clone(), model.version()), Arc::as_ptr(model) as usize))
            .collect()
    }

    /// Unloads every model of that name.
    pub(super) fn unload_every(self: &Arc<Self>, name: &str, records: &mut Records) {
        let table = self.table.load_full();
        for namespace in table.namespaces(name) {
            let id = ModelId { name: name.to_owned(), namespace: namespace.clone() };
            self.unload(&id, records.of(&id));
        }
        *records = Records::default();
    }

    /// The models of that name. Of a name that stands for several in one namespace, reading says so.
    fn ids(&self, name: &str) -> Vec<ModelId> {
        self.source.ids(name).unwrap_or_else(|_| vec![ModelId::plain(name)])
    }
}

/// What is wrong with any. That versions failed to load counts for more than that a model could not be read.
pub(super) fn all(outcomes: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.code() != ErrorCode::InvalidArg);
    let Some(first) = errors.first() else { return Ok(()) };
    let messages: Vec<_> = errors.iter().map(Error::message).collect();
    Err(Error::new(first.code(), messages.join("; ")))
}

//! The model table: an immutable snapshot, which readers load without a lock and loads and unloads replace.

mod releases;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};
use nereid_backend_api::{Error, Result};

use crate::model::Model;
use crate::scope::ScopedName;
use crate::spec::ModelId;

/// All models by name and namespace, with all their versions.
///
/// Each change makes a new table, which shares the entries of unchanged models with the previous one.
#[derive(Clone, Default)]
pub struct ModelTable {
    models: BTreeMap<Arc<str>, Arc<Namespaces>>,
    generation: u64,
}

/// The served models, for parts of models that look others up. It keeps no model loaded.
#[derive(Clone, Default)]
pub struct ServedModels(Weak<ArcSwap<ModelTable>>);

impl ServedModels {
    pub(crate) fn new(table: &Arc<ArcSwap<ModelTable>>) -> Self {
        Self(Arc::downgrade(table))
    }

    /// The models as they are now; `None` once the server has ended.
    pub fn now(&self) -> Option<Guard<Arc<ModelTable>>> {
        self.0.upgrade().map(|table| table.load())
    }
}

/// The models of one name, by namespace.
type Namespaces = BTreeMap<String, Entry>;

/// A model: its versions, or the reason why it has none.
#[derive(Clone, Default)]
struct Entry {
    versions: BTreeMap<u64, VersionState>,
    /// Set if the model failed before any version was tried.
    failure: Option<Error>,
    /// Whether the server's readiness requires this model, see [`ModelTable::all_ready`].
    is_required: bool,
    /// The error of the last load, if it failed since the served versions were loaded.
    failed_reload: Option<Error>,
    /// Number of failed loads.
    load_failures: u64,
}

/// The state of one version.
#[derive(Clone)]
pub enum VersionState {
    /// A load is in progress, and no earlier one is served.
    Loading {
        /// Whether the version was [`Evicted`](Self::Evicted) before, so that requests wait for the load.
        was_evicted: bool,
    },
    /// Ready for requests.
    Ready(Arc<Model>),
    /// Refuses new requests and finishes those in progress.
    Unloading {
        /// The number of the unload.
        number: u64,
        /// Whether the version is [`Evicted`](Self::Evicted) afterwards.
        is_eviction: bool,
    },
    /// Unloaded on request.
    Unloaded,
    /// Not in memory, but wanted: its next request can load it. It was unloaded to free its memory, or never loaded.
    Evicted,
    /// The load failed for this reason.
    Unavailable(Error),
}

impl VersionState {
    /// The state's name in the repository index.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Loading { .. } => "LOADING",
            Self::Ready(_) => "READY",
            Self::Unloading { .. } => "UNLOADING",
            // Not a state of the reference, where it would mean that the model cannot be used.
            Self::Evicted => "UNLOADED",
            Self::Unloaded | Self::Unavailable(_) => "UNAVAILABLE",
        }
    }

    /// Whether the version is neither served, nor being loaded or unloaded.
    fn is_over(&self) -> bool {
        matches!(self, Self::Unloaded | Self::Evicted | Self::Unavailable(_))
    }

    /// Whether the version was evicted, or will be once its requests in progress end.
    pub fn is_evicted(&self) -> bool {
        matches!(self, Self::Evicted | Self::Unloading { is_eviction: true, .. })
    }

    /// The version, if it is ready.
    pub fn model(&self) -> Option<&Arc<Model>> {
        match self {
            Self::Ready(model) => Some(model),
            _ => None,
        }
    }

    /// The reason why it is unavailable, if it is.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Loading { .. } | Self::Ready(_) | Self::Unloading { .. } => None,
            Self::Unloaded => Some("unloaded"),
            Self::Evicted => Some("loaded on demand"),
            Self::Unavailable(error) => Some(error.message()),
        }
    }
}

/// A line of the repository index.
#[derive(Clone)]
pub struct ModelStatus {
    /// The model.
    pub id: ModelId,
    /// The version; `None` if the model failed before any version was tried.
    pub version: Option<u64>,
    /// The state of the version.
    pub state: VersionState,
    /// The error of the last load, if it failed to replace this served version.
    pub failed_reload: Option<Error>,
}

impl ModelStatus {
    /// The reason for this state, if known.
    pub fn reason(&self) -> Option<String> {
        let kept = |error: &Error| format!("still served, as the last load failed: {}", error.message());
        let failed = self.failed_reload.as_ref().map(kept);
        failed.or_else(|| self.state.reason().map(str::to_owned)).or_else(|| {
            let model = self.state.model()?;
            model.release()?.note(model.version())
        })
    }
}

impl ModelTable {
    /// Number of versions in memory that have this name, in all namespaces.
    pub fn resident_versions(&self, name: &str) -> u64 {
        let versions = self.states_of(ScopedName::everywhere(name));
        versions.filter(|state| state.model().is_some()).count() as u64
    }

    /// Number of changes before this table.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The next table, without models.
    pub(crate) fn emptied(&self) -> Self {
        Self { models: BTreeMap::new(), generation: self.generation + 1 }
    }

    pub(crate) fn advance(&mut self) {
        self.generation += 1;
    }

    /// The requested version, or else the established one of a release, or else the latest ready one.
    ///
    /// # Errors
    /// `NotFound` for an unknown model or version, `Unavailable` for a version that did not load, `InvalidArg` for an ambiguous
    /// name.
    pub fn find(&self, name: ScopedName<'_>, version: Option<u64>) -> Result<&Arc<Model>> {
        let unknown = || Error::not_found(format!("Request for unknown model: '{name}' is not found"));
        self.entry(name)?.ok_or_else(unknown)?.find(name.name, version)
    }

    /// Like [`find`](Self::find), with a namespace.
    pub fn find_exactly(&self, id: &ModelId, version: Option<u64>) -> Result<&Arc<Model>> {
        let unknown = || Error::not_found(format!("Request for unknown model: '{id}' is not found"));
        self.get(id).ok_or_else(unknown)?.find(&id.name, version)
    }

    /// The model of this name; among several namespaces, the only one that is loaded, loading, evicted or failed.
    fn entry(&self, name: ScopedName<'_>) -> Result<Option<&Entry>> {
        let Some(namespaces) = self.models.get(name.name) else { return Ok(None) };
        let mut visible = namespaces.iter().filter(|(namespace, _)| name.scope.has(name.name, namespace));
        if namespaces.len() == 1 {
            return Ok(visible.next().map(|(_, entry)| entry));
        }
        let visible: Vec<_> = visible.collect();
        let wanted: Vec<_> = visible.iter().filter(|(_, entry)| entry.is_wanted()).collect();
        match wanted.as_slice() {
            [] => Ok(visible.first().map(|(_, entry)| *entry)),
            [(_, entry)] => Ok(Some(entry)),
            several => {
                let places: Vec<_> = several.iter().map(|(namespace, _)| format!("'{namespace}'")).collect();
                Err(Error::invalid_arg(format!(
                    "Request for unknown model: '{name}' is the name of {} models, those of {}",
                    several.len(),
                    places.join(", ")
                )))
            }
        }
    }

    /// The ready versions of a model, ascending.
    pub fn ready_versions(&self, name: ScopedName<'_>) -> impl Iterator<Item = u64> {
        let entry = self.entry(name).ok().flatten();
        entry.into_iter().flat_map(|entry| entry.ready().map(|model| model.version()))
    }

    /// Every known version, by name and version.
    pub fn index(&self) -> impl Iterator<Item = ModelStatus> {
        self.entries().flat_map(|(id, entry)| {
            let failure = || entry.failure.clone().map(VersionState::Unavailable);
            // The last failure concerns every version that is not served. It has no version if none is known.
            let failed = failure().filter(|_| entry.versions.is_empty()).map(|failed| (None, failed));
            let versions = entry.versions.iter().map(|(version, state)| {
                let failed = failure().filter(|_| state.is_over());
                (Some(*version), failed.unwrap_or_else(|| state.clone()))
            });
            let status = move |(version, state)| {
                let failed_reload =
                    entry.failed_reload.clone().filter(|_| matches!(state, VersionState::Ready(_)));
                ModelStatus { id: id.clone(), version, state, failed_reload }
            };
            failed.into_iter().chain(versions).map(status).collect::<Vec<_>>()
        })
    }

    fn entries(&self) -> impl Iterator<Item = (ModelId, &Entry)> {
        self.models.iter().flat_map(|(name, namespaces)| {
            let id = |namespace: &String| ModelId { name: name.to_string(), namespace: namespace.clone() };
            namespaces.iter().map(move |(namespace, entry)| (id(namespace), entry))
        })
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.models.values().flat_map(|namespaces| namespaces.values())
    }

    /// All ready versions of the models of this name.
    pub(crate) fn ready_of(&self, name: &str) -> impl Iterator<Item = &Arc<Model>> {
        self.models.get(name).into_iter().flat_map(|namespaces| namespaces.values()).flat_map(Entry::ready)
    }

    /// All ready versions.
    pub fn ready(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.all().flat_map(Entry::ready)
    }

    /// All ready composite models, each before its members.
    pub(crate) fn dependents_before_members(&self) -> Vec<Arc<Model>> {
        let is_member = |model: &Arc<Model>, of: &Arc<Model>| {
            let members = of.executor().composite().map(|composite| composite.members(self));
            members.into_iter().flatten().flatten().any(|member| member.id() == model.id())
        };
        let mut left: Vec<_> = self.ready().filter(|model| model.is_composite()).collect();
        let mut ordered = Vec::new();
        while !left.is_empty() {
            let (inner, outer): (Vec<_>, Vec<_>) =
                left.iter().partition(|model| left.iter().any(|other| is_member(model, other)));
            // Models in a cycle are never loaded; if they were, this would still end.
            let (inner, outer) = if outer.is_empty() { (outer, inner) } else { (inner, outer) };
            ordered.extend(outer.into_iter().cloned());
            left = inner;
        }
        ordered
    }

    /// Whether every required model has a version that is served, being loaded, or evicted and free to be loaded again.
    ///
    /// Models to load at start, models found by a poll and models loaded since are required. A failed load by request makes
    /// no model required: the client knows the outcome. An unload ends the requirement.
    pub fn all_ready(&self) -> bool {
        self.all().filter(|entry| entry.is_required).all(Entry::is_served)
    }

    /// Makes a model required for the server's readiness.
    pub(crate) fn require(&mut self, id: &ModelId) {
        self.entry_mut(id).is_required = true;
    }

    /// Records a failed load of a known model. Its served versions continue, and report the error in the index.
    pub(crate) fn note_failure(&mut self, id: &ModelId, error: &Error) {
        if let Some(entry) = self.get_mut(id) {
            entry.load_failures += 1;
            let is_served = entry.ready().next().is_some();
            entry.failed_reload = is_served.then(|| error.clone());
        }
    }

    /// Number of failed loads by model, for known models with any.
    pub fn load_failures(&self) -> impl Iterator<Item = (ModelId, u64)> {
        let failed = self.entries().filter(|(_, entry)| entry.load_failures > 0);
        failed.map(|(id, entry)| (id, entry.load_failures))
    }

    /// Whether the last load of the model failed and left it unchanged.
    pub(crate) fn has_failed_reload(&self, id: &ModelId) -> bool {
        self.get(id).is_some_and(|entry| entry.failed_reload.is_some())
    }

    /// Clears the error recorded by [`note_failure`](Self::note_failure).
    pub(crate) fn clear_failed_reload(&mut self, id: &ModelId) {
        if let Some(entry) = self.get_mut(id) {
            entry.failed_reload = None;
        }
    }

    /// Ends [`require`](Self::require).
    pub(crate) fn release(&mut self, id: &ModelId) {
        if let Some(entry) = self.get_mut(id) {
            entry.is_required = false;
            entry.failed_reload = None;
        }
    }

    /// The models that are not required and have no version that is loaded, being loaded or being unloaded.
    pub(crate) fn idle(&self) -> impl Iterator<Item = ModelId> {
        self.entries().filter(|(_, entry)| entry.is_idle()).map(|(id, _)| id)
    }

    /// Removes a model.
    pub(crate) fn forget(&mut self, id: &ModelId) {
        let name = id.name.as_str();
        if let Some(namespaces) = self.models.get_mut(name).map(Arc::make_mut) {
            namespaces.remove(&id.namespace);
            if namespaces.is_empty() {
                self.models.remove(name);
            }
        }
    }

    /// The namespaces that have a model of this name.
    pub fn namespaces(&self, name: &str) -> impl Iterator<Item = &String> {
        self.models.get(name).into_iter().flat_map(|namespaces| namespaces.keys())
    }

    /// The states of a model's versions.
    pub fn versions(&self, id: &ModelId) -> impl Iterator<Item = (u64, &VersionState)> {
        let entry = self.get(id);
        entry.into_iter().flat_map(|entry| entry.versions.iter().map(|(version, state)| (*version, state)))
    }

    /// Whether a version is ready for requests.
    pub(crate) fn is_served(&self, id: &ModelId) -> bool {
        self.versions(id).any(|(_, state)| matches!(state, VersionState::Ready(_)))
    }

    /// Whether no version is served, and one is evicted.
    pub(crate) fn is_evicted(&self, id: &ModelId) -> bool {
        !self.is_served(id) && self.versions(id).any(|(_, state)| state.is_evicted())
    }

    /// The names of all known models.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(|name| &**name)
    }

    /// The states of the versions of all models of this name.
    pub fn states_of(&self, name: ScopedName<'_>) -> impl Iterator<Item = &VersionState> {
        let namespaces = self.models.get(name.name).into_iter().flat_map(|namespaces| namespaces.iter());
        let visible = namespaces.filter(move |(namespace, _)| name.scope.has(name.name, namespace));
        visible.flat_map(|(_, entry)| entry.versions.values())
    }

    /// The state of a version; `None` if it is unknown.
    pub(crate) fn version(&self, id: &ModelId, version: u64) -> Option<&VersionState> {
        self.get(id)?.versions.get(&version)
    }

    /// The reason why a model failed before any version was tried, if it did.
    pub fn failure(&self, id: &ModelId) -> Option<&Error> {
        self.get(id)?.failure.as_ref()
    }

    fn get(&self, id: &ModelId) -> Option<&Entry> {
        self.models.get(id.name.as_str())?.get(&id.namespace)
    }

    fn get_mut(&mut self, id: &ModelId) -> Option<&mut Entry> {
        Arc::make_mut(self.models.get_mut(id.name.as_str())?).get_mut(&id.namespace)
    }

    fn entry_mut(&mut self, id: &ModelId) -> &mut Entry {
        let namespaces = self.models.entry(id.name.as_str().into()).or_default();
        Arc::make_mut(namespaces).entry(id.namespace.clone()).or_default()
    }

    /// Sets a version's state.
    pub(crate) fn set_version(&mut self, id: &ModelId, version: u64, state: VersionState) {
        self.entry_mut(id).versions.insert(version, state);
    }

    pub(crate) fn set_failure(&mut self, id: &ModelId, error: Error) {
        self.entry_mut(id).failure = Some(error);
    }

    /// Clears the failure of a model.
    pub(crate) fn clear_failure(&mut self, id: &ModelId) {
        let Some(entry) = self.get_mut(id) else { return };
        entry.failure = None;
        if entry.versions.is_empty() && !entry.is_required {
            self.forget(id);
        }
    }

    /// Marks failed and evicted versions as unloaded, except those to be served.
    pub(crate) fn clear_unavailable(&mut self, id: &ModelId, served: &[u64]) {
        if let Some(entry) = self.get_mut(id) {
            for (_, state) in entry.versions.iter_mut().filter(|(version, _)| !served.contains(version)) {
                match state {
                    VersionState::Unavailable(_) | VersionState::Evicted => *state = VersionState::Unloaded,
                    VersionState::Unloading { is_eviction, .. } => *is_eviction = false,
                    VersionState::Loading { .. } | VersionState::Ready(_) | VersionState::Unloaded => {}
                }
            }
        }
    }
}

impl Entry {
    fn is_served(&self) -> bool {
        self.versions.values().any(|state| match state {
            VersionState::Ready(_) | VersionState::Loading { .. } => true,
            _ => state.is_evicted() && self.failure.is_none(),
        })
    }

    fn is_idle(&self) -> bool {
        !self.is_required && self.versions.values().all(VersionState::is_over)
    }

    /// Whether a version is loading, ready, evicted or failed.
    fn is_wanted(&self) -> bool {
        self.versions.values().any(|state| match state {
            VersionState::Loading { .. } | VersionState::Ready(_) | VersionState::Unavailable(_) => true,
            VersionState::Unloading { .. } | VersionState::Unloaded | VersionState::Evicted => {
                state.is_evicted()
            }
        })
    }

    fn find(&self, name: &str, version: Option<u64>) -> Result<&Arc<Model>> {
        match version {
            Some(version) => match self.versions.get(&version) {
                Some(VersionState::Ready(model)) => Ok(model),
                Some(state) => Err(Error::unavailable(format!(
                    "Request for unknown model: '{name}' version {version} is not at ready state{}",
                    because(
                        self.failure
                            .as_ref()
                            .filter(|_| state.is_over())
                            .map(Error::message)
                            .or(state.reason())
                    )
                ))),
                None => Err(Error::not_found(format!(
                    "Request for unknown model: '{name}' version {version} is not found"
                ))),
            },
            None => self.preferred().ok_or_else(|| {
                Error::not_found(format!(
                    "Request for unknown model: '{name}' has no available versions{}",
                    because(self.reason())
                ))
            }),
        }
    }

    /// The version that requests without a version mean: the latest ready one, unless a release is in progress.
    fn preferred(&self) -> Option<&Arc<Model>> {
        let latest = self.ready().next_back()?;
        let established = latest.release().and_then(|release| self.versions.get(&release.established()));
        established.and_then(VersionState::model).or(Some(latest))
    }

    /// The reason why the model is not served: of the model as a whole, or of the latest version.
    fn reason(&self) -> Option<&str> {
        let of_version = || self.versions.values().rev().find_map(VersionState::reason);
        self.failure.as_ref().map(Error::message).or_else(of_version)
    }

    fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Model>> {
        self.versions.values().filter_map(VersionState::model)
    }
}

fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {}", reason.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to change a model.
    const CHANGES: &[fn(&mut ModelTable, &ModelId)] = &[
        |table, id| table.set_version(id, 1, VersionState::Loading { was_evicted: false }),
        |table, id| table.set_version(id, 2, VersionState::Unavailable(Error::internal("broken"))),
        |table, id| table.set_version(id, 1, VersionState::Evicted),
        |table, id| table.set_failure(id, Error::internal("broken")),
        |table, id| table.clear_failure(id),
        |table, id| table.clear_unavailable(id, &[]),
        |table, id| table.note_failure(id, &Error::internal("broken")),
        |table, id| table.clear_failed_reload(id),
        |table, id| table.require(id),
        |table, id| table.release(id),
        |table, id| table.forget(id),
    ];

    fn states(table: &ModelTable) -> Vec<String> {
        let line = |line: ModelStatus| format!("{} {:?} {}", line.id, line.version, line.state.name());
        table.index().map(line).collect()
    }

    #[test]
    fn change_affects_the_new_table_only_and_copies_no_other_models() {
        let mut table = ModelTable::default();
        for number in 0..100 {
            table.set_version(&ModelId::plain(format!("m{number}")), 1, VersionState::Unloaded);
        }
        for (number, change) in CHANGES.iter().enumerate() {
            let id = ModelId::plain(format!("m{number}"));
            let (before, mut next) = (states(&table), table.clone());
            change(&mut next, &id);
            assert_eq!(states(&table), before);
            for (name, namespaces) in &next.models {
                let is_shared = Arc::ptr_eq(namespaces, &table.models[name]);
                assert!(is_shared || **name == *id.name, "change {number} copies {name}");
            }
            table = next;
        }
        assert_eq!(table.models.len(), 99);
    }
}

//! The models the server knows, as one immutable snapshot: readers take it without a lock, a load or unload swaps it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::{Error, Result};

use crate::model::Model;

/// All models by name, and of each all versions.
#[derive(Clone, Default)]
pub struct ModelTable {
    models: BTreeMap<String, Entry>,
}

/// One model: its versions, or why it has none.
#[derive(Clone, Default)]
struct Entry {
    versions: BTreeMap<u64, VersionState>,
    /// Set if the model failed before any version was looked at.
    failure: Option<Error>,
}

/// The state of one version.
#[derive(Clone)]
pub enum VersionState {
    /// It is being loaded, and was not there before.
    Loading,
    /// It can be asked.
    Ready(Arc<Model>),
    /// It takes no further requests, and answers those that it has. Every unloading has a number of its own.
    Unloading(u64),
    /// It was there, and was unloaded because somebody wanted it to be.
    Unloaded,
    /// It could not be loaded, for this reason.
    Unavailable(Error),
}

impl VersionState {
    /// The state's name in the repository index.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Loading => "LOADING",
            Self::Ready(_) => "READY",
            Self::Unloading(_) => "UNLOADING",
            Self::Unloaded | Self::Unavailable(_) => "UNAVAILABLE",
        }
    }

    /// Why it cannot be asked, where there is more to say than its state.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Loading | Self::Ready(_) | Self::Unloading(_) => None,
            Self::Unloaded => Some("unloaded"),
            Self::Unavailable(error) => Some(error.message()),
        }
    }
}

/// A line of the repository index.
#[derive(Clone)]
pub struct ModelStatus {
    /// Name of the model.
    pub name: String,
    /// The version; `None` if the model failed before any version was looked at.
    pub version: Option<u64>,
    /// Its state.
    pub state: VersionState,
}

impl ModelTable {
    /// The version asked for, or the greatest ready one.
    ///
    /// # Errors
    /// `NotFound` for an unknown model or version, `Unavailable` for one that did not load.
    pub fn find(&self, name: &str, version: Option<u64>) -> Result<&Arc<Model>> {
        let unknown = || Error::not_found(format!("Request for unknown model: '{name}' is not found"));
        let entry = self.models.get(name).ok_or_else(unknown)?;
        match version {
            Some(version) => match entry.versions.get(&version) {
                Some(VersionState::Ready(model)) => Ok(model),
                Some(_) => Err(Error::unavailable(format!(
                    "Request for unknown model: '{name}' version {version} is not at ready state"
                ))),
                None => Err(Error::not_found(format!(
                    "Request for unknown model: '{name}' version {version} is not found"
                ))),
            },
            None => entry.ready().next_back().ok_or_else(|| {
                Error::not_found(format!("Request for unknown model: '{name}' has no available versions"))
            }),
        }
    }

    /// The versions of a model that can be asked, ascending.
    pub fn ready_versions(&self, name: &str) -> impl Iterator<Item = u64> {
        self.models.get(name).into_iter().flat_map(|entry| entry.ready().map(|model| model.version()))
    }

    /// Everything known, by name and version.
    pub fn index(&self) -> impl Iterator<Item = ModelStatus> {
        self.models.iter().flat_map(|(name, entry)| {
            let failed = entry.failure.iter().map(|error| ModelStatus {
                name: name.clone(),
                version: None,
                state: VersionState::Unavailable(error.clone()),
            });
            let versions = entry.versions.iter().map(|(version, state)| ModelStatus {
                name: name.clone(),
                version: Some(*version),
                state: state.clone(),
            });
            failed.chain(versions)
        })
    }

    /// All versions that can be asked.
    pub fn ready(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.models.values().flat_map(Entry::ready)
    }

    /// Whether no model failed to load. Those that were unloaded because somebody wanted them to be did not.
    pub fn all_ready(&self) -> bool {
        self.models.values().all(|entry| {
            entry.failure.is_none()
                && entry.versions.values().all(|state| !matches!(state, VersionState::Unavailable(_)))
        })
    }

    /// The states of a model's versions.
    pub(crate) fn versions(&self, name: &str) -> impl Iterator<Item = (u64, &VersionState)> {
        self.models
            .get(name)
            .into_iter()
            .flat_map(|entry| entry.versions.iter().map(|(version, state)| (*version, state)))
    }

    /// The state of a version; `None` if it is not known.
    pub(crate) fn version(&self, name: &str, version: u64) -> Option<&VersionState> {
        self.models.get(name)?.versions.get(&version)
    }

    /// Sets a version's state. The model as a whole has not failed, then.
    pub(crate) fn set_version(&mut self, name: &str, version: u64, state: VersionState) {
        let entry = self.models.entry(name.to_owned()).or_default();
        entry.failure = None;
        entry.versions.insert(version, state);
    }

    pub(crate) fn set_failure(&mut self, name: &str, error: Error) {
        self.models.entry(name.to_owned()).or_default().failure = Some(error);
    }

    /// Forgets that a model failed.
    pub(crate) fn clear_failure(&mut self, name: &str) {
        if let Some(entry) = self.models.get_mut(name) {
            entry.failure = None;
            if entry.versions.is_empty() {
                self.models.remove(name);
            }
        }
    }

    /// Versions that failed, other than those to be served, are no longer wanted.
    pub(crate) fn forgive(&mut self, name: &str, served: &[u64]) {
        if let Some(entry) = self.models.get_mut(name) {
            for (_, state) in entry.versions.iter_mut().filter(|(version, _)| !served.contains(version)) {
                if matches!(state, VersionState::Unavailable(_)) {
                    *state = VersionState::Unloaded;
                }
            }
        }
    }
}

impl Entry {
    fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Model>> {
        self.versions.values().filter_map(|state| match state {
            VersionState::Ready(model) => Some(model),
            _ => None,
        })
    }
}

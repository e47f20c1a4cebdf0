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
    /// It can be asked.
    Ready(Arc<Model>),
    /// It cannot, for this reason.
    Unavailable(Error),
}

/// A line of the repository index.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// Name of the model.
    pub name: String,
    /// The version; `None` if the model failed before any version was looked at.
    pub version: Option<u64>,
    /// Why it cannot be asked; `None` if it can.
    pub failure: Option<Error>,
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
                Some(VersionState::Unavailable(_)) => Err(Error::unavailable(format!(
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
                failure: Some(error.clone()),
            });
            let versions = entry.versions.iter().map(|(version, state)| ModelStatus {
                name: name.clone(),
                version: Some(*version),
                failure: match state {
                    VersionState::Ready(_) => None,
                    VersionState::Unavailable(error) => Some(error.clone()),
                },
            });
            failed.chain(versions)
        })
    }

    /// All versions that can be asked.
    pub fn ready(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.models.values().flat_map(Entry::ready)
    }

    /// Whether every version of every model can be asked.
    pub fn all_ready(&self) -> bool {
        self.models.values().all(|entry| {
            entry.failure.is_none()
                && entry.versions.values().all(|state| matches!(state, VersionState::Ready(_)))
        })
    }

    pub(crate) fn set_version(&mut self, name: &str, version: u64, state: VersionState) {
        self.models.entry(name.to_owned()).or_default().versions.insert(version, state);
    }

    pub(crate) fn set_failure(&mut self, name: &str, error: Error) {
        self.models.entry(name.to_owned()).or_default().failure = Some(error);
    }
}

impl Entry {
    fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Model>> {
        self.versions.values().filter_map(|state| match state {
            VersionState::Ready(model) => Some(model),
            VersionState::Unavailable(_) => None,
        })
    }
}

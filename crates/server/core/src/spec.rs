//! A model's specification: its description in the repository, before anything is loaded.

mod identity;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{Error, ModelConfig, ModelContext, Peers};

pub use self::identity::{Fingerprint, ModelId, Origin};
use crate::load_guard::LoadGuard;

/// Whether the backend completes a model's configuration from the model's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The configuration has to be whole.
    Off,
    /// Missing parts of the configuration may be completed.
    Allowed,
    /// The model has no configuration file: a backend that completes nothing cannot serve it.
    Needed,
}

/// The label of each index of a classification output.
pub type Labels = Vec<String>;

/// A model as its repository describes it.
#[derive(Clone)]
pub struct ModelSpec {
    /// Name and namespace.
    pub id: ModelId,
    /// The model's folder.
    pub directory: PathBuf,
    /// The configuration with defaults, checked as far as it is complete.
    pub config: ModelConfig,
    /// Whether its backend completes the configuration.
    pub completion: Completion,
    /// The versions to serve, ascending.
    pub versions: Vec<u64>,
    /// Labels by the name of the output.
    pub labels: BTreeMap<String, Labels>,
    /// The files that its warm-up takes, by their names.
    pub warm_up_files: BTreeMap<String, Bytes>,
    /// The files that its sequences' states begin with, by their names.
    pub state_files: BTreeMap<String, Bytes>,
    /// A fault found after the configuration was read: each version fails with it.
    pub fault: Option<Error>,
    /// Whether its requests load it, and the server's readiness does without it.
    pub is_on_demand: bool,
    /// How it looked when it was read.
    pub fingerprint: Fingerprint,
    /// Where its files are from.
    pub origin: Origin,
    /// Holds its files while a version loaded from them exists, and is notified of the load's fate.
    pub guard: LoadGuard,
}

impl ModelSpec {
    /// A model that is complete as it stands: its configuration is not completed, and it has no files besides its
    /// versions' own.
    pub fn new(
        id: ModelId,
        directory: impl Into<PathBuf>,
        config: ModelConfig,
        versions: impl Into<Vec<u64>>,
    ) -> Self {
        Self {
            id,
            directory: directory.into(),
            config,
            completion: Completion::Off,
            versions: versions.into(),
            labels: BTreeMap::new(),
            warm_up_files: BTreeMap::new(),
            state_files: BTreeMap::new(),
            fault: None,
            is_on_demand: false,
            fingerprint: Fingerprint::default(),
            origin: Origin::Source,
            guard: LoadGuard::default(),
        }
    }

    /// The context for its backend to load a version.
    pub(crate) fn context(&self, version: u64, peers: &Arc<dyn Peers>) -> ModelContext {
        ModelContext {
            name: self.id.name.clone(),
            version,
            directory: self.directory.clone(),
            config: self.config.clone(),
            complete: self.completion != Completion::Off,
            peers: Arc::clone(peers),
        }
    }
}

impl fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = &self.versions;
        f.debug_struct("ModelSpec").field("id", &self.id).field("versions", versions).finish_non_exhaustive()
    }
}

//! Repositories that are added and removed while the server runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Error, Result};

use super::Repositories;
use super::naming::is_model_name;
use crate::store::Store;

impl Repositories {
    /// Adds the repository in a folder while the server runs. `name` becomes the name of one of its models: the only
    /// one, the only ensemble, or the one whose files are in the folder itself. Returns the repository's path, with
    /// which it is [removed](Self::unregister).
    ///
    /// # Errors
    /// `AlreadyExists` if the repository is present or `name` is already registered; otherwise the reason why no model
    /// qualifies.
    pub fn register(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        if !is_model_name(name) {
            return Err(Error::invalid_arg(format!("'{name}' cannot be the name of a model")));
        }
        self.registered.add(folder, name, &self.stores, &self.options)
    }

    /// Removes a registered repository. Its models are served until they are unloaded.
    pub fn unregister(&self, path: &Path) {
        self.registered.remove(path);
    }

    /// Adds a repository, with all its models, while the server runs. `names` maps names of models to their folders,
    /// where they differ.
    ///
    /// # Errors
    /// `InvalidArg` if it cannot be listed or a name is not valid for a model; `AlreadyExists` if the repository is
    /// present or another one was registered under one of these names.
    pub async fn register_all(&self, store: Arc<dyn Store>, names: &BTreeMap<String, String>) -> Result<()> {
        if let Some(name) = names.keys().find(|name| !is_model_name(name)) {
            return Err(Error::invalid_arg(format!("'{name}' cannot be the name of a model")));
        }
        if let Err(error) = store.list("", Instant::now()).await {
            let location = store.location();
            return Err(Error::invalid_arg(format!(
                "cannot read the model repository '{location}': {error}"
            )));
        }
        self.registered.add_all(store, names, &self.stores)
    }

    /// Removes a repository that was registered, or one that the server was started with. Its models are served until they
    /// are unloaded.
    ///
    /// # Errors
    /// `InvalidArg` for an unknown repository.
    pub fn unregister_all(&self, location: &str) -> Result<()> {
        let missing = || Error::invalid_arg(format!("model repository '{location}' is not registered"));
        self.registered.remove_all(location, &self.stores).then_some(()).ok_or_else(missing)
    }
}

//! Repositories added and removed at run time: whole ones, and single models that get a new name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_core::backend_api::{Error, ErrorCode, Result};

use crate::model_folder::{ReadOptions, config_path, entries, is_ensemble, is_of_model};
use crate::store::{LocalStore, RenamedStore, Store};

/// The repositories that were registered or removed while the server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegisteredStores(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    registered: Vec<Registration>,
    /// The locations of repositories that the server was started with and that were removed.
    removed: Vec<String>,
}

#[derive(Debug)]
struct Registration {
    path: PathBuf,
    /// The new names of models.
    names: Vec<String>,
    store: Arc<dyn Store>,
}

impl State {
    /// Adds a repository, unless it is present or one of its names is taken.
    fn add(&mut self, added: Registration, others: &[Arc<dyn Store>]) -> Result<()> {
        let location = added.store.location().to_owned();
        let is_there = self.registered.iter().any(|other| other.path == added.path)
            || others.iter().any(|other| other.location() == location && !self.removed.contains(&location));
        if is_there {
            let path = added.path.display();
            return Err(already_exists(format!("model repository '{path}' is already registered")));
        }
        for name in &added.names {
            if let Some(other) = self.registered.iter().find(|other| other.names.contains(name)) {
                let path = other.path.display();
                return Err(already_exists(format!("model '{name}' is already registered, from '{path}'")));
            }
        }
        self.registered.push(added);
        Ok(())
    }
}

impl RegisteredStores {
    /// Adds a repository to those in `others`. See [`Repositories::register`](crate::Repositories::register).
    pub(crate) fn add(
        &self,
        folder: &Path,
        name: &str,
        others: &[Arc<dyn Store>],
        options: &ReadOptions,
    ) -> Result<PathBuf> {
        let (path, model) = find_model(folder, options)?;
        let store = Arc::new(LocalStore::new(path.clone()));
        let store = Arc::new(RenamedStore::new(store, [(model.as_str(), name)]));
        self.lock().add(Registration { path: path.clone(), names: vec![name.to_owned()], store }, others)?;
        Ok(path)
    }

    /// Adds a whole repository to those in `others`. See
    /// [`Repositories::register_all`](crate::Repositories::register_all).
    pub(crate) fn add_all(
        &self,
        store: Arc<dyn Store>,
        names: &BTreeMap<String, String>,
        others: &[Arc<dyn Store>],
    ) -> Result<()> {
        let path = PathBuf::from(store.location());
        let renamed = names.iter().map(|(name, folder)| (folder.as_str(), name.as_str()));
        let store = Arc::new(RenamedStore::new(store, renamed));
        let names = names.keys().cloned().collect();
        self.lock().add(Registration { path, names, store }, others)
    }

    /// Removes a registered repository. Returns whether it existed.
    pub(crate) fn remove(&self, path: &Path) -> bool {
        let registered = &mut self.lock().registered;
        let before = registered.len();
        registered.retain(|registered| registered.path != path);
        registered.len() < before
    }

    /// Removes a registered repository, or one of `others`. Returns whether it existed.
    pub(crate) fn remove_all(&self, location: &str, others: &[Arc<dyn Store>]) -> bool {
        if self.remove(Path::new(location)) {
            return true;
        }
        let mut state = self.lock();
        let is_there = others.iter().any(|other| other.location() == location)
            && !state.removed.iter().any(|removed| removed == location);
        if is_there {
            state.removed.push(location.to_owned());
        }
        is_there
    }

    /// The current stores: the registered ones, and those in `others` that were not removed.
    pub(crate) fn stores(&self, others: &[Arc<dyn Store>]) -> Vec<Arc<dyn Store>> {
        let state = self.lock();
        let is_left =
            |store: &&Arc<dyn Store>| !state.removed.iter().any(|removed| removed == store.location());
        let registered = state.registered.iter().map(|registered| &registered.store);
        others.iter().filter(is_left).chain(registered).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The repository that a folder belongs to, and the folder of its model there.
fn find_model(folder: &Path, options: &ReadOptions) -> Result<(PathBuf, String)> {
    let found = entries(folder).map_err(|error| error.context("cannot register a model repository"))?;
    if config_path(folder, options)?.exists() {
        let name = folder.file_name().and_then(|name| name.to_str());
        if let (Some(parent), Some(name)) = (folder.parent(), name) {
            return Ok((parent.to_owned(), name.to_owned()));
        }
    }
    let folders = found.into_iter().filter(|entry| entry.is_folder && !entry.name.starts_with('.'));
    let mut models: Vec<_> =
        folders.map(|entry| entry.name).filter(|name| is_of_model(&folder.join(name), options)).collect();
    models.sort();
    if models.len() > 1 {
        let ensemble = models.iter().find(|name| is_ensemble(&folder.join(name), options));
        models = ensemble.cloned().into_iter().collect();
        if models.is_empty() {
            return Err(Error::invalid_arg(format!(
                "'{}' has several models, and none is an ensemble; expected one model, or an ensemble and its members",
                folder.display()
            )));
        }
    }
    match models.pop() {
        Some(model) => Ok((folder.to_owned(), model)),
        None => Err(Error::invalid_arg(format!("'{}' has no folder of a model", folder.display()))),
    }
}

fn already_exists(message: String) -> Error {
    Error::new(ErrorCode::AlreadyExists, message)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const ENSEMBLE: &str = "platform: 'ensemble' ensemble_scheduling { }";

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        folder
    }

    #[test]
    fn single_model_of_a_repository_is_found() {
        for (files, expected) in [
            ([("m/1/model.py", "")].as_slice(), Some(("", "m"))),
            (
                &[("m/config.pbtxt", ""), ("code/helper.py", ""), (".git/1/x", ""), ("README", "")],
                Some(("", "m")),
            ),
            (&[("a/config.pbtxt", ""), ("b/config.pbtxt", ENSEMBLE), ("c/1/x", "")], Some(("", "b"))),
            (&[("a/config.pbtxt", "wrong {"), ("b/config.pbtxt", ENSEMBLE)], Some(("", "b"))),
            (&[("config.pbtxt", ""), ("1/model.py", "")], Some(("..", "."))),
            (&[("a/config.pbtxt", ""), ("b/1/x", "")], None),
            (&[("a/b/config.pbtxt", ""), ("README", "")], None),
            (&[], None),
        ] {
            let folder = folder(files);
            let path = folder.path();
            let found = find_model(path, &ReadOptions::default()).ok();
            let expected = expected.map(|(repository, model)| match (repository, model) {
                ("..", _) => (path.parent().unwrap().to_owned(), path.file_name().unwrap().to_str().unwrap()),
                _ => (path.to_owned(), model),
            });
            let found = found.as_ref().map(|(repository, model)| (repository.clone(), model.as_str()));
            assert_eq!(found, expected, "{files:?}");
        }
        let nowhere = find_model(Path::new("/nonexistent/folder"), &ReadOptions::default());
        assert_eq!(nowhere.unwrap_err().code(), ErrorCode::NotFound);
    }
}

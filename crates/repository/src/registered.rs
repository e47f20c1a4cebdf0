//! Repositories that come and go while the server runs, each for the sake of one model, which gets a name of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_core::backend_api::{Error, ErrorCode, Result};

use crate::model_folder::{ReadOptions, config_path, entries, is_ensemble, is_of_model};
use crate::store::{LocalStore, RenamedStore, Store};

/// The repositories that were registered while the server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegisteredStores(Arc<Mutex<Vec<Registered>>>);

#[derive(Debug)]
struct Registered {
    path: PathBuf,
    /// What its model is called.
    name: String,
    store: Arc<dyn Store>,
}

impl RegisteredStores {
    /// Adds a repository, beside those in `others`. See [`Repositories::register`](crate::Repositories::register).
    pub(crate) fn add(
        &self,
        folder: &Path,
        name: &str,
        others: &[Arc<dyn Store>],
        options: &ReadOptions,
    ) -> Result<PathBuf> {
        let (path, model) = find_model(folder, options)?;
        let store = LocalStore::new(path.clone());
        let mut registered = self.lock();
        let is_there = registered.iter().any(|other| other.path == path)
            || others.iter().any(|other| other.location() == store.location());
        if is_there {
            let path = path.display();
            return Err(already_exists(format!("model repository '{path}' is already registered")));
        }
        if let Some(other) = registered.iter().find(|other| other.name == name) {
            let path = other.path.display();
            return Err(already_exists(format!("model '{name}' is already registered, from '{path}'")));
        }
        let store = Arc::new(RenamedStore::new(store, model, name));
        registered.push(Registered { path: path.clone(), name: name.to_owned(), store });
        Ok(path)
    }

    /// Removes a repository.
    pub(crate) fn remove(&self, path: &Path) {
        self.lock().retain(|registered| registered.path != path);
    }

    /// The stores as they are now.
    pub(crate) fn stores(&self) -> Vec<Arc<dyn Store>> {
        self.lock().iter().map(|registered| Arc::clone(&registered.store)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The repository that a folder stands for, and the folder of its model there.
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
    fn the_model_of_a_repository_is_found() {
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

//! The repositories that a server serves from, as one source of models.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Fingerprint, ModelId, ModelSource, ModelSpec, Overrides};

use crate::fingerprint;
use crate::model_folder::{ReadOptions, read_model, read_model_as};

/// Folders that hold a folder for each model. Hidden folders are not models.
#[derive(Clone, Debug)]
pub struct Repositories {
    paths: Vec<PathBuf>,
    options: ReadOptions,
    namespacing: bool,
}

impl Repositories {
    /// The repositories at these paths, whose models are read in this way. A path given twice counts once.
    pub fn new(paths: Vec<PathBuf>, options: ReadOptions) -> Self {
        let mut seen = BTreeSet::new();
        let paths = paths.into_iter().filter(|path| seen.insert(path.clone())).collect();
        Self { paths, options, namespacing: false }
    }

    /// Makes each repository a namespace: models of the same name in several are then served side by side.
    pub fn with_namespacing(self, namespacing: bool) -> Self {
        Self { namespacing, ..self }
    }

    /// The repositories that have a model of this name.
    fn places(&self, name: &str) -> impl Iterator<Item = &PathBuf> {
        let is_name = is_model_name(name);
        self.paths.iter().filter(move |path| is_name && path.join(name).is_dir())
    }

    /// The folder of a model.
    fn folder(&self, id: &ModelId) -> Result<PathBuf> {
        let name = &id.name;
        if !is_model_name(name) {
            return Err(Error::not_found(format!("'{name}' is not the name of a model's folder")));
        }
        let in_namespace = |path: &&PathBuf| id.namespace.is_empty() || namespace(path) == id.namespace;
        let folders: Vec<_> = self.places(name).filter(in_namespace).map(|path| path.join(name)).collect();
        match folders.as_slice() {
            [folder] => Ok(folder.clone()),
            [] => Err(Error::not_found(format!("no model repository has a folder '{name}'"))),
            _ => Err(not_unique(name, &folders)),
        }
    }

    /// A model whose files a client has sent.
    fn read_sent(&self, name: &str, overrides: &Overrides) -> Result<ModelSpec> {
        let Some(config) = &overrides.config else {
            return Err(Error::invalid_arg(format!(
                "files for model '{name}' are given without its configuration: give 'config' as well"
            )));
        };
        let cannot =
            |error: io::Error| Error::internal(format!("cannot keep the files of '{name}': {error}"));
        let folder = tempfile::Builder::new().prefix("nereid-").tempdir().map_err(cannot)?;
        for (path, contents) in &overrides.files {
            let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
            if !inside || path.as_os_str().is_empty() {
                return Err(Error::invalid_arg(format!(
                    "'{}' is not a path within the folder of model '{name}', such as 1/model.onnx",
                    path.display()
                )));
            }
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder.path())).map_err(cannot)?;
            fs::write(&path, contents).map_err(cannot)?;
        }
        let mut spec = read_model_as(folder.path(), name, config, &self.options)?;
        spec.keep = Some(Arc::new(folder));
        // It is loaded again when the repository's own model changes.
        spec.fingerprint = self.fingerprint(&ModelId::plain(name)).unwrap_or_default();
        Ok(spec)
    }
}

impl ModelSource for Repositories {
    fn names(&self) -> Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for path in &self.paths {
            let unreadable = |error: io::Error| {
                Error::not_found(format!("cannot read the model repository '{}': {error}", path.display()))
            };
            for entry in fs::read_dir(path).map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                // Follows links: a repository is often put together of them.
                if is_model_name(&name) && entry.path().is_dir() {
                    names.insert(name);
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    fn ids(&self, name: &str) -> Result<Vec<ModelId>> {
        if self.namespacing {
            let id = |path: &PathBuf| ModelId { name: name.to_owned(), namespace: namespace(path) };
            return Ok(self.places(name).map(id).collect());
        }
        // In one repository, a name cannot stand for several folders.
        if self.paths.len() > 1 {
            let folders: Vec<_> = self.places(name).map(|path| path.join(name)).collect();
            if folders.len() > 1 {
                return Err(not_unique(name, &folders));
            }
        }
        Ok(vec![ModelId::plain(name)])
    }

    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec> {
        let name = &id.name;
        if !overrides.files.is_empty() {
            return self.read_sent(name, overrides);
        }
        let folder = self.folder(id)?;
        let fingerprint = fingerprint::of_model(&folder)?;
        let spec = match &overrides.config {
            None => read_model(&folder, name, &self.options)?,
            Some(config) => read_model_as(&folder, name, config, &self.options)?,
        };
        Ok(ModelSpec { id: id.clone(), fingerprint, ..spec })
    }

    fn fingerprint(&self, id: &ModelId) -> Result<Fingerprint> {
        fingerprint::of_model(&self.folder(id)?)
    }
}

/// What a repository is called as a namespace.
fn namespace(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn not_unique(name: &str, folders: &[PathBuf]) -> Error {
    let places: Vec<_> = folders.iter().map(|folder| format!("'{}'", folder.display())).collect();
    Error::invalid_arg(format!(
        "model '{name}' stands in more than one repository: {}; --model-namespacing=true would serve each",
        places.join(", ")
    ))
}

/// A name is one part of a path, and not hidden.
fn is_model_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.starts_with('.')
}

#[cfg(test)]
mod tests;

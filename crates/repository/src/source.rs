//! The repositories that a server serves from, as one source of models.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Fingerprint, ModelSource, ModelSpec, Overrides};

use crate::fingerprint;
use crate::model_folder::{ReadOptions, read_model, read_model_as};

/// Folders that hold a folder for each model. Hidden folders are not models.
#[derive(Clone, Debug)]
pub struct Repositories {
    paths: Vec<PathBuf>,
    options: ReadOptions,
}

impl Repositories {
    /// The repositories at these paths, whose models are read in this way.
    pub fn new(paths: Vec<PathBuf>, options: ReadOptions) -> Self {
        Self { paths, options }
    }

    /// The folder of a model.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        if !is_model_name(name) {
            return Err(Error::not_found(format!("'{name}' is not the name of a model's folder")));
        }
        let folders: Vec<_> =
            self.paths.iter().map(|path| path.join(name)).filter(|folder| folder.is_dir()).collect();
        match folders.as_slice() {
            [folder] => Ok(folder.clone()),
            [] => Err(Error::not_found(format!("no model repository has a folder '{name}'"))),
            _ => {
                let places: Vec<_> = folders.iter().map(|folder| format!("'{}'", folder.display())).collect();
                Err(Error::invalid_arg(format!(
                    "model '{name}' stands in more than one repository: {}",
                    places.join(", ")
                )))
            }
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
        spec.fingerprint = self.fingerprint(name).unwrap_or_default();
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

    fn read(&self, name: &str, overrides: &Overrides) -> Result<ModelSpec> {
        if !overrides.files.is_empty() {
            return self.read_sent(name, overrides);
        }
        let folder = self.folder(name)?;
        let fingerprint = fingerprint::of_model(&folder)?;
        let spec = match &overrides.config {
            None => read_model(&folder, name, &self.options)?,
            Some(config) => read_model_as(&folder, name, config, &self.options)?,
        };
        Ok(ModelSpec { fingerprint, ..spec })
    }

    fn fingerprint(&self, name: &str) -> Result<Fingerprint> {
        fingerprint::of_model(&self.folder(name)?)
    }
}

/// A name is one part of a path, and not hidden.
fn is_model_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.starts_with('.')
}

#[cfg(test)]
mod tests;

//! A repository that is a folder on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use nereid_core::ModelSpec;
use nereid_core::backend_api::{Error, Result};

use crate::model_folder::{ReadOptions, read_model};

/// A folder that holds a folder for each model.
#[derive(Clone, Debug)]
pub struct LocalRepository {
    path: PathBuf,
}

impl LocalRepository {
    /// The repository at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All models by name, each as its specification or as the reason why it has none. Hidden folders are not models.
    ///
    /// # Errors
    /// The folder itself cannot be read.
    pub fn models(&self, options: &ReadOptions) -> Result<Vec<(String, Result<ModelSpec>)>> {
        let unreadable = |error: std::io::Error| {
            Error::not_found(format!("cannot read the model repository '{}': {error}", self.path.display()))
        };
        let mut models = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(unreadable)? {
            let folder = entry.map_err(unreadable)?.path();
            // Follows links: a repository is often put together of them.
            if !folder.is_dir() {
                continue;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                models.push((name.clone(), read_model(&folder, &name, options)));
            }
        }
        models.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(models)
    }
}

//! Stores the files that came with load requests and those made by repository agents: a private folder of this server
//! in the system's temporary folder, with one subfolder per load.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_core::backend_api::{Error, Result};
use nereid_core::{LoadGuard, LoadHooks, Origin, Overrides};
use nereid_model_files as model_files;
use nereid_private_folders::PrivateFolder;
use tempfile::TempDir;

/// Prefix of the servers' folders.
const PREFIX: &str = "nereid-sent-";

/// Keeps the files of a server's load requests. Clones share one folder, which is removed with the last of them and of
/// the loads.
#[derive(Clone, Debug)]
pub(crate) struct SentFiles {
    /// The system's folder for temporary files.
    temporary: Arc<Path>,
    own: Arc<Mutex<Option<Arc<PrivateFolder>>>>,
}

impl SentFiles {
    pub(crate) fn new(temporary: PathBuf) -> Self {
        Self { temporary: temporary.into(), own: Arc::default() }
    }

    /// Writes the files that came with a load request to a new folder, which the guard removes.
    pub(crate) fn keep(&self, name: &str, overrides: &Overrides) -> Result<(PathBuf, LoadGuard, Origin)> {
        let cannot =
            |error: io::Error| Error::internal(format!("cannot keep the files of '{name}': {error}"));
        let own = self.own_folder().map_err(cannot)?;
        let folder = own.folder().map_err(cannot)?;
        let mut digest = DefaultHasher::new();
        for (path, contents) in &overrides.files {
            let place = model_files::inside(folder.path(), path).map_err(|_| {
                Error::invalid_arg(format!(
                    "'{}' is not a path within the folder of model '{name}', such as 1/model.onnx",
                    path.display()
                ))
            })?;
            (path, contents).hash(&mut digest);
            fs::create_dir_all(place.parent().unwrap_or(folder.path())).map_err(cannot)?;
            fs::write(&place, contents).map_err(cannot)?;
        }
        let path = folder.path().to_owned();
        let guard = LoadGuard::new(LoadFolder { _folder: folder, _own: own });
        Ok((path, guard, Origin::Request(digest.finish())))
    }

    /// Creates an empty folder, which its guard removes.
    pub(crate) fn folder(&self) -> Result<(PathBuf, LoadGuard)> {
        let cannot = |error: io::Error| Error::internal(format!("cannot make a temporary folder: {error}"));
        let own = self.own_folder().map_err(cannot)?;
        let folder = own.folder().map_err(cannot)?;
        let path = folder.path().to_owned();
        Ok((path, LoadGuard::new(LoadFolder { _folder: folder, _own: own })))
    }

    /// Removes all files, even those in use. No model may be loaded from them afterwards.
    pub(crate) fn remove(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(own) = own {
            own.remove();
        }
    }

    /// Removes the folders of dead servers. Folders that cannot be removed belong to other users, or were just removed.
    pub(crate) fn remove_left_over(&self) {
        PrivateFolder::remove_left_over(&self.temporary, PREFIX);
    }

    /// The server's folder, created for the first load that needs it.
    fn own_folder(&self) -> io::Result<Arc<PrivateFolder>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match &*own {
            Some(folder) => Ok(Arc::clone(folder)),
            None => Ok(Arc::clone(own.insert(Arc::new(PrivateFolder::new(&self.temporary, PREFIX)?)))),
        }
    }
}

/// The files of one load.
struct LoadFolder {
    _folder: TempDir,
    _own: Arc<PrivateFolder>,
}

impl LoadHooks for LoadFolder {}

#[cfg(test)]
mod tests;

//! Where the files that come with load requests are kept: a private folder of this server in the system's folder for
//! temporary files, and in it one folder for each load.
//!
//! A server holds a lock in its folder for as long as it lives. So the next one can tell the folders that a killed server
//! left behind, and removes them.

use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{LoadGuard, LoadHooks, Origin, Overrides};
use nereid_model_files as model_files;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

/// What the names of the servers' folders begin with.
const PREFIX: &str = "nereid-sent-";

/// The file in each of them that its server has locked.
const LOCK: &str = "lock";

/// A folder without a lock file belongs to a server that is just being started, unless it is older than this.
const UNLOCKED: Duration = Duration::from_secs(60);

/// Nobody else may read what clients sent.
const PRIVATE: u32 = 0o700;

/// Keeps the files of a server's load requests. Its clones share one folder, which goes with the last of them and of the
/// loads.
#[derive(Clone, Debug)]
pub(crate) struct SentFiles {
    /// The system's folder for temporary files.
    temporary: Arc<Path>,
    own: Arc<Mutex<Option<Arc<OwnFolder>>>>,
}

impl SentFiles {
    pub(crate) fn new(temporary: PathBuf) -> Self {
        Self { temporary: temporary.into(), own: Arc::default() }
    }

    /// Writes the files that came with a load request to a folder of their own, which goes with the guard.
    pub(crate) fn keep(&self, name: &str, overrides: &Overrides) -> Result<(PathBuf, LoadGuard, Origin)> {
        let cannot =
            |error: io::Error| Error::internal(format!("cannot keep the files of '{name}': {error}"));
        let own = self.own_folder().map_err(cannot)?;
        let folder = private_folder(own.folder.path(), "").map_err(cannot)?;
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

    /// Removes what is kept, whether it is still in use or not. Nothing may be loaded from it afterwards.
    pub(crate) fn remove(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(own) = own {
            own.remove();
        }
    }

    /// Removes the folders of servers that no longer live. What cannot be removed is another user's, or gone.
    pub(crate) fn remove_left_over(&self) {
        let entries = fs::read_dir(&self.temporary).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        for folder in folders.map(|entry| entry.path()).filter(|folder| is_left_over(folder)) {
            match fs::remove_dir_all(&folder) {
                Ok(()) => tracing::info!("removed '{}', which a server left behind", folder.display()),
                Err(error) => tracing::debug!("cannot remove '{}': {error}", folder.display()),
            }
        }
    }

    /// The server's own folder, made for the first load that needs it.
    fn own_folder(&self) -> io::Result<Arc<OwnFolder>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match &*own {
            Some(folder) => Ok(Arc::clone(folder)),
            None => Ok(Arc::clone(own.insert(Arc::new(OwnFolder::new(&self.temporary)?)))),
        }
    }
}

/// The folder of one server, removed when it is dropped.
#[derive(Debug)]
struct OwnFolder {
    folder: TempDir,
    /// Locked for as long as it is open.
    _lock: File,
}

impl OwnFolder {
    fn new(temporary: &Path) -> io::Result<Self> {
        let folder = private_folder(temporary, PREFIX)?;
        let lock = File::create_new(folder.path().join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder, _lock: lock })
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(self.folder.path()) {
            tracing::warn!("cannot remove '{}': {error}", self.folder.path().display());
        }
    }
}

/// The files of one load.
struct LoadFolder {
    _folder: TempDir,
    _own: Arc<OwnFolder>,
}

impl LoadHooks for LoadFolder {}

fn private_folder(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(PRIVATE)).tempdir_in(parent)
}

/// Whether a folder is this user's, and of a server that no longer lives.
fn is_left_over(folder: &Path) -> bool {
    // Not through a link: anybody may put one into a folder for temporary files.
    let Ok(metadata) = fs::symlink_metadata(folder) else { return false };
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() {
        return false;
    }
    match model_files::open(&folder.join(LOCK)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        Err(error) => {
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            error.is_missing() && age.is_some_and(|age| age > UNLOCKED)
        }
    }
}

#[cfg(test)]
mod tests;

//! Private folders: of a server, in a parent folder that it shares with other servers, and of a user's cache.
//!
//! A server locks a file in each of its folders for as long as it uses the folder. The next server thus recognises the
//! folders of killed servers and removes them. Knows nothing of what is in the folders.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod user_cache;

pub use user_cache::{UnusableFolder, cache_folder, private_subfolder};

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nereid_model_files as model_files;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

/// The lock file in each server's folder.
pub const LOCK: &str = "lock";

/// The lock file before it is locked.
const UNLOCKED_NAME: &str = "lock.new";

/// A folder without a lock file that is younger than this belongs to a server that is starting.
pub const UNLOCKED: Duration = Duration::from_secs(60);

/// Permissions: only the owner has access.
const PRIVATE: u32 = 0o700;

/// A folder of one server, readable only by its user, removed on drop.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
    /// Locked while open.
    lock: Mutex<File>,
}

impl PrivateFolder {
    /// Creates a folder in `parent`, with a name that begins with `prefix`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(parent: &Path, prefix: &str) -> io::Result<Self> {
        let folder = private_folder(parent, prefix)?;
        let lock = Mutex::new(locked(folder.path())?);
        Ok(Self { folder, lock })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a subfolder.
    ///
    /// # Errors
    /// The system's error.
    pub fn folder(&self) -> io::Result<TempDir> {
        self.restore()?;
        private_folder(self.folder.path(), "")
    }

    /// Creates the folder again after a removal by others, such as programs that tidy folders for temporary files.
    ///
    /// # Errors
    /// The system's error.
    pub fn restore(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.folder.path().is_dir() {
            return Ok(());
        }
        DirBuilder::new().mode(PRIVATE).create(self.folder.path())?;
        *lock = locked(self.folder.path())?;
        Ok(())
    }

    /// Removes it, whether it is still in use or not.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(self.folder.path()) {
            tracing::warn!("cannot remove '{}': {error}", self.folder.path().display());
        }
    }

    /// Removes the folders of dead servers. Folders that cannot be removed belong to other users, or were just removed.
    pub fn remove_left_over(parent: &Path, prefix: &str) {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        for folder in folders.map(|entry| entry.path()).filter(|folder| is_left_over(folder)) {
            match fs::remove_dir_all(&folder) {
                Ok(()) => tracing::info!("removed '{}', which a server left behind", folder.display()),
                Err(error) => tracing::debug!("cannot remove '{}': {error}", folder.display()),
            }
        }
    }
}

/// The lock file of a folder, new and locked.
fn locked(folder: &Path) -> io::Result<File> {
    // Under its own name only once it is locked: another server would take the lock before, and remove the folder.
    let [unlocked, locked] = [UNLOCKED_NAME, LOCK].map(|name| folder.join(name));
    let lock = File::create_new(&unlocked)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(unlocked, locked)?;
    Ok(lock)
}

fn private_folder(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(PRIVATE)).tempdir_in(parent)
}

/// Whether a folder is this user's, and of a server that no longer lives.
fn is_left_over(folder: &Path) -> bool {
    // Not followed if it is a link: any user may place one in a folder for temporary files.
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
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_folder_that_somebody_removed_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::new(parent.path(), "nereid-").unwrap();
        for _ in 0..3 {
            fs::remove_dir_all(folder.path()).unwrap();
            let inner = folder.folder().unwrap();
            assert!(inner.path().is_dir());
            assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, PRIVATE);
            // It is locked again.
            PrivateFolder::remove_left_over(parent.path(), "nereid-");
            assert!(folder.path().join(LOCK).exists());
        }
        drop(folder);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_somebody_took_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::new(parent.path(), "nereid-").unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        std::os::unix::fs::symlink(parent.path().join("elsewhere"), folder.path()).unwrap();
        assert_eq!(folder.folder().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn folder_survives_servers_that_start_at_the_same_time() {
        let parent = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        PrivateFolder::remove_left_over(parent.path(), "nereid-");
                    }
                });
            }
            for number in 0..500 {
                let folder = PrivateFolder::new(parent.path(), "nereid-");
                let kept = folder.and_then(|folder| folder.folder().map(drop));
                done.store(kept.is_err() || number == 499, Ordering::Relaxed);
                kept.unwrap();
            }
        });
    }
}

//! The folder in which environments are kept, one for each content, shared by all servers of a user.
//!
//! An entry consists of a folder `<key>` with the environment in `env`, and a file `complete`, which is written last. A
//! lock on `<key>.lock` lets one process at a time create it. The system releases the lock when the process ends, and
//! the next one removes and recreates what an interrupted process left.
//!
//! A user of an entry holds a shared lock on `<key>.used`, whose modification time is the time of the last use. Creating an
//! entry removes those unused for [`UNUSED`]. The lock files stay, so that all processes lock the same ones.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ring::digest::{Context, SHA256};

use crate::Error;
use crate::archive::hex;

/// How long an unused entry is kept.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Keeps an environment in the cache.
#[derive(Debug)]
pub struct InUse(#[expect(dead_code, reason = "holds a lock")] File);

/// A folder of entries.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn entry(&self, key: &str) -> Entry<'_> {
        let file = |suffix: &str| self.folder.join(format!("{key}.{suffix}"));
        Entry { cache: self, folder: self.folder.join(key), lock: file("lock"), used: file("used") }
    }

    /// Removes entries that have been unused for long.
    fn remove_unused(&self, progress: &dyn Fn(&str)) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if let Some(key) = entry.file_name().to_str()
                && entry.path().is_dir()
                && self.entry(key).remove_unused().is_ok_and(|removed| removed)
            {
                progress(&format!("removed {}, which no model has used for 30 days", entry.path().display()));
            }
        }
    }
}

/// The entry of one environment, present or not.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    cache: &'a Cache,
    folder: PathBuf,
    lock: PathBuf,
    used: PathBuf,
}

/// Fills an empty folder. The file is the entry's lock: a process that has it open keeps others away, also when this one
/// has ended.
pub(crate) type Make<'a> = &'a dyn Fn(&Path, &File) -> Result<(), Error>;

impl Entry<'_> {
    /// Uses the environment: creates it if it is missing, and recreates it if `open` finds it damaged. The entry stays
    /// as long as the returned guard.
    ///
    /// # Errors
    /// The entry cannot be created, or `open` fails; then an entry created by this call is removed.
    pub(crate) fn with<T>(
        &self,
        make: Make<'_>,
        progress: &dyn Fn(&str),
        open: &dyn Fn(&Path) -> Result<T, Error>,
    ) -> Result<(T, InUse), Error> {
        let in_use = self.in_use()?;
        let environment = self.folder.join("env");
        if self.is_complete() {
            match open(&environment) {
                Err(error) if error.is_damage() => {}
                outcome => return outcome.map(|opened| (opened, in_use)),
            }
        }
        let lock = self.lock(progress)?;
        if self.is_complete() {
            match open(&environment) {
                Err(error) if error.is_damage() => {
                    progress(&format!("{} is damaged and will be recreated: {error}", environment.display()));
                }
                outcome => return outcome.map(|opened| (opened, in_use)),
            }
        }
        self.remove()?;
        let made = self.make(&environment, make, &lock).and_then(|()| open(&environment));
        drop(lock);
        if made.is_err() {
            // The first error is more useful than an error of the removal.
            let _ = self.remove();
        }
        self.cache.remove_unused(progress);
        made.map(|opened| (opened, in_use))
    }

    /// Keeps it from being removed as unused.
    fn in_use(&self) -> Result<InUse, Error> {
        let unusable = |cause: io::Error| self.unusable(&cause);
        let file = self.open(&self.used).map_err(unusable)?;
        // Blocks only during a removal.
        file.lock_shared().map_err(unusable)?;
        file.set_modified(SystemTime::now()).map_err(unusable)?;
        Ok(InUse(file))
    }

    /// Removes the entry if it has been unused for long. Returns whether it was removed.
    fn remove_unused(&self) -> io::Result<bool> {
        let used = self.used.metadata().or_else(|_| self.folder.metadata())?;
        if used.modified()?.elapsed().is_ok_and(|age| age > UNUSED) {
            let (used, lock) = (self.open(&self.used)?, self.open(&self.lock)?);
            if used.try_lock().is_ok() && lock.try_lock().is_ok() {
                return Ok(self.remove().is_ok());
            }
        }
        Ok(false)
    }

    fn unusable(&self, cause: &io::Error) -> Error {
        Error::Cache { folder: self.cache.folder.clone(), cause: cause.to_string() }
    }

    /// Opens a file for locks.
    fn open(&self, path: &Path) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.cache.folder)?;
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    }

    fn is_complete(&self) -> bool {
        self.folder.join("complete").is_file()
    }

    fn lock(&self, progress: &dyn Fn(&str)) -> Result<File, Error> {
        let unusable = |cause: io::Error| self.unusable(&cause);
        let file = self.open(&self.lock).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(&format!("waiting for another load to create {}", self.folder.display()));
                file.lock().map_err(unusable)?;
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        Ok(file)
    }

    fn make(&self, environment: &Path, make: Make<'_>, lock: &File) -> Result<(), Error> {
        let failed = |cause: io::Error| Error::Io { what: self.folder.display().to_string(), cause };
        DirBuilder::new().recursive(true).mode(0o700).create(environment).map_err(failed)?;
        make(environment, lock)?;
        // The mark must not outlive a loss of power that its files do not.
        let folder = File::open(&self.folder).map_err(failed)?;
        rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))?;
        fs::write(self.folder.join("complete"), "").map_err(failed)
    }

    /// Removes the mark first, so that a partially removed folder does not count as an environment.
    fn remove(&self) -> Result<(), Error> {
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        for outcome in [fs::remove_file(self.folder.join("complete")), fs::remove_dir_all(&self.folder)] {
            match outcome {
                Err(error) if !missing(&error) => {
                    return Err(Error::Io {
                        what: format!("cannot remove {}", self.folder.display()),
                        cause: error,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A file as it was read: device, inode, length and time of the last change in nanoseconds.
type Identity = (u64, u64, u64, i128);

/// Number of digests remembered.
const REMEMBERED: usize = 1024;

/// The digests of files that were read before.
#[derive(Debug, Default)]
pub(crate) struct Digests(Mutex<HashMap<Identity, String>>);

impl Digests {
    /// The digest of a file's content, as 32 hexadecimal digits.
    pub(crate) fn of(&self, path: &Path) -> Result<String, Error> {
        let refuse = |cause: String| Error::Archive { path: path.to_owned(), cause };
        let mut file = nereid_model_files::open(path).map_err(|error| refuse(error.to_string()))?;
        let found = file.metadata().map_err(|error| refuse(error.to_string()))?;
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        let identity = (found.dev(), found.ino(), found.len(), changed);
        if let Some(digest) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&identity) {
            return Ok(digest.clone());
        }
        let mut context = Context::new(&SHA256);
        let mut chunk = vec![0; 1 << 18];
        loop {
            match io::Read::read(&mut file, &mut chunk).map_err(|error| refuse(error.to_string()))? {
                0 => break,
                count => context.update(&chunk[..count]),
            }
        }
        let digest = hex(context);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(identity, digest.clone());
        Ok(digest)
    }
}

#[cfg(test)]
mod tests;

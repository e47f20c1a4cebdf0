//! The folder in which environments are kept, one for each content, shared by all servers of a user.
//!
//! An entry is a folder `<key>` with the environment in `env`, and a file `complete`, which is written last. A lock on
//! `<key>.lock` lets one process at a time make it; the system releases the lock when the process ends, so what an
//! interrupted one left is removed and made again by the next.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ring::digest::{Context, SHA256};

use crate::Error;
use crate::archive::hex;

/// A folder of this name that only this user can write to: below `$XDG_CACHE_HOME/nereid`, else `~/.cache/nereid`, else a
/// folder for temporary files. It exists afterwards.
///
/// # Errors
/// None of them can be used; the last one's cause.
pub fn cache_folder(name: &str) -> Result<PathBuf, Error> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let candidates = [
        variable("XDG_CACHE_HOME").map(|folder| folder.join("nereid")),
        variable("HOME").map(|folder| folder.join(".cache/nereid")),
        Some(std::env::temp_dir().join(format!("nereid-{}", rustix::process::geteuid()))),
    ];
    first_usable(candidates.into_iter().flatten(), name)
}

fn first_usable(candidates: impl Iterator<Item = PathBuf>, name: &str) -> Result<PathBuf, Error> {
    let mut last = Error::Cache { folder: PathBuf::from(name), cause: "no folder is known".to_owned() };
    for folder in candidates {
        let inner = folder.join(name);
        let outcome = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&inner)
            .map_err(|error| error.to_string())
            .and_then(|()| check_owner(&folder))
            .and_then(|()| check_owner(&inner));
        match outcome {
            Ok(()) => return Ok(inner),
            Err(cause) => last = Error::Cache { folder: inner, cause },
        }
    }
    Err(last)
}

/// Others could otherwise put their own programs there.
fn check_owner(folder: &Path) -> Result<(), String> {
    let found = folder.symlink_metadata().map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err(format!("{} is not a folder", folder.display()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{} belongs to another user", folder.display()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("others may write to {}", folder.display()));
    }
    Ok(())
}

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
        Entry { cache: self, folder: self.folder.join(key), lock: self.folder.join(format!("{key}.lock")) }
    }
}

/// One environment, whether it is there or not.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    cache: &'a Cache,
    folder: PathBuf,
    lock: PathBuf,
}

/// Fills an empty folder. The file is the entry's lock: a process that has it open keeps others away, also when this one
/// has ended.
pub(crate) type Make<'a> = &'a dyn Fn(&Path, &File) -> Result<(), Error>;

impl Entry<'_> {
    /// Uses the environment, which is made before if it is not there, and made again if `open` finds it damaged.
    ///
    /// # Errors
    /// It cannot be made, or `open` fails, which leaves no entry that was just made.
    pub(crate) fn with<T>(
        &self,
        make: Make<'_>,
        progress: &dyn Fn(&str),
        open: &dyn Fn(&Path) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let environment = self.folder.join("env");
        if self.is_complete() {
            match open(&environment) {
                Err(error) if error.is_damage() => {}
                outcome => return outcome,
            }
        }
        let lock = self.lock(progress)?;
        if self.is_complete() {
            match open(&environment) {
                Err(error) if error.is_damage() => {
                    progress(&format!("{} is damaged and made again: {error}", environment.display()));
                }
                outcome => return outcome,
            }
        }
        self.remove()?;
        let made = self.make(&environment, make, &lock).and_then(|()| open(&environment));
        if made.is_err() {
            // The first error says more than that of the removal.
            let _ = self.remove();
        }
        made
    }

    fn is_complete(&self) -> bool {
        self.folder.join("complete").is_file()
    }

    fn lock(&self, progress: &dyn Fn(&str)) -> Result<File, Error> {
        let unusable =
            |cause: io::Error| Error::Cache { folder: self.cache.folder.clone(), cause: cause.to_string() };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.cache.folder).map_err(unusable)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.lock)
            .map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(&format!("waiting until {} is made by another load", self.folder.display()));
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

    /// The mark goes first, so that an interrupted removal is not taken for an environment.
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

/// How many digests are remembered.
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

//! The files of models on this machine.
//!
//! A file is stored under a key derived from its bucket and its ETag. It is downloaded to `<key>.part`, with a record
//! of the ranges received, and renamed when it is complete. A model's folder consists of links to such files, so
//! several models, versions and servers share them.
//!
//! A complete file carries a time stamp derived from its key. Editing the file changes the stamp, so it is fetched
//! again. The stamp is set once the file is synced to disk, so a power failure never leaves a damaged file that looks
//! complete. Until then, the file has a provisional stamp, which is valid until the machine restarts: a server that
//! ends early has not fetched it in vain.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nereid_core::{LoadGuard, LoadHooks};
use nereid_private_folders::PrivateFolder;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::trees::Trees;

/// The prefix of the names of the servers' folders.
const PREFIX: &str = "nereid-models-";

/// The folder of the files, by key.
const FILES: &str = "files";

/// The folder of unpacked archives.
const TREES: &str = "unpacked";

/// The suffix of the records of ranges.
const RECORD: &str = "ranges";

/// Where the files of models are kept, and for how long.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// The folder that outlives the server. Without one, files are in a temporary folder until no model uses them.
    pub directory: Option<PathBuf>,
    /// The most bytes that files may take before the least recently used are evicted. Files of loaded models are never
    /// evicted.
    pub byte_size: Option<u64>,
    /// Whether unpacked archives are not cached: their folder is removed after use.
    pub is_temporary: bool,
}

/// A cache of files.
#[derive(Debug)]
pub(crate) struct Cache {
    files: PathBuf,
    /// Unpacked archives, if the cache outlives the server.
    pub trees: Option<Trees>,
    own: Mutex<Option<Arc<PrivateFolder>>>,
    /// The most bytes that unused files may take.
    limit: u64,
    /// The files that this server has fetched and not yet stamped.
    unstamped: Arc<Mutex<Unstamped>>,
}

/// The time stamps of files that have yet to receive their final one, by key.
type Unstamped = BTreeMap<String, SystemTime>;

/// A file to fetch. Its place is locked, so no other server fetches it.
pub(crate) struct Partial {
    pub file: Arc<File>,
    /// The record of the ranges received.
    pub record: Arc<File>,
    path: PathBuf,
    key: String,
}

/// A complete file that lacks its final stamp.
pub(crate) struct PendingStamp {
    /// The fetching server holds a lock on it until then.
    file: Arc<File>,
    unstamped: Arc<Mutex<Unstamped>>,
    before: SystemTime,
    key: String,
}

impl PendingStamp {
    /// Waits until the file is synced to disk, and stamps it.
    pub(crate) fn run(self) {
        let Self { file, unstamped, before, key } = self;
        let synced = file.sync_data().and_then(|()| {
            // A file that was edited in the meantime keeps its time.
            let is_same = file.metadata()?.modified()? == before;
            let times = FileTimes::new().set_accessed(SystemTime::now()).set_modified(stamp(&key));
            if is_same { file.set_times(times) } else { Ok(()) }
        });
        if let Err(error) = synced {
            tracing::warn!("cannot write '{key}' of the cache to the disk: {error}");
        }
        lock(&unstamped).remove(&key);
    }
}

/// The state of a file.
pub(crate) enum CachedFile {
    /// Complete; may have to be stamped in the background.
    Complete(PathBuf, Option<PendingStamp>),
    /// Not in the cache.
    Missing(Partial),
    /// Another task or server fetches it.
    Busy,
}

impl Cache {
    /// The cache in a folder, or a temporary one below `temporary`.
    ///
    /// # Errors
    /// A folder cannot be made.
    pub(crate) fn new(options: &CacheOptions, temporary: &Path) -> io::Result<Self> {
        let (parent, limit) = match &options.directory {
            Some(directory) => (directory.as_path(), options.byte_size.unwrap_or(u64::MAX)),
            None => (temporary, 0),
        };
        fs::create_dir_all(parent)?;
        PrivateFolder::remove_left_over(parent, PREFIX);
        let own = PrivateFolder::new(parent, PREFIX)?;
        let files = match &options.directory {
            Some(directory) => directory.join(FILES),
            None => own.path().join(FILES),
        };
        fs::create_dir_all(&files)?;
        let own = Mutex::new(Some(Arc::new(own)));
        let trees = options
            .directory
            .as_ref()
            .filter(|_| !options.is_temporary)
            .map(|directory| Trees(directory.join(TREES)));
        Ok(Self { files, trees, own, limit, unstamped: Arc::default() })
    }

    /// A new folder for the files of a model. It is removed with the guard.
    pub(crate) fn model_folder(self: &Arc<Self>) -> io::Result<(PathBuf, LoadGuard)> {
        let own = lock(&self.own).clone().ok_or_else(|| io::Error::other("the server is stopping"))?;
        let folder = own.folder()?;
        // Somebody may have tidied the folder for temporary files.
        fs::create_dir_all(&self.files)?;
        let path = folder.path().to_owned();
        Ok((
            path,
            LoadGuard::new(ModelFolder {
                folder: Mutex::new(Some(folder)),
                cache: Arc::clone(self),
                _own: own,
            }),
        ))
    }

    /// Looks for a file of this key and size, and locks its place if it is missing.
    pub(crate) fn find(&self, key: &str, size: u64) -> io::Result<CachedFile> {
        let path = self.files.join(key);
        if let Some(modified) = self.good_since(&path, key, size) {
            // The least recently used files are evicted first.
            let used = FileTimes::new().set_accessed(SystemTime::now());
            let file = File::open(&path).inspect(|file| file.set_times(used).unwrap_or_default()).ok();
            // Unless this server is stamping it already.
            let unstamped = file.filter(|_| {
                modified != stamp(key) && lock(&self.unstamped).insert(key.to_owned(), modified).is_none()
            });
            let stamping = unstamped.map(|file| PendingStamp {
                file: Arc::new(file),
                unstamped: Arc::clone(&self.unstamped),
                before: modified,
                key: key.to_owned(),
            });
            return Ok(CachedFile::Complete(path, stamping));
        }
        let part = self.files.join(format!("{key}.part"));
        // The complete file may lack its stamp; the fetching server holds its lock until then.
        if let Ok(file) = File::open(&path)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            return Ok(CachedFile::Busy);
        }
        let file = open(&part)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(CachedFile::Busy),
            Err(error) => return Err(error.into()),
        }
        // The previous holder of the lock may have finished in the meantime.
        let is_current =
            fs::metadata(&part).is_ok_and(|at| file.metadata().is_ok_and(|of| of.ino() == at.ino()));
        if !is_current {
            return Ok(CachedFile::Busy);
        }
        if path.exists() {
            tracing::warn!("'{}' in the cache was changed; fetching it again", path.display());
            fs::remove_file(&path)?;
        }
        let record = open(&record_of(&part))?;
        let is_begun = file.metadata()?.len() == size && size > 0;
        if !is_begun {
            record.set_len(0)?;
            if self.limit > 0 {
                self.make_room(size);
            }
            if let Err(error) = reserve(&file, size) {
                fs::remove_file(&part).ok();
                fs::remove_file(record_of(&part)).ok();
                return Err(error);
            }
        }
        Ok(CachedFile::Missing(Partial {
            file: Arc::new(file),
            record: Arc::new(record),
            path: part,
            key: key.to_owned(),
        }))
    }

    /// Completes a file. Returns its path, and the stamping to run in the background.
    pub(crate) fn complete(&self, partial: Partial) -> io::Result<(PathBuf, PendingStamp)> {
        let Partial { file, path: part, key, .. } = partial;
        // Read-only, against accidental changes: other models share it.
        file.set_permissions(Permissions::from_mode(0o444))?;
        if let Some(provisional) = provisional(&key) {
            file.set_times(FileTimes::new().set_accessed(SystemTime::now()).set_modified(provisional))?;
        }
        let before = file.metadata()?.modified()?;
        let path = self.files.join(&key);
        fs::rename(&part, &path)?;
        fs::remove_file(record_of(&part)).ok();
        lock(&self.unstamped).insert(key.clone(), before);
        Ok((path, PendingStamp { file, unstamped: Arc::clone(&self.unstamped), before, key }))
    }

    /// Discards everything received of a file, because it is damaged.
    pub(crate) fn discard(&self, partial: Partial) {
        fs::remove_file(record_of(&partial.path)).ok();
        fs::remove_file(&partial.path).ok();
    }

    /// Removes temporary files, even those in use. Nothing may be loaded afterwards.
    pub(crate) fn close(&self) {
        if let Some(own) = lock(&self.own).take() {
            own.remove();
        }
    }

    /// The time stamp of a file that is unchanged since it was fetched.
    fn good_since(&self, path: &Path, key: &str, size: u64) -> Option<SystemTime> {
        let metadata = fs::symlink_metadata(path).ok()?;
        let modified = metadata.modified().ok()?;
        // It may not be synced, but was written since this machine started, or by this server just now.
        let times = [Some(stamp(key)), provisional(key), lock(&self.unstamped).get(key).copied()];
        let is_good = metadata.is_file() && metadata.len() == size && times.contains(&Some(modified));
        is_good.then_some(modified)
    }

    /// Evicts unused files until there is room for this many more bytes.
    fn make_room(&self, bytes: u64) {
        let mut kept = self.kept();
        let mut used: u64 = kept.iter().map(|kept| kept.bytes).sum();
        kept.sort_by_key(|kept| kept.used);
        for kept in kept {
            if used.saturating_add(bytes) <= self.limit {
                return;
            }
            if self.remove(&kept.what) {
                used -= kept.bytes;
            }
        }
        if self.limit > 0 && used.saturating_add(bytes) > self.limit {
            tracing::warn!(
                "the cache in '{}' exceeds its limit of {} bytes: loaded models need {used}",
                self.files.display(),
                self.limit
            );
        }
    }

    /// All entries, with their size and time of last use.
    fn kept(&self) -> Vec<CacheEntry> {
        let entries = fs::read_dir(&self.files).into_iter().flatten().flatten().map(|entry| entry.path());
        let files =
            entries.filter(|path| path.extension().is_none_or(|end| end != RECORD)).filter_map(|path| {
                let metadata = fs::symlink_metadata(&path).ok()?;
                let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
                Some(CacheEntry { bytes: metadata.len(), used, what: What::File(path) })
            });
        let trees = self.trees.iter().flat_map(Trees::kept);
        let trees =
            trees.map(|tree| CacheEntry { bytes: tree.bytes, used: tree.used, what: What::Tree(tree.key) });
        files.chain(trees).collect()
    }

    fn remove(&self, what: &What) -> bool {
        let (name, is_removed) = match what {
            What::File(path) => {
                // A second link is one from a model's folder.
                let is_unused =
                    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.nlink() == 1) && is_idle(path);
                let is_removed = is_unused && fs::remove_file(path).is_ok();
                if is_removed {
                    fs::remove_file(record_of(path)).ok();
                }
                (path.display().to_string(), is_removed)
            }
            What::Tree(key) => (key.clone(), self.trees.as_ref().is_some_and(|trees| trees.remove(key))),
        };
        if is_removed {
            tracing::debug!("removed '{name}' from the cache to make room");
        }
        is_removed
    }
}

/// An entry of the cache.
struct CacheEntry {
    bytes: u64,
    used: SystemTime,
    what: What,
}

enum What {
    File(PathBuf),
    /// An unpacked archive, by its key.
    Tree(String),
}

/// The folder of a model.
struct ModelFolder {
    folder: Mutex<Option<TempDir>>,
    cache: Arc<Cache>,
    _own: Arc<PrivateFolder>,
}

impl LoadHooks for ModelFolder {
    fn dropped(&self) {
        drop(lock(&self.folder).take());
        self.cache.make_room(0);
    }
}

/// The time stamp of a complete file.
fn stamp(key: &str) -> SystemTime {
    let number = key.get(..7).and_then(|start| u64::from_str_radix(start, 16).ok()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + number)
}

/// The stamp of a file that may not be synced yet. It changes when the machine restarts.
pub(crate) fn provisional(key: &str) -> Option<SystemTime> {
    static START: LazyLock<Option<u32>> = LazyLock::new(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(1 + u32::from_str_radix(id.get(..7)?, 16).ok()?)
    });
    Some(stamp(key) + Duration::from_nanos((*START)?.into()))
}

/// Whether no task or server is fetching this file.
fn is_idle(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

fn record_of(part: &Path) -> PathBuf {
    part.with_extension(RECORD)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Reserves the space for a file, so that a full disk is noticed before the download starts.
fn reserve(file: &File, size: u64) -> io::Result<()> {
    file.set_len(0)?;
    if size == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(size),
        outcome => Ok(outcome?),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::{Cache, CacheOptions, CachedFile};

    #[test]
    fn folders_that_somebody_removed_are_made_again() {
        for is_kept in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let directory = is_kept.then(|| folder.path().join("cache"));
            let options = CacheOptions { directory, ..CacheOptions::default() };
            let cache = Arc::new(Cache::new(&options, folder.path()).unwrap());
            for _ in 0..2 {
                for entry in fs::read_dir(folder.path()).unwrap() {
                    fs::remove_dir_all(entry.unwrap().path()).unwrap();
                }
                if is_kept {
                    fs::create_dir(folder.path().join("cache")).unwrap();
                }
                let (model, _guard) = cache.model_folder().unwrap();
                assert!(model.is_dir());
                assert!(matches!(cache.find("0123456789", 5).unwrap(), CachedFile::Missing(_)));
            }
        }
    }

    #[test]
    fn an_edit_is_noticed_before_the_file_has_its_stamp() {
        for has_begun_anew in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let options =
                CacheOptions { directory: Some(folder.path().to_owned()), ..CacheOptions::default() };
            let cache = Cache::new(&options, folder.path()).unwrap();
            let key = "0123456789";
            let CachedFile::Missing(partial) = cache.find(key, 5).unwrap() else {
                panic!("it was never fetched")
            };
            fs::write(&partial.path, "right").unwrap();
            let (path, mut stamping) = cache.complete(partial).unwrap();
            let cache = if has_begun_anew {
                // As the next server finds it after a kill.
                drop(stamping);
                let cache = Cache::new(&options, folder.path()).unwrap();
                let CachedFile::Complete(_, Some(unstamped)) = cache.find(key, 5).unwrap() else {
                    panic!("it has its final stamp")
                };
                stamping = unstamped;
                cache
            } else {
                cache
            };
            assert!(matches!(cache.find(key, 5).unwrap(), CachedFile::Complete(_, None)));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&path, "wrong").unwrap();
            assert!(!matches!(cache.find(key, 5).unwrap(), CachedFile::Complete(..)));
            stamping.run();
            assert!(matches!(cache.find(key, 5).unwrap(), CachedFile::Missing(_)));
        }
    }
}

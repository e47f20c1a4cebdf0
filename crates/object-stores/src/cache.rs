//! The files of models on this machine.
//!
//! A file is kept by its content: under a key made of its bucket and its ETag. It arrives as `<key>.part`, with a record of the
//! ranges that are there, and takes its place by a rename when it is complete. A model's folder consists of links to such files,
//! so several models, versions and servers share them.
//!
//! A complete file has a time stamp that its key gives. An edit by hand changes that, too: such a file is fetched
//! again. The stamp is set when the file is safely on the disk, so the power may fail at any time. Till then, the file has another
//! one, which counts until the machine starts again: a server that ends at once has not fetched it in vain.

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nereid_core::{LoadGuard, LoadHooks};
use nereid_repository::PrivateFolder;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::trees::Trees;

/// What the names of the servers' folders begin with.
const PREFIX: &str = "nereid-models-";

/// The folder of the files, by their keys.
const FILES: &str = "files";

/// The folder of archives that are unpacked.
const TREES: &str = "unpacked";

/// How the names of the records of ranges end.
const RECORD: &str = "ranges";

/// Where the files of models are kept, and for how long.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// The folder that outlives the server. Without one, files go to a temporary folder, and away when no model uses them.
    pub directory: Option<PathBuf>,
    /// How many bytes files may take there before those used longest ago go. Models that are loaded keep theirs.
    pub byte_size: Option<u64>,
    /// Whether archives that are unpacked are not kept there: the folder goes as soon as it has served.
    pub is_temporary: bool,
}

/// A cache of files.
#[derive(Debug)]
pub(crate) struct Cache {
    files: PathBuf,
    /// Archives that are unpacked, if anything outlives the server.
    pub trees: Option<Trees>,
    own: Mutex<Option<Arc<PrivateFolder>>>,
    /// How many bytes unused files may keep.
    limit: u64,
    /// Keys of the files that this server has fetched and that have no stamp yet.
    known: Arc<Mutex<BTreeSet<String>>>,
}

/// A file to be fetched: its place is locked, so nobody else fetches it.
pub(crate) struct Partial {
    pub file: Arc<File>,
    /// Which ranges are there.
    pub record: Arc<File>,
    path: PathBuf,
    key: String,
}

/// A complete file that is to be stamped.
pub(crate) struct Stamping {
    /// Who has fetched it holds a lock till then.
    file: Arc<File>,
    known: Arc<Mutex<BTreeSet<String>>>,
    key: String,
}

impl Stamping {
    /// Waits until the file is on the disk.
    pub(crate) fn run(self) {
        let Self { file, known, key } = self;
        let before = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let synced = file.sync_data().and_then(|()| {
            // Nobody may have edited it meanwhile.
            let is_same = file.metadata()?.modified().ok() == before;
            let times = FileTimes::new().set_accessed(SystemTime::now()).set_modified(stamp(&key));
            if is_same { file.set_times(times) } else { Ok(()) }
        });
        if let Err(error) = synced {
            tracing::warn!("cannot write '{key}' of the cache to the disk: {error}");
        }
        lock(&known).remove(&key);
    }
}

/// What is known of a file.
pub(crate) enum Found {
    /// It is there, and maybe something is left to do when the disk has time.
    Complete(PathBuf, Option<Stamping>),
    /// It is to be fetched.
    Missing(Partial),
    /// Somebody else fetches it.
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
        Ok(Self { files, trees, own, limit, known: Arc::default() })
    }

    /// A new folder for the files of a model. It goes with the guard.
    pub(crate) fn model_folder(self: &Arc<Self>) -> io::Result<(PathBuf, LoadGuard)> {
        let own = lock(&self.own).clone().ok_or_else(|| io::Error::other("the server is stopping"))?;
        let folder = own.folder()?;
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

    /// Looks for a file of this key and size, and takes its place if it is not there.
    pub(crate) fn find(&self, key: &str, size: u64) -> io::Result<Found> {
        let path = self.files.join(key);
        if self.is_good(&path, key, size) {
            // Files used longest ago go first.
            let used = FileTimes::new().set_accessed(SystemTime::now());
            let file = File::open(&path).inspect(|file| file.set_times(used).unwrap_or_default()).ok();
            let is_stamped = has_time(&path, Some(stamp(key)));
            // Unless this server is at it.
            let unstamped = file.filter(|_| !is_stamped && lock(&self.known).insert(key.to_owned()));
            return Ok(Found::Complete(
                path,
                unstamped.map(|file| Stamping {
                    file: Arc::new(file),
                    known: Arc::clone(&self.known),
                    key: key.to_owned(),
                }),
            ));
        }
        let part = self.files.join(format!("{key}.part"));
        // The complete file may not have its stamp yet; who fetched it holds it till then.
        if let Ok(file) = File::open(&path)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            return Ok(Found::Busy);
        }
        let file = open(&part)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Found::Busy),
            Err(error) => return Err(error.into()),
        }
        // The one who had it may have finished meanwhile.
        let is_current =
            fs::metadata(&part).is_ok_and(|at| file.metadata().is_ok_and(|of| of.ino() == at.ino()));
        if !is_current {
            return Ok(Found::Busy);
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
        Ok(Found::Missing(Partial {
            file: Arc::new(file),
            record: Arc::new(record),
            path: part,
            key: key.to_owned(),
        }))
    }

    /// A file has arrived as a whole. Gives its path, and what is left to do when the disk has time.
    pub(crate) fn complete(&self, partial: Partial) -> io::Result<(PathBuf, Stamping)> {
        let Partial { file, path: part, key, .. } = partial;
        // Not to be changed by accident: other models have it, too.
        file.set_permissions(Permissions::from_mode(0o444))?;
        if let Some(provisional) = provisional(&key) {
            file.set_times(FileTimes::new().set_accessed(SystemTime::now()).set_modified(provisional))?;
        }
        let path = self.files.join(&key);
        fs::rename(&part, &path)?;
        fs::remove_file(record_of(&part)).ok();
        lock(&self.known).insert(key.clone());
        let stamping = Stamping { file, known: Arc::clone(&self.known), key };
        Ok((path, stamping))
    }

    /// What has arrived of a file is wrong: nothing of it is kept.
    pub(crate) fn discard(&self, partial: Partial) {
        fs::remove_file(record_of(&partial.path)).ok();
        fs::remove_file(&partial.path).ok();
    }

    /// Removes what is temporary, also what is still in use. Nothing may be loaded afterwards.
    pub(crate) fn close(&self) {
        if let Some(own) = lock(&self.own).take() {
            own.remove();
        }
    }

    /// Whether a file is there as it was fetched.
    fn is_good(&self, path: &Path, key: &str, size: u64) -> bool {
        let Ok(metadata) = fs::symlink_metadata(path) else { return false };
        if !metadata.is_file() || metadata.len() != size {
            return false;
        }
        // Not on the disk yet, maybe, but written since this machine started, or by this server just now.
        has_time(path, Some(stamp(key)))
            || has_time(path, provisional(key))
            || lock(&self.known).contains(key)
    }

    /// Removes what no model uses until there is room for this many bytes more.
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

    /// Everything that is here, with its size and when it was used last.
    fn kept(&self) -> Vec<Kept> {
        let entries = fs::read_dir(&self.files).into_iter().flatten().flatten().map(|entry| entry.path());
        let files =
            entries.filter(|path| path.extension().is_none_or(|end| end != RECORD)).filter_map(|path| {
                let metadata = fs::symlink_metadata(&path).ok()?;
                let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
                Some(Kept { bytes: metadata.len(), used, what: What::File(path) })
            });
        let trees = self.trees.iter().flat_map(Trees::kept);
        let trees = trees.map(|tree| Kept { bytes: tree.bytes, used: tree.used, what: What::Tree(tree.key) });
        files.chain(trees).collect()
    }

    fn remove(&self, what: &What) -> bool {
        let (name, is_removed) = match what {
            What::File(path) => {
                // A link from a model's folder is a second one.
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

/// Something in the cache.
struct Kept {
    bytes: u64,
    used: SystemTime,
    what: What,
}

enum What {
    File(PathBuf),
    /// An archive that is unpacked, by its key.
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

/// The time stamp of a file that may not be on the disk yet. Another start of the machine gives another one.
pub(crate) fn provisional(key: &str) -> Option<SystemTime> {
    static START: LazyLock<Option<u32>> = LazyLock::new(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(1 + u32::from_str_radix(id.get(..7)?, 16).ok()?)
    });
    Some(stamp(key) + Duration::from_nanos((*START)?.into()))
}

fn has_time(path: &Path, time: Option<SystemTime>) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
    time.is_some() && modified == time
}

/// Whether nobody fetches this file.
fn is_idle(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

fn record_of(part: &Path) -> PathBuf {
    part.with_extension(RECORD)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Takes the space for a file, so that a full disk is found before anything is fetched.
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

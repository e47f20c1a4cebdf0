//! Stored answers as files, which outlive the server and leave room in memory.
//!
//! A thread of its own writes them; requests read them and may wait for the disk. A file is named after a digest of the answer's
//! identifier, and its modification time is the answer's last use. Problems with the folder or a file are warnings in the log: answers
//! are then in memory alone.

mod format;
mod index;
mod writer;

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use nereid_model_files as model_files;
use nereid_private_folders::private_subfolder;

use self::format::{Unreadable, decode};
use super::locator::Locator;
use super::store::{LARGEST_PART, LIFETIME, StoredAnswer};

/// The folder of the files in the folder that is configured, which others may use, too.
const ANSWERS: &str = "nereid-answers";

/// The file that the server locks which uses the folder.
const LOCK: &str = "lock";

/// The ending of answers' names.
const COMPLETE: &str = ".answer";

/// The ending of the names of files that are being written.
const PARTIAL: &str = ".new";

/// Permissions of files: only the owner has access.
const PRIVATE: u32 = 0o600;

/// The most jobs of the writing thread that wait.
const MAX_JOBS: usize = 4096;

/// The most bytes of answers that wait for the writing thread.
const MAX_PENDING: usize = 64 << 20;

/// A folder for answers, in addition to memory.
#[derive(Clone, Debug)]
pub struct AnswerFolder {
    /// The folder, which is created if it does not exist.
    pub path: PathBuf,
    /// The most bytes of its files.
    pub bytes: u64,
}

impl AnswerFolder {
    /// The room of a folder without a setting, in bytes.
    pub const DEFAULT_BYTES: u64 = 1 << 30;
}

/// The files of a server's answers. Dropping it waits until all are written.
#[derive(Debug)]
pub(super) struct Folder {
    shared: Arc<Shared>,
    /// `None` only while the folder is dropped.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the writing thread shares with the threads of requests.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The most bytes of files.
    room: u64,
    pending: Mutex<Pending>,
    /// Held while a file gets its name, or is removed by a request.
    naming: Mutex<()>,
    /// The last problem, which is not reported again.
    problem: Mutex<Option<String>>,
    /// Locked as long as the server uses the folder.
    _lock: File,
}

/// The answers that are not in files yet.
#[derive(Debug, Default)]
struct Pending {
    answers: HashMap<Locator, Arc<StoredAnswer>>,
    bytes: usize,
}

/// A task of the writing thread.
#[derive(Debug)]
enum Job {
    /// An answer is pending since this time.
    Write(Locator, SystemTime),
    /// An answer was used.
    Use(Locator, SystemTime),
    /// A file was removed.
    Forget(Locator),
}

impl Folder {
    /// Uses a folder, which no other server may use at the same time.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub(super) fn open(folder: AnswerFolder) -> Result<Self, String> {
        let path = private_subfolder(&folder.path, ANSWERS).map_err(|error| error.to_string())?;
        let failed = |what: &str| format!("cannot use the folder {}: {what}", path.display());
        let lock =
            File::options().write(true).create(true).truncate(false).mode(PRIVATE).open(path.join(LOCK));
        let lock = lock.map_err(|error| failed(&error.to_string()))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed("another server uses it"),
            TryLockError::Error(error) => failed(&error.to_string()),
        })?;
        let (jobs, waiting) = sync_channel(MAX_JOBS);
        let shared = Arc::new(Shared {
            room: folder.bytes,
            pending: Mutex::default(),
            naming: Mutex::default(),
            problem: Mutex::default(),
            _lock: lock,
            path,
        });
        let writer = Arc::clone(&shared);
        let thread = thread::Builder::new().name("nereid-answers".into());
        let thread = thread.spawn(move || writer::run(&writer, waiting));
        let thread =
            thread.map_err(|error| format!("cannot start the thread that writes answers: {error}"))?;
        Ok(Self { shared, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Stores an answer soon. Returns whether there is room.
    pub(super) fn put(&self, locator: Locator, answer: Arc<StoredAnswer>) -> bool {
        let size = answer.size();
        if size as u64 > self.shared.room / LARGEST_PART as u64 {
            return false;
        }
        let mut pending = lock(&self.shared.pending);
        if pending.bytes + size > MAX_PENDING {
            drop(pending);
            self.shared.report("answers are not kept in files: the disk is too slow".to_owned());
            return false;
        }
        pending.bytes += size;
        pending.answers.insert(locator, answer);
        drop(pending);
        let is_queued = self.send(Job::Write(locator, SystemTime::now()));
        if !is_queued {
            lock(&self.shared.pending).take(locator);
        }
        is_queued
    }

    /// The answer in a file.
    pub(super) fn get(&self, locator: Locator) -> Option<Arc<StoredAnswer>> {
        if let Some(answer) = lock(&self.shared.pending).answers.get(&locator) {
            return Some(Arc::clone(answer));
        }
        self.shared.read(locator).map(Arc::new)
    }

    /// Whether an answer would be found.
    pub(super) fn has(&self, locator: Locator) -> bool {
        lock(&self.shared.pending).answers.contains_key(&locator) || self.shared.file(locator).exists()
    }

    /// Marks an answer as used: others are evicted first.
    pub(super) fn touch(&self, locator: Locator) {
        self.send(Job::Use(locator, SystemTime::now()));
    }

    /// Removes an answer and its file.
    pub(super) fn remove(&self, locator: Locator) {
        let file = self.shared.file(locator);
        let naming = lock(&self.shared.naming);
        lock(&self.shared.pending).take(locator);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.shared.report(format!("a deleted answer is left: {}: {error}", file.display()));
            }
            _ => {}
        }
        drop(naming);
        self.send(Job::Forget(locator));
    }

    /// Queues a job for the writing thread. Returns whether the queue had room.
    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported.
            thread.join().ok();
        }
    }
}

impl Shared {
    /// The file of an answer.
    fn file(&self, locator: Locator) -> PathBuf {
        self.path.join(format!("{locator}{COMPLETE}"))
    }

    /// Reads an answer that has not expired from its file.
    fn read(&self, locator: Locator) -> Option<StoredAnswer> {
        let file = self.file(locator);
        let used = fs::metadata(&file).and_then(|metadata| metadata.modified()).ok()?;
        if has_expired(used) {
            return None;
        }
        let contents = match model_files::read(&file, self.room) {
            Ok(contents) => contents,
            Err(error) if error.is_missing() => return None,
            Err(error) => {
                self.report(format!("{}: a stored answer cannot be read: {error}", file.display()));
                return None;
            }
        };
        let unreadable = match decode(&contents) {
            Ok(answer) => return Some(answer),
            Err(unreadable) => unreadable,
        };
        let problem = match unreadable {
            Unreadable::Foreign => "not a stored answer of this release; it is left as it is",
            Unreadable::Damaged => "the stored answer is damaged, and removed",
        };
        self.report(format!("{}: {problem}", file.display()));
        if unreadable == Unreadable::Damaged {
            fs::remove_file(&file).ok();
        }
        None
    }

    /// Warns, unless the last warning was the same.
    fn report(&self, problem: String) {
        let mut last = lock(&self.problem);
        if last.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            *last = Some(problem);
        }
    }
}

impl Pending {
    fn take(&mut self, locator: Locator) -> Option<Arc<StoredAnswer>> {
        let answer = self.answers.remove(&locator)?;
        self.bytes -= answer.size();
        Some(answer)
    }
}

/// The locator of the answer in a file with this name, whose ending is given.
fn locator_of(name: &Path, ending: &str) -> Option<Locator> {
    Locator::parse(name.to_str()?.strip_suffix(ending)?)
}

/// Whether an answer that was last used at this time has expired.
fn has_expired(used: SystemTime) -> bool {
    // A time in the future is a clock that was changed.
    used.elapsed().is_ok_and(|age| age >= LIFETIME)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

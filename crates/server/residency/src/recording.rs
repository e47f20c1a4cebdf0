//! The file of records, which servers may share. Reads it once, at the start; writes it on a thread of its own.
//!
//! The file is replaced as a whole, under a lock, and with the records that other servers have added. A problem with it is a warning
//! in the log: the server works without records.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::content::Content;
use crate::records::{Record, Records, Unreadable};

/// The file in its folder.
const FILE: &str = "model-memory.json";

/// The file of the lock, which stays, so that all servers lock the same one.
const LOCK: &str = "model-memory.lock";

/// The file while it is written.
const NEW: &str = "model-memory.json.new";

/// The largest file that is read.
const MAX_BYTES: u64 = 8 << 20;

/// The time between two writes: loads that end in quick succession are written together.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps records in a file.
pub(crate) struct Recording(Arc<Shared>);

struct Shared {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The records that are not in the file yet.
    new: Records,
    is_writing: bool,
    /// The last problem, which is not reported again.
    problem: Option<String>,
}

impl Recording {
    /// Reads the records of a folder, which need not exist.
    pub(crate) fn open(folder: PathBuf) -> (Self, Records) {
        let shared = Shared { folder, state: Mutex::default() };
        let records = read(&shared.folder).unwrap_or_else(|problem| {
            shared.report(problem.to_string());
            Records::default()
        });
        if !records.is_empty() {
            let file = shared.folder.join(FILE);
            tracing::info!(
                "{} has what {} models took in memory when they were loaded",
                file.display(),
                records.len()
            );
        }
        (Self(Arc::new(shared)), records)
    }

    /// Adds a record to the file soon.
    pub(crate) fn keep(&self, content: Content, record: Record) {
        let mut state = self.0.lock();
        state.new.put(content, record);
        if state.is_writing {
            return;
        }
        let shared = Arc::clone(&self.0);
        match thread::Builder::new().name("nereid-records".into()).spawn(move || shared.write_all()) {
            Ok(_) => state.is_writing = true,
            // Tried again with the next record.
            Err(error) => tracing::warn!("cannot start the thread that writes {FILE}: {error}"),
        }
    }
}

impl Shared {
    /// Writes until there is nothing new.
    fn write_all(&self) {
        loop {
            let new = {
                let mut state = self.lock();
                if state.new.is_empty() {
                    state.is_writing = false;
                    return;
                }
                std::mem::take(&mut state.new)
            };
            if let Err(problem) = write(&self.folder, new.clone()) {
                self.report(problem.to_string());
                let mut state = self.lock();
                // Written with the next record, if it can be then.
                let newer = std::mem::replace(&mut state.new, new);
                state.new.merge(newer);
                state.is_writing = false;
                return;
            }
            self.lock().problem = None;
            thread::sleep(PAUSE);
        }
    }

    fn report(&self, problem: String) {
        let mut state = self.lock();
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            state.problem = Some(problem);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records of a folder; empty without a file.
fn read(folder: &Path) -> io::Result<Records> {
    let file = folder.join(FILE);
    let unusable = |problem: String| {
        io::Error::other(format!(
            "the memory that models took before is unknown: {}: {problem}",
            file.display()
        ))
    };
    match nereid_model_files::read(&file, MAX_BYTES) {
        Ok(contents) => Records::parse(&contents).map_err(|unreadable| match unreadable {
            Unreadable::Foreign => {
                unusable("not a file of this release's records; it is left as it is".to_owned())
            }
            Unreadable::Damaged(cause) => {
                unusable(format!("the file is damaged and will be replaced: {cause}"))
            }
        }),
        Err(error) if error.is_missing() => Ok(Records::default()),
        Err(error) => Err(unusable(error.to_string())),
    }
}

fn write(folder: &Path, new: Records) -> io::Result<()> {
    let (file, temporary) = (folder.join(FILE), folder.join(NEW));
    let failed = |what: &Path| {
        let what = what.display().to_string();
        move |error: io::Error| {
            io::Error::other(format!(
                "the memory that models take is not kept for the next start: {what}: {error}"
            ))
        }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed(folder))?;
    let lock = folder.join(LOCK);
    let locked = File::options().write(true).create(true).truncate(false).mode(0o600).open(&lock);
    let locked = locked.map_err(failed(&lock))?;
    locked.lock().map_err(failed(&lock))?;
    let mut records = match nereid_model_files::read(&file, MAX_BYTES) {
        Ok(contents) => match Records::parse(&contents) {
            Ok(records) => records,
            Err(Unreadable::Damaged(_)) => Records::default(),
            Err(Unreadable::Foreign) => {
                return Err(failed(&file)(io::Error::other("not a file of this release's records")));
            }
        },
        Err(error) if error.is_missing() => Records::default(),
        Err(error) => return Err(failed(&file)(io::Error::other(error.to_string()))),
    };
    records.merge(new);
    let contents = records.to_bytes().map_err(|error| failed(&file)(error.into()))?;
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&temporary)(error)),
        _ => {}
    }
    let written = File::options().write(true).create_new(true).mode(0o600).open(&temporary);
    let written = written.and_then(|mut written| {
        written.write_all(&contents)?;
        written.sync_all()
    });
    written.map_err(failed(&temporary))?;
    fs::rename(&temporary, &file).map_err(failed(&file))
}

#[cfg(test)]
mod tests;

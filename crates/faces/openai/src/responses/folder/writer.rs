//! The thread that writes answers to files, and evicts the oldest ones.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::SystemTime;

use nereid_model_files as model_files;

use super::super::locator::Locator;
use super::super::store::StoredAnswer;
use super::format::encode;
use super::index::Index;
use super::{COMPLETE, Job, LOCK, PARTIAL, PRIVATE, Shared, has_expired, locator_of, lock};

/// Does jobs until there are none and no more will come.
pub(super) fn run(shared: &Shared, jobs: Receiver<Job>) {
    let mut writer = Writer { shared, index: Index::default() };
    writer.scan();
    for job in jobs {
        match job {
            Job::Write(locator, used) => writer.write(locator, used),
            Job::Use(locator, used) => writer.touch(locator, used),
            Job::Forget(locator) => writer.index.remove(locator),
        }
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    index: Index,
}

impl Writer<'_> {
    /// Indexes the answers of earlier servers, and removes their unfinished files.
    fn scan(&mut self) {
        let (mut others, mut example) = (0_usize, None);
        let entries = fs::read_dir(&self.shared.path).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                let metadata = fs::symlink_metadata(entry.path()).ok().filter(fs::Metadata::is_file);
                let used = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
                match (locator_of(name.as_ref(), COMPLETE), metadata.zip(used)) {
                    (Some(locator), Some((metadata, used))) => {
                        self.index.add(locator, metadata.len(), used.min(SystemTime::now()));
                    }
                    (None, Some(_)) if locator_of(name.as_ref(), PARTIAL).is_some() => {
                        fs::remove_file(entry.path()).ok();
                    }
                    _ if name == LOCK => {}
                    _ => {
                        others += 1;
                        example.get_or_insert(name);
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = entries {
            self.shared.report(format!("the answers in {} are unknown: {error}", self.shared.path.display()));
        }
        if let Some(example) = example {
            tracing::warn!(
                "{} has {others} entries that are not stored answers, such as {}; they are left as they are",
                self.shared.path.display(),
                example.display()
            );
        }
        self.make_room(0);
        if self.index.len() > 0 {
            tracing::info!("{} has {} stored answers", self.shared.path.display(), self.index.len());
        }
    }

    /// Writes a pending answer, unless it was removed.
    fn write(&mut self, locator: Locator, used: SystemTime) {
        let Some(answer) = lock(&self.shared.pending).answers.get(&locator).map(Arc::clone) else { return };
        match self.write_file(locator, &answer, used) {
            Ok(Some(length)) => {
                self.index.add(locator, length, used);
                lock(&self.shared.problem).take();
            }
            Ok(None) => {}
            Err(error) => {
                let path = self.shared.path.display();
                self.shared.report(format!("answers are in memory alone: {path}: {error}"));
            }
        }
        lock(&self.shared.pending).take(locator);
    }

    /// Writes a file and then renames it, so that a killed server leaves no damaged one. Returns the length; `None` if the answer was
    /// removed.
    fn write_file(
        &mut self,
        locator: Locator,
        answer: &StoredAnswer,
        used: SystemTime,
    ) -> io::Result<Option<u64>> {
        let contents = encode(answer)?;
        let length = contents.len() as u64;
        self.make_room(length);
        let partial = self.shared.path.join(format!("{locator}{PARTIAL}"));
        let written = write_new(&partial, &contents, used).and_then(|()| {
            let _naming = lock(&self.shared.naming);
            if !lock(&self.shared.pending).answers.contains_key(&locator) {
                fs::remove_file(&partial)?;
                return Ok(None);
            }
            fs::rename(&partial, self.shared.file(locator))?;
            Ok(Some(length))
        });
        if written.is_err() {
            // Nothing is left if the file could not be made at all.
            fs::remove_file(&partial).ok();
        }
        written
    }

    fn touch(&mut self, locator: Locator, used: SystemTime) {
        if self.index.touch(locator, used)
            && let Ok(file) = model_files::open(&self.shared.file(locator))
        {
            // Without the time, the answer only expires earlier after a restart.
            file.set_modified(used).ok();
        }
    }

    /// Removes files that have expired, and the oldest ones until one of this length fits.
    fn make_room(&mut self, length: u64) {
        while let Some((locator, used)) = self.index.oldest() {
            if self.index.fits(length, self.shared.room) && !has_expired(used) {
                return;
            }
            self.index.remove(locator);
            let file = self.shared.file(locator);
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.shared.report(format!("{} is left: {error}", file.display()));
                }
                _ => {}
            }
        }
    }
}

/// Replaces an unfinished file. Files are not synced: the digest reveals damage by a loss of power.
fn write_new(path: &Path, contents: &[u8], used: SystemTime) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(PRIVATE).open(path)?;
    file.write_all(contents)?;
    file.set_modified(used)
}

//! Puts files and folders into a repository. What is copied belongs to the repository: links are followed, and permissions are the
//! default. What is moved is linked first, so that nothing is lost if a model is refused, and copied only across file systems. What is
//! referred to stays where it is.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nereid_model_files as model_files;

/// The deepest folder in a model. Links may make a folder endless.
const MAX_DEPTH: usize = 32;

/// How files get into a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// As copies.
    Copy,
    /// As second names of the same files where the file system allows it, for sources that are removed afterwards.
    Link,
    /// As symbolic links to files that stay where they are.
    Refer,
}

/// The files that were put into a repository.
#[derive(Debug)]
pub(super) struct Placement {
    transfer: Transfer,
    /// Each source, a file or a link to a folder, and its target.
    placed: Vec<(PathBuf, PathBuf)>,
}

impl Placement {
    pub(super) fn new(transfer: Transfer) -> Self {
        Self { transfer, placed: Vec::new() }
    }

    pub(super) fn into_placed(self) -> Vec<(PathBuf, PathBuf)> {
        self.placed
    }

    /// Puts a regular file in its place, and makes the folders above the target.
    ///
    /// # Errors
    /// Which file cannot be read or written, and why.
    pub(super) fn file(&mut self, source: &Path, target: &Path) -> Result<(), String> {
        match self.transfer {
            Transfer::Refer => refer(source, target)?,
            Transfer::Link if link(source, target) => {}
            Transfer::Link | Transfer::Copy => copy_file(source, target)?,
        }
        self.placed.push((source.to_owned(), target.to_owned()));
        Ok(())
    }

    /// Puts a folder in its place with all that is visible in it, without compiled modules of Python.
    ///
    /// # Errors
    /// Which file cannot be read or written, and why.
    pub(super) fn folder(&mut self, source: &Path, target: &Path) -> Result<(), String> {
        self.below(source, target, 0)
    }

    fn below(&mut self, source: &Path, target: &Path, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!(
                "'{}' is deeper than {MAX_DEPTH} folders: is it a link to a folder above?",
                source.display()
            ));
        }
        if self.transfer == Transfer::Link && source.is_symlink() {
            // The folder belongs to others.
            copy_folder(source, target)?;
            self.placed.push((source.to_owned(), target.to_owned()));
            return Ok(());
        }
        let cannot_read = |error: io::Error| format!("cannot read '{}': {error}", source.display());
        fs::create_dir_all(target)
            .map_err(|error| format!("cannot write '{}': {error}", target.display()))?;
        for entry in fs::read_dir(source).map_err(cannot_read)? {
            let entry = entry.map_err(cannot_read)?;
            let (name, path) = (entry.file_name(), entry.path());
            let is_left_out = name.as_encoded_bytes().starts_with(b".") || name == "__pycache__";
            if is_left_out {
                continue;
            }
            // A link to nothing fails as a file that does not exist.
            if path.is_dir() {
                self.below(&path, &target.join(name), depth + 1)?;
            } else {
                self.file(&path, &target.join(name))?;
            }
        }
        Ok(())
    }
}

/// Copies a regular file, and makes the folders above the target.
///
/// # Errors
/// Which file cannot be read or written, and why.
pub(super) fn copy_file(source: &Path, target: &Path) -> Result<(), String> {
    let cannot_read = |error: &dyn std::fmt::Display| format!("cannot read '{}': {error}", source.display());
    let cannot_write = |error: io::Error| format!("cannot write '{}': {error}", target.display());
    let mut from = model_files::open(source).map_err(|error| cannot_read(&error))?;
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(cannot_write)?;
    }
    let mut to = File::create_new(target).map_err(cannot_write)?;
    // An error is nearly always the target's: a full disk.
    io::copy(&mut from, &mut to).map_err(cannot_write)?;
    to.sync_all().map_err(cannot_write)
}

/// Copies a folder with all that is visible in it, without compiled modules of Python.
///
/// # Errors
/// Which file cannot be read or written, and why.
pub(super) fn copy_folder(source: &Path, target: &Path) -> Result<(), String> {
    Placement::new(Transfer::Copy).folder(source, target)
}

/// Makes a symbolic link to a regular file, and the folders above the link.
///
/// # Errors
/// Which file cannot be read or written, and why.
fn refer(source: &Path, target: &Path) -> Result<(), String> {
    model_files::check(source).map_err(|error| format!("cannot read '{}': {error}", source.display()))?;
    let make = || {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        // Links on the way stay, as their targets may change.
        symlink(std::path::absolute(source)?, target)
    };
    make().map_err(|error| format!("cannot write '{}': {error}", target.display()))
}

/// Gives a regular file a second name, if the file system allows it.
fn link(source: &Path, target: &Path) -> bool {
    let is_file = fs::symlink_metadata(source).is_ok_and(|metadata| metadata.is_file());
    let makes_folder = || target.parent().is_none_or(|folder| fs::create_dir_all(folder).is_ok());
    is_file && makes_folder() && fs::hard_link(source, target).is_ok()
}

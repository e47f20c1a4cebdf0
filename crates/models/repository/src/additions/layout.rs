//! Copies files and folders. What is copied belongs to the repository: links are followed, and permissions are the default.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nereid_model_files as model_files;

/// The deepest folder in a model. Links may make a folder endless.
const MAX_DEPTH: usize = 32;

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
    copy_below(source, target, 0)
}

fn copy_below(source: &Path, target: &Path, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!(
            "'{}' is deeper than {MAX_DEPTH} folders: is it a link to a folder above?",
            source.display()
        ));
    }
    let cannot_read = |error: io::Error| format!("cannot read '{}': {error}", source.display());
    fs::create_dir_all(target).map_err(|error| format!("cannot write '{}': {error}", target.display()))?;
    for entry in fs::read_dir(source).map_err(cannot_read)? {
        let entry = entry.map_err(cannot_read)?;
        let (name, path) = (entry.file_name(), entry.path());
        let is_left_out = name.as_encoded_bytes().starts_with(b".") || name == "__pycache__";
        if is_left_out {
            continue;
        }
        // A link to nothing fails as a file that does not exist.
        if path.is_dir() {
            copy_below(&path, &target.join(name), depth + 1)?;
        } else {
            copy_file(&path, &target.join(name))?;
        }
    }
    Ok(())
}

//! Python code of the server, kept in the user's cache for interpreters to import.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::process;

use nereid_private_folders::cache_folder;

use crate::Error;

/// Writes files, each a name and its contents, to a folder of the user's cache that has nothing else, because files next to each
/// other can import each other. Returns the folder. `name` is the folder's in the cache.
///
/// # Errors
/// A file cannot be written.
pub fn keep_sources(name: &str, files: &[(&str, &str)]) -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let folder = cache_folder(name)?.join(format!("python-{:016x}", hasher.finish()));
    let write = || -> io::Result<()> {
        for (name, source) in files {
            let (file, part) = (folder.join(name), folder.join(format!("part-{}-{name}", process::id())));
            if fs::read(&file).ok().is_none_or(|found| found != source.as_bytes()) {
                fs::create_dir_all(&folder)?;
                fs::write(&part, source)?;
                fs::rename(&part, &file)?;
            }
        }
        Ok(())
    };
    write().map_err(Error::io(format!("cannot write to {}", folder.display())))?;
    Ok(folder)
}

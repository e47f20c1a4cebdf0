//! Python code of the server, kept in the user's cache for interpreters to import.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

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
    write(&folder, files).map_err(Error::io(format!("cannot write to {}", folder.display())))?;
    Ok(folder)
}

/// Writes the files that are missing or different. Models that load at the same time may call it together.
fn write(folder: &Path, files: &[(&str, &str)]) -> io::Result<()> {
    static PARTS: AtomicU64 = AtomicU64::new(0);
    for (name, source) in files {
        let file = folder.join(name);
        if fs::read(&file).ok().is_none_or(|found| found != source.as_bytes()) {
            let number = PARTS.fetch_add(1, Ordering::Relaxed);
            let part = folder.join(format!("part-{}-{number}-{name}", process::id()));
            fs::create_dir_all(folder)?;
            fs::write(&part, source)?;
            fs::rename(&part, &file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn many_models_write_the_same_files_at_the_same_time() {
        let files = [("one.py", "1".repeat(100_000)), ("other.py", "2".to_owned())];
        let files = files.each_ref().map(|(name, source)| (*name, source.as_str()));
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path().join("python");
            thread::scope(|scope| {
                let writers: Vec<_> = (0..8).map(|_| scope.spawn(|| write(&folder, &files))).collect();
                for writer in writers {
                    writer.join().unwrap().unwrap();
                }
            });
            let mut found: Vec<_> =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            found.sort();
            assert_eq!(found, ["one.py", "other.py"]);
            assert_eq!(fs::read_to_string(folder.join("one.py")).unwrap(), files[0].1);
        }
    }
}

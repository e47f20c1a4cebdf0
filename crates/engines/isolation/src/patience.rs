//! The time limit of a model's load.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The limit for a model of any size.
const FIXED: Duration = Duration::from_secs(60);

/// Bytes that extend the limit by a second: a network disk may be as slow as this.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// The deepest nesting of folders that is measured.
const MAX_DEPTH: usize = 8;

/// The time limit of a model's load, given the folder with its files.
pub(crate) fn for_files(folder: &Path) -> Duration {
    FIXED + Duration::from_secs(size(folder, MAX_DEPTH) / BYTES_PER_SECOND)
}

/// The size of the files in a folder, or of those that can be read.
fn size(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match fs::metadata(entry.path()) {
        Ok(found) if found.is_file() => found.len(),
        Ok(found) if found.is_dir() && depth > 0 => size(&entry.path(), depth - 1),
        _ => 0,
    };
    entries.flatten().map(size).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_models_get_more_time() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(for_files(&folder.path().join("missing")), FIXED);
        fs::create_dir(folder.path().join("variables")).unwrap();
        for (name, size) in [("model.pt", 3 * BYTES_PER_SECOND), ("variables/data", 2 * BYTES_PER_SECOND)] {
            fs::File::create(folder.path().join(name)).unwrap().set_len(size).unwrap();
        }
        assert_eq!(for_files(folder.path()), FIXED + Duration::from_secs(5));
    }

    #[cfg(unix)]
    #[test]
    fn recursive_folder_is_measured_in_finite_time() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("itself")).unwrap();
        assert_eq!(for_files(folder.path()), FIXED);
    }
}

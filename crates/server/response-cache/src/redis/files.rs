//! The files of a model as one digest, equal on all servers that have equal files.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Maximum depth of folders.
const MAX_DEPTH: usize = 32;

/// A digest of a version's folder and of the files outside version folders. The configuration file is excluded, because
/// only the completed configuration matters, and so are Python's compiled modules.
///
/// # Errors
/// A file cannot be read.
pub(super) fn digest(directory: &Path, version: u64) -> io::Result<[u8; 32]> {
    let mut digest = blake3::Hasher::new();
    let is_version = |name: &str| name.parse::<u64>().is_ok_and(|number| number != version);
    let is_config = |name: &str| matches!(name, "config.pbtxt" | "configs");
    add(directory, "", 0, &|name| !is_version(name) && !is_config(name), &mut digest)?;
    Ok(*digest.finalize().as_bytes())
}

fn add(
    folder: &Path,
    prefix: &str,
    depth: usize,
    counts: &dyn Fn(&str) -> bool,
    digest: &mut blake3::Hasher,
) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?
        .map(|entry| {
            Ok((
                entry
                    .as_ref()
                    .map_or_else(|_| String::new(), |it| it.file_name().to_string_lossy().into_owned()),
                entry?.path(),
            ))
        })
        .collect::<io::Result<_>>()?;
    entries.sort();
    for (name, path) in entries {
        if !counts(&name) || name == "__pycache__" {
            continue;
        }
        // Links count by their target; entries that are neither files nor folders are ignored.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let inside = format!("{prefix}{name}");
        if metadata.is_dir() && depth < MAX_DEPTH {
            add(&path, &format!("{inside}/"), depth + 1, &|_| true, digest)?;
        } else if metadata.is_file() {
            digest.update(&(inside.len() as u64).to_le_bytes());
            digest.update(inside.as_bytes());
            let mut contents = blake3::Hasher::new();
            contents.update_reader(File::open(&path)?)?;
            digest.update(contents.finalize().as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, path: &str, contents: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    #[test]
    fn digest_covers_model_files_only() {
        let files =
            [("1/model.py", "one"), ("1/deep/data", "two"), ("labels.txt", "three"), ("2/model.py", "other")];
        let changes = [
            (("1/model.py", "onE"), true),
            (("1/deep/more", ""), true),
            (("labels.txt", ""), true),
            (("2/model.py", "changed"), false),
            (("config.pbtxt", "name: 'x'"), false),
            (("configs/a.pbtxt", ""), false),
            (("1/__pycache__/model.pyc", "x"), false),
        ];
        let original = tempfile::tempdir().unwrap();
        files.iter().for_each(|(path, contents)| write(original.path(), path, contents));
        let expected = digest(original.path(), 1).unwrap();
        for ((path, contents), counts) in changes {
            // At another place, written at another time.
            let copy = tempfile::tempdir().unwrap();
            files.iter().rev().for_each(|(path, contents)| write(copy.path(), path, contents));
            assert_eq!(digest(copy.path(), 1).unwrap(), expected);
            write(copy.path(), path, contents);
            assert_eq!(digest(copy.path(), 1).unwrap() != expected, counts, "{path}");
        }
        assert_ne!(digest(original.path(), 2).unwrap(), expected);
        assert!(digest(&original.path().join("none"), 1).is_err());
    }
}

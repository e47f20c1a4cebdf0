//! Tells whether a model's folder has changed, by what the file system says of each file, and by what small files hold.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nereid_core::Fingerprint;
use nereid_core::backend_api::{Error, ErrorCode, Result};

use crate::model_folder::{CONFIG, CONFIGS, version_number};

/// Folders below this many others are not looked into: so deep is nothing but a link that leads back.
const DEPTH: usize = 16;

/// Files of up to so many bytes are read: two writes within one tick of the clock that leave the size as it was are told
/// apart by nothing else. To read longer ones at every look would cost too much; they go by size, times and inode.
const SMALL: u64 = 64 << 10;

/// The fingerprint of a model's folder. Its configuration and its version folders go apart from the rest. Files that editors leave behind
/// are passed over.
pub(crate) fn of_model(folder: &Path) -> Result<Fingerprint> {
    let mut config = DefaultHasher::new();
    let mut whole = DefaultHasher::new();
    let mut versions = BTreeMap::new();
    for (name, metadata) in entries(folder)? {
        let version = version_number(&name).and_then(|version| u64::try_from(version).ok());
        match version.filter(|_| metadata.is_dir()) {
            Some(version) => {
                let mut hasher = DefaultHasher::new();
                add(&folder.join(&name), &name, &metadata, DEPTH, &mut hasher)?;
                versions.insert(version, hasher.finish());
            }
            None => {
                let hasher =
                    if [CONFIG, CONFIGS].contains(&name.as_str()) { &mut config } else { &mut whole };
                add(&folder.join(&name), &name, &metadata, DEPTH, hasher)?;
            }
        }
    }
    Ok(Fingerprint { config: config.finish(), whole: whole.finish(), versions })
}

fn add(path: &Path, name: &str, metadata: &Metadata, depth: usize, hasher: &mut DefaultHasher) -> Result<()> {
    name.hash(hasher);
    if metadata.is_dir() {
        // A folder's own times change with what it holds.
        for (name, metadata) in if depth > 0 { entries(path)? } else { Vec::new() } {
            add(&path.join(&name), &name, &metadata, depth - 1, hasher)?;
        }
        return Ok(());
    }
    // The time of the last change of state ties two writes within one tick of the clock less often than that of the
    // last write alone; the number of the inode tells a file put in the place of another.
    let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
    (metadata.len(), metadata.dev(), metadata.ino(), times).hash(hasher);
    if metadata.is_file() && metadata.len() <= SMALL {
        // What cannot be read is told when the model is loaded.
        contents(path).ok().hash(hasher);
    }
    Ok(())
}

fn contents(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    File::open(path)?.take(SMALL).read_to_end(&mut contents)?;
    Ok(contents)
}

/// What a folder holds, by name. What vanishes meanwhile, or is a link to nowhere, is not there.
fn entries(folder: &Path) -> Result<Vec<(String, Metadata)>> {
    let unreadable = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::Unavailable,
        };
        Error::new(code, format!("cannot read '{}': {error}", folder.display()))
    };
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        if let Ok(metadata) = fs::metadata(entry.path()) {
            entries.push((name, metadata));
        }
    }
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_from_no_change_and_versions_go_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
            fs::write(path.join(name), text).unwrap();
        };
        write("config.pbtxt", "a");
        write("1/model.onnx", "one");
        write("2/deep/model.onnx", "two");
        let before = of_model(path).unwrap();
        assert_eq!(before.versions.keys().copied().collect::<Vec<_>>(), [1, 2]);
        write(".config.pbtxt.swp", "an editor's");
        write("config.pbtxt~", "an editor's");
        assert_eq!(of_model(path).unwrap(), before);
        // As long as before.
        write("2/deep/model.onnx", "TWO");
        let after = of_model(path).unwrap();
        assert_eq!((after.config, after.whole), (before.config, before.whole));
        assert_eq!(after.versions[&1], before.versions[&1]);
        assert_ne!(after.versions[&2], before.versions[&2]);
        write("labels.txt", "a");
        let labelled = of_model(path).unwrap();
        assert_ne!(labelled.whole, after.whole);
        assert_eq!((labelled.config, &labelled.versions), (after.config, &after.versions));
        write("configs/big.pbtxt", "b");
        let configured = of_model(path).unwrap();
        assert_ne!(configured.config, labelled.config);
        assert_eq!(configured.whole, labelled.whole);
        fs::remove_dir_all(path.join("1")).unwrap();
        assert_eq!(of_model(path).unwrap().versions.len(), 1);
    }

    #[test]
    fn a_small_file_is_told_from_another_of_the_same_size_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.pbtxt");
        fs::write(&path, "a").unwrap();
        let tied = fs::metadata(&path).unwrap();
        let stamp = |text: &str| {
            fs::write(&path, text).unwrap();
            let mut hasher = DefaultHasher::new();
            // As if both were written within one tick of the clock.
            add(&path, "config.pbtxt", &tied, DEPTH, &mut hasher).unwrap();
            hasher.finish()
        };
        assert_ne!(stamp("a"), stamp("b"));
        assert_eq!(stamp("b"), stamp("b"));
    }

    #[test]
    fn a_link_that_leads_back_is_followed_only_so_far() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("1")).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("1/back")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("broken")).unwrap();
        assert_eq!(of_model(folder.path()).unwrap(), of_model(folder.path()).unwrap());
        assert_eq!(of_model(Path::new("no/such/folder")).unwrap_err().code(), ErrorCode::NotFound);
    }
}

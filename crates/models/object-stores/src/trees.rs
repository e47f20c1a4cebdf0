//! Unpacked archives, kept for the next start.
//!
//! A tree is stored under a key derived from its sources, next to a list of its files with their sizes and times. A tree
//! that differs from its list, after an edit or a power failure, is removed and unpacked again. Servers never use a
//! tree itself, but links to its files, so that models may add files of their own.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The suffix of a tree's list. The list exists once the tree is complete.
const LIST: &str = "list";

/// The suffix of the lock file of a tree.
const LOCK: &str = "lock";

/// The folder of trees.
#[derive(Clone, Debug)]
pub(crate) struct Trees(pub PathBuf);

/// A tree's place, locked against other servers.
pub(crate) struct Place {
    folder: PathBuf,
    lock: File,
}

/// A complete tree.
pub(crate) struct Tree {
    pub key: String,
    pub bytes: u64,
    /// When it was used last.
    pub used: SystemTime,
}

impl Trees {
    /// The place of a key. Blocks while another server uses it.
    pub(crate) fn place(&self, key: &str) -> io::Result<Place> {
        fs::create_dir_all(&self.0)?;
        Ok(self.locked(key, FlockOperation::LockExclusive)?)
    }

    fn locked(&self, key: &str, how: FlockOperation) -> Result<Place, Errno> {
        let folder = self.0.join(key);
        let path = folder.with_extension(LOCK);
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let lock = open.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        flock(&lock, how)?;
        Ok(Place { folder, lock })
    }

    /// All complete trees.
    pub(crate) fn kept(&self) -> Vec<Tree> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let lists = entries.filter(|path| path.extension().is_some_and(|end| end == LIST));
        let tree = |list: PathBuf| {
            let used = fs::metadata(&list).and_then(|metadata| metadata.modified()).ok()?;
            let text = fs::read_to_string(&list).ok()?;
            let sizes = text
                .lines()
                .filter_map(|line| line.strip_prefix("file ")?.split(' ').next()?.parse::<u64>().ok());
            Some(Tree { key: list.file_stem()?.to_str()?.to_owned(), bytes: sizes.sum(), used })
        };
        lists.filter_map(tree).collect()
    }

    /// Removes a tree unless a server uses it.
    pub(crate) fn remove(&self, key: &str) -> bool {
        let Ok(place) = self.locked(key, FlockOperation::NonBlockingLockExclusive) else { return false };
        !is_used(&place.folder) && place.clear().is_ok()
    }
}

impl Place {
    /// The path of the tree, present or not.
    pub(crate) fn tree(&self) -> &Path {
        &self.folder
    }

    /// Whether the tree is present and unchanged.
    pub(crate) fn checked(self) -> (Self, bool) {
        let Ok(list) = fs::read_to_string(self.list()) else { return (self, false) };
        if describe(&self.folder).is_ok_and(|now| now == list) {
            // The least recently used trees are evicted first.
            File::open(self.list()).and_then(|file| file.set_modified(SystemTime::now())).ok();
            return (self, true);
        }
        tracing::warn!("'{}' in the cache was changed; unpacking it again", self.folder.display());
        (self, false)
    }

    /// Makes a tree: `fill` writes to an empty folder. The tree is complete after [`seal`](Self::seal).
    pub(crate) fn make(&self, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        self.clear().and_then(|()| fs::create_dir(&self.folder)).map_err(|error| error.to_string())?;
        fill(&self.folder).inspect_err(|_| drop(self.clear()))
    }

    /// Marks the tree as complete, once it is synced to disk. Dropping the place releases the lock.
    pub(crate) fn seal(self) {
        let sealed = each(&self.folder, &mut |path, metadata| {
            if metadata.is_file() { File::open(path)?.sync_data() } else { Ok(()) }
        });
        let list = sealed.and_then(|()| describe(&self.folder));
        if let Err(error) = list.and_then(|list| fs::write(self.list(), list)) {
            tracing::warn!("cannot keep '{}' in the cache: {error}", self.folder.display());
        }
        drop(self.lock);
    }

    fn clear(&self) -> io::Result<()> {
        let missing =
            |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
        fs::remove_file(self.list()).or_else(missing)?;
        fs::remove_dir_all(&self.folder).or_else(missing)
    }

    fn list(&self) -> PathBuf {
        self.folder.with_extension(LIST)
    }
}

/// Makes a folder of links to the files of a tree, which are read-only.
pub(crate) fn link(tree: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    each(tree, &mut |path, metadata| {
        let target = to.join(path.strip_prefix(tree).map_err(io::Error::other)?);
        if metadata.is_dir() {
            fs::create_dir_all(target)
        } else if metadata.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(path)?, target)
        } else {
            // Some file systems have no hard links, and all limit their number.
            fs::hard_link(path, &target).or_else(|_| fs::copy(path, &target).map(drop))
        }
    })
}

/// Read-only, against accidental changes: other servers share the files.
pub(crate) fn protect(tree: &Path) -> io::Result<()> {
    each(tree, &mut |path, metadata| {
        let mode = metadata.permissions().mode() & 0o555;
        if metadata.is_file() {
            fs::set_permissions(path, Permissions::from_mode(mode | 0o400))
        } else {
            Ok(())
        }
    })
}

/// Whether a server has links to its files.
fn is_used(tree: &Path) -> bool {
    let mut is_used = false;
    let walked = each(tree, &mut |_, metadata| {
        is_used |= metadata.is_file() && metadata.nlink() > 1;
        Ok(())
    });
    is_used || walked.is_err()
}

/// Lists everything below a folder, one entry a line.
fn describe(tree: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    each(tree, &mut |path, metadata| {
        let name = path.strip_prefix(tree).map_err(io::Error::other)?;
        lines.push(if metadata.is_dir() {
            format!("folder {name:?}\n")
        } else if metadata.is_symlink() {
            format!("link {name:?} {:?}\n", fs::read_link(path)?)
        } else {
            format!("file {} {}.{} {name:?}\n", metadata.len(), metadata.mtime(), metadata.mtime_nsec())
        });
        Ok(())
    })?;
    lines.sort();
    Ok(lines.concat())
}

/// Everything below a folder, each entry after its parent.
fn each(folder: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        visit(&path, &metadata)?;
        if metadata.is_dir() {
            each(&path, visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::symlink;

    use super::*;

    fn fill(folder: &Path) -> Result<(), String> {
        fs::create_dir(folder.join("m")).unwrap();
        fs::write(folder.join("m/a"), "contents").unwrap();
        fs::write(folder.join("empty"), "").unwrap();
        symlink("a", folder.join("m/link")).unwrap();
        protect(folder).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tree_is_made_once_unless_somebody_changes_it() {
        let (folder, made) = (tempfile::tempdir().unwrap(), Cell::new(0));
        let trees = Trees(folder.path().join("trees"));
        let count = || {
            let (place, is_there) = trees.place("key").unwrap().checked();
            if !is_there {
                made.set(made.get() + 1);
                place.make(fill).unwrap();
                place.seal();
            }
            made.replace(0)
        };
        assert_eq!([count(), count()], [1, 0]);
        let file = trees.0.join("key/m/a");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o444);
        let changes: [&dyn Fn() -> io::Result<()>; 6] = [
            &|| fs::remove_file(&file),
            &|| fs::remove_file(&file).and_then(|()| fs::write(&file, "contents")),
            &|| fs::write(trees.0.join("key/more"), ""),
            &|| fs::create_dir(trees.0.join("key/m/folder")),
            &|| fs::remove_dir_all(trees.0.join("key")),
            &|| fs::remove_file(trees.0.join("key.list")),
        ];
        for (number, change) in changes.iter().enumerate() {
            change().unwrap();
            assert_eq!([count(), count()], [1, 0], "{number}");
        }
        // A tree that cannot be made leaves nothing behind.
        let place = trees.place("other").unwrap();
        let failed = place.make(|folder| {
            fill(folder)?;
            Err("no archive".into())
        });
        assert_eq!(failed.unwrap_err(), "no archive");
        assert!(!place.checked().1 && !trees.0.join("other").exists());
    }

    #[test]
    fn linked_tree_survives_a_clean_up() {
        let folder = tempfile::tempdir().unwrap();
        let trees = Trees(folder.path().join("trees"));
        let place = trees.place("key").unwrap();
        let linked = folder.path().join("linked");
        place.make(fill).unwrap();
        link(place.tree(), &linked).unwrap();
        place.seal();
        assert_eq!(fs::read_to_string(linked.join("m/link")).unwrap(), "contents");
        // A model adds a file.
        fs::write(linked.join("m/own"), "").unwrap();
        assert!(trees.place("key").unwrap().checked().1);
        let [kept] = trees.kept().try_into().ok().unwrap();
        assert_eq!((kept.key.as_str(), kept.bytes), ("key", 8));
        assert!(!trees.remove("key"));
        fs::remove_dir_all(&linked).unwrap();
        let locked = trees.place("key").unwrap();
        assert!(!trees.remove("key"), "somebody uses it");
        drop(locked);
        assert!(trees.remove("key") && trees.kept().is_empty() && !trees.0.join("key").exists());
    }
}

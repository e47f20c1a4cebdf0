//! Folders on this machine. Fetching a folder copies nothing and returns its path.

use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_core::{LoadGuard, ModelLocation, SourceFuture};
use nereid_model_files as model_files;

use super::{Entry, Fetch, FetchedFolder, Object, ObjectKind, Store};

/// Folders nested deeper than this are not read.
const DEPTH: usize = 16;

/// Files of up to this many bytes are read for their stamps: metadata cannot distinguish two writes of the same size
/// within one clock tick. Reading longer files at every poll would cost too much; their stamps use size, times and
/// inode.
const SMALL: u64 = 64 << 10;

/// A folder on this machine. Links in it are followed: repositories are often assembled from links.
#[derive(Clone, Debug)]
pub struct LocalStore {
    root: PathBuf,
    location: String,
}

impl LocalStore {
    /// The store in this folder, which may not exist yet.
    pub fn new(root: PathBuf) -> Self {
        let location = root.to_string_lossy().into_owned();
        Self { root, location }
    }

    /// The local path of a folder of the store.
    fn path_of(&self, folder: &str) -> Result<PathBuf> {
        let is_inside = Path::new(folder).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside {
            return Err(Error::not_found(format!("'{folder}' is not a folder of '{}'", self.location)));
        }
        Ok(if folder.is_empty() { self.root.clone() } else { self.root.join(folder) })
    }

    fn read_list(&self, folder: &str) -> Result<Vec<Entry>> {
        let path = self.path_of(folder)?;
        let unreadable = |error: io::Error| unreadable(&path, &error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_folder: entry.path().is_dir() });
        }
        Ok(entries)
    }

    fn read_stat(&self, folder: &str) -> Result<Vec<Object>> {
        let (path, mut objects) = (self.path_of(folder)?, Vec::new());
        let mut above: Vec<_> = fs::metadata(&path).iter().map(identity).collect();
        self.walk(&path, "", &mut above, &mut objects)?;
        Ok(objects)
    }

    /// Adds the contents of a folder, in the order of [`Store::stat`]. `above` contains the folder and its ancestors.
    fn walk(
        &self,
        folder: &Path,
        prefix: &str,
        above: &mut Vec<(u64, u64)>,
        objects: &mut Vec<Object>,
    ) -> Result<()> {
        for (name, metadata) in entries(folder)? {
            let (path, inside) = (folder.join(&name), format!("{prefix}{name}"));
            if metadata.is_dir() {
                let below = format!("{inside}/");
                objects.push(Object { path: inside, kind: ObjectKind::Folder });
                let is_above = above.contains(&identity(&metadata)) || self.leads_back(folder, &path);
                if above.len() < DEPTH && !is_above {
                    above.push(identity(&metadata));
                    self.walk(&path, &below, above, objects)?;
                    above.pop();
                }
            } else {
                let kind = ObjectKind::File { size: metadata.len(), stamp: stamp(&path, &metadata) };
                objects.push(Object { path: inside, kind });
            }
        }
        Ok(())
    }

    /// Whether an entry links to a folder above it. Its files belong to other models, or are part of this one already.
    fn leads_back(&self, folder: &Path, entry: &Path) -> bool {
        if !entry.is_symlink() {
            return false;
        }
        let Ok(target) = entry.canonicalize() else { return false };
        [folder, &self.root]
            .iter()
            .any(|inner| inner.canonicalize().is_ok_and(|inner| inner.starts_with(&target)))
    }
}

impl Store for LocalStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn list<'a>(&'a self, folder: &'a str, _: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(async { self.read_list(folder) })
    }

    fn stat<'a>(&'a self, folder: &'a str, _: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async { self.read_stat(folder) })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        Box::pin(async move {
            let path = self.path_of(fetch.folder)?;
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    Ok(FetchedFolder { path, is_complete: true, guard: LoadGuard::default() })
                }
                Ok(_) => Err(Error::not_found(format!("'{}' is not a folder", path.display()))),
                Err(error) => Err(unreadable(&path, &error)),
            }
        })
    }

    fn locate(&self, folder: &str) -> ModelLocation {
        ModelLocation::Folder(self.root.join(folder))
    }
}

/// Identifies a folder.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A stamp that changes with a file's contents.
fn stamp(path: &Path, metadata: &Metadata) -> String {
    let mut hasher = DefaultHasher::new();
    // Two writes within one clock tick share ctime less often than mtime alone; the inode changes when a file is
    // replaced.
    let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), times).hash(&mut hasher);
    if metadata.is_file() && metadata.len() <= SMALL {
        // A file that cannot be read is reported when the model is loaded.
        model_files::read(path, SMALL).ok().hash(&mut hasher);
    }
    format!("{:x}", hasher.finish())
}

/// Lists a folder, sorted by name. Skips hidden files, editors' backups, dangling links, and entries that vanish during the
/// listing.
fn entries(folder: &Path) -> Result<Vec<(String, Metadata)>> {
    let unreadable = |error: io::Error| unreadable(folder, &error);
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

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorCode::NotFound,
        _ => ErrorCode::Unavailable,
    };
    Error::new(code, format!("cannot read '{}': {error}", path.display()))
}

#[cfg(test)]
mod tests;

//! Storage of a repository's files: a folder on this machine, or objects in a bucket.
//!
//! A store knows names, sizes and contents, but no models. Paths are relative to the store, with `/` between
//! components; the empty path is the store itself.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod local;
mod renamed;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Error, ErrorCode};
use nereid_core::{LoadGuard, ModelLocation, Progress, SourceFuture};
use nereid_model_files::{self as model_files, TEXT_LIMIT};

pub use self::local::LocalStore;
pub(crate) use self::renamed::RenamedStore;
use crate::route::Route;

/// One repository's files. Implementations follow the rules of `store/conformance.rs`, which their tests run.
///
/// Stores may answer with data that they learned at `as_of` or later, so a remote store need not query again. A list of
/// the store itself is always fresh.
pub trait Store: Send + Sync + fmt::Debug {
    /// The store's name in messages and as a namespace, such as `/models` or `s3://bucket/models`.
    fn location(&self) -> &str;

    /// Lists a folder, in any order.
    ///
    /// # Errors
    /// `NotFound` for a missing folder, `Unavailable` if it cannot be read now.
    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>>;

    /// Everything below a folder at any depth, in ascending order of paths, each entry after its parent. Editors'
    /// temporary files (`.name`, `name~`) are skipped.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>>;

    /// Fetches the metadata that the store needs before it can serve other calls, and reports progress. Most stores
    /// need none.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn prepare<'a>(&'a self, _progress: &'a Progress, _as_of: Instant) -> SourceFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Makes a folder's contents available as a local folder. Local files need not be copied.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder>;

    /// The address of a folder, for programs that read it themselves.
    fn locate(&self, folder: &str) -> ModelLocation {
        ModelLocation::Remote(format!("{}/{folder}", self.location().trim_end_matches('/')))
    }

    /// A short text file at the root of the store, if it exists.
    ///
    /// # Errors
    /// As [`list`](Self::list), and if the file is too long.
    fn read<'a>(&'a self, file: &'a str, as_of: Instant) -> SourceFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let (is_needed, progress) = (|path: &str| path == file, Progress::default());
            let fetch = Fetch { folder: "", is_needed: &is_needed, progress: &progress, as_of, route: None };
            let path = self.fetch(fetch).await?.path.join(file);
            match model_files::read(&path, TEXT_LIMIT) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.is_missing() => Ok(None),
                Err(error) => {
                    let message = format!("cannot read '{}/{file}': {error}", self.location());
                    Err(Error::new(ErrorCode::Unavailable, message))
                }
            }
        })
    }
}

/// A store that several parts of the server use.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn location(&self) -> &str {
        S::location(self)
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        S::list(self, folder, as_of)
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        S::stat(self, folder, as_of)
    }

    fn prepare<'a>(&'a self, progress: &'a Progress, as_of: Instant) -> SourceFuture<'a, ()> {
        S::prepare(self, progress, as_of)
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        S::fetch(self, fetch)
    }

    fn locate(&self, folder: &str) -> ModelLocation {
        S::locate(self, folder)
    }

    fn read<'a>(&'a self, file: &'a str, as_of: Instant) -> SourceFuture<'a, Option<Vec<u8>>> {
        S::read(self, file, as_of)
    }
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The entry's name.
    pub name: String,
    /// Whether the entry is a folder.
    pub is_folder: bool,
}

/// An entry at any depth below a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The object's path, relative to the folder.
    pub path: String,
    /// The object's kind.
    pub kind: ObjectKind,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A folder, of which only the existence is known.
    Folder,
    /// A file.
    File {
        /// Length in bytes.
        size: u64,
        /// Changes whenever the contents do: an ETag, or the times and inode of a file.
        stamp: String,
    },
}

/// A request to fetch files.
#[derive(Clone, Copy)]
pub struct Fetch<'a> {
    /// The folder.
    pub folder: &'a str,
    /// Which files below it are needed, by relative path. Others may be fetched, too.
    pub is_needed: &'a (dyn Fn(&str) -> bool + Sync),
    /// Reports progress.
    pub progress: &'a Progress,
    /// Data that the store learned at this time or later is recent enough.
    pub as_of: Instant,
    /// A route that replaces the store's own for remote files.
    pub route: Option<&'a Arc<dyn Route>>,
}

/// A local folder with fetched files.
#[derive(Clone, Debug)]
pub struct FetchedFolder {
    /// The folder's path.
    pub path: PathBuf,
    /// Whether the folder contains everything below the original, needed or not.
    pub is_complete: bool,
    /// Keeps its files while they are used.
    pub guard: LoadGuard,
}

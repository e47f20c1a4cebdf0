//! Where a repository's files are kept: a folder on this machine, or objects in a bucket.
//!
//! A store knows names, sizes and contents, and nothing of models. Paths are relative to the store, with `/` between their
//! parts; the store itself is the empty path.

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

/// One repository's files. Implementations keep the rules of `store/conformance.rs`, which is part of their tests.
///
/// What a store learned at `as_of` or later is new enough: one that is far away need not ask again. A list of the store itself
/// is always a new one.
pub trait Store: Send + Sync + fmt::Debug {
    /// What the store is called in messages and as a namespace, such as `/models` or `s3://bucket/models`.
    fn location(&self) -> &str;

    /// What is right below a folder, in any order.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder, `Unavailable` if it cannot be read now.
    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>>;

    /// Everything below a folder at any depth, ascending by path, each after the folder it is in. Files that editors leave
    /// behind (`.name`, `name~`) are passed over.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>>;

    /// Brings what has to be on this machine before any question can be answered, and reports how far that is. Most stores need
    /// nothing.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn prepare<'a>(&'a self, _progress: &'a Progress, _as_of: Instant) -> SourceFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Makes what is below a folder available as a folder on this machine. What is there already need not be copied.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, Fetched>;

    /// Where a folder is, for those who look at it themselves.
    fn locate(&self, folder: &str) -> ModelLocation {
        ModelLocation::Remote(format!("{}/{folder}", self.location().trim_end_matches('/')))
    }

    /// A short text file right below the store; `None` if there is none.
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

/// Something right below a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
}

/// Something below a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its path, relative to the folder.
    pub path: String,
    /// What it is.
    pub kind: ObjectKind,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A folder, of which nothing is known but that it is there.
    Folder,
    /// A file.
    File {
        /// Its length in bytes.
        size: u64,
        /// Differs when the contents do: an ETag, or what a file system says of times and places.
        stamp: String,
    },
}

/// What to fetch.
#[derive(Clone, Copy)]
pub struct Fetch<'a> {
    /// The folder.
    pub folder: &'a str,
    /// Which files below it are needed, by their paths relative to it. Others may come along.
    pub is_needed: &'a (dyn Fn(&str) -> bool + Sync),
    /// Hears how far it is.
    pub progress: &'a Progress,
    /// What the store learned then or later is new enough.
    pub as_of: Instant,
    /// Another way for what is not on this machine.
    pub route: Option<&'a Arc<dyn Route>>,
}

/// A folder on this machine with what was fetched.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its path.
    pub path: PathBuf,
    /// Whether everything below the folder is there, needed or not.
    pub is_complete: bool,
    /// Keeps its files as long as they are used.
    pub guard: LoadGuard,
}

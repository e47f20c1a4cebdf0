//! Where models come from, as the server sees it.
//!
//! Loading a model has three stages. The source fetches its files (async: it may take long, reports progress, and can be
//! cancelled), they are read into a [`ModelSpec`] (which may block), and the life cycle loads that. Fetching has a limit of
//! its own and holds up no load.

mod blocking;
mod progress;

use std::pin::Pin;
use std::time::Instant;

pub use nereid_backend_api::Overrides;
use nereid_backend_api::Result;

pub use self::blocking::BlockingSource;
pub(crate) use self::progress::Fetches;
pub use self::progress::{FetchStatus, Progress};
use crate::spec::{Fingerprint, ModelId, ModelSpec};

/// The future of a source's methods. It is polled on a thread that may block and belongs to no runtime; dropping cancels it.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A repository, or several. What implements it knows files or buckets; the server does not.
///
/// A remote source may answer from its last listing if that is as recent as `as_of`. So a poll of many models costs one
/// listing.
pub trait ModelSource: Send + Sync {
    /// The current models, ascending by name, each name once.
    ///
    /// # Errors
    /// The source cannot be read now.
    fn list(&self) -> SourceFuture<'_, Vec<SourceEntry>>;

    /// The models that have this name, each in a namespace of its own; none, or one that does not exist, if there are
    /// none.
    ///
    /// # Errors
    /// Several models in one namespace have the name, so that none can be served.
    fn find<'a>(&'a self, name: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<ModelId>>;

    /// Waits until the source knows the current state of a model, if something has to arrive for that, and reports the progress.
    /// Without this, a source may answer from older knowledge.
    fn prepare<'a>(
        &'a self,
        _id: &'a ModelId,
        _progress: &'a Progress,
        _as_of: Instant,
    ) -> SourceFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// A summary that changes with the model, computed without reading more than necessary.
    ///
    /// # Errors
    /// `NotFound` if the model does not exist.
    fn fingerprint<'a>(&'a self, id: &'a ModelId, as_of: Instant) -> SourceFuture<'a, Fingerprint>;

    /// Makes the files of a model available on this machine.
    ///
    /// # Errors
    /// `NotFound` if the model does not exist; otherwise what is wrong with the overrides, or why the files cannot be had.
    fn fetch<'a>(
        &'a self,
        id: &'a ModelId,
        overrides: &'a Overrides,
        progress: &'a Progress,
        as_of: Instant,
    ) -> SourceFuture<'a, Box<dyn FetchedModel>>;
}

/// A model whose files are on this machine.
pub trait FetchedModel: Send {
    /// Reads the model. It may block.
    ///
    /// # Errors
    /// The problem with its description; `NotFound` if it has none, and so is not a model.
    fn read(self: Box<Self>) -> Result<ModelSpec>;
}

/// A name in a source, and the models that it denotes.
#[derive(Clone, Debug)]
pub struct SourceEntry {
    /// The name.
    pub name: String,
    /// As [`ModelSource::find`] returns.
    pub ids: Result<Vec<ModelId>>,
}

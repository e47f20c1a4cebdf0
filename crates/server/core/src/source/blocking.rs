//! Sources whose models are all available locally.

use std::collections::BTreeMap;
use std::time::Instant;

use nereid_backend_api::{Error, Result};

use super::{FetchedModel, ModelSource, Overrides, Progress, SourceEntry, SourceFuture};
use crate::spec::{Fingerprint, ModelId, ModelSpec};

/// A source that has nothing to fetch, and answers on the calling thread.
pub trait BlockingSource: Send + Sync {
    /// The names of the models, ascending.
    ///
    /// # Errors
    /// See [`ModelSource::list`].
    fn names(&self) -> Result<Vec<String>>;

    /// See [`ModelSource::find`].
    ///
    /// # Errors
    /// See there.
    fn ids(&self, name: &str) -> Result<Vec<ModelId>> {
        Ok(vec![ModelId::plain(name)])
    }

    /// Reads a model.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; otherwise what is wrong with its description.
    fn read(&self, id: &ModelId, overrides: &Overrides) -> Result<ModelSpec>;

    /// See [`ModelSource::fingerprint`].
    ///
    /// # Errors
    /// See there.
    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint>;
}

/// A model that was read when it was fetched.
struct ReadModel(Result<ModelSpec>);

impl FetchedModel for ReadModel {
    fn read(self: Box<Self>) -> Result<ModelSpec> {
        self.0
    }
}

impl<S: BlockingSource> ModelSource for S {
    fn list(&self) -> SourceFuture<'_, Vec<SourceEntry>> {
        Box::pin(async {
            let listed = |name: String| SourceEntry { ids: self.ids(&name), name };
            Ok(self.names()?.into_iter().map(listed).collect())
        })
    }

    fn find<'a>(&'a self, name: &'a str, _: Instant) -> SourceFuture<'a, Vec<ModelId>> {
        Box::pin(async { self.ids(name) })
    }

    fn fingerprint<'a>(&'a self, id: &'a ModelId, _: Instant) -> SourceFuture<'a, Fingerprint> {
        Box::pin(async { self.fingerprint_of(id) })
    }

    fn fetch<'a>(
        &'a self,
        id: &'a ModelId,
        overrides: &'a Overrides,
        _: &'a Progress,
        _: Instant,
    ) -> SourceFuture<'a, Box<dyn FetchedModel>> {
        Box::pin(async { Ok(Box::new(ReadModel(self.read(id, overrides))) as _) })
    }
}

/// Models that are given, and never change.
impl BlockingSource for BTreeMap<String, Result<ModelSpec>> {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.keys().cloned().collect())
    }

    fn read(&self, id: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        self.get(&id.name).cloned().unwrap_or_else(|| Err(unknown(id)))
    }

    fn fingerprint_of(&self, id: &ModelId) -> Result<Fingerprint> {
        self.get(&id.name).map(|_| Fingerprint::default()).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &ModelId) -> Error {
    Error::not_found(format!("there is no model '{id}'"))
}

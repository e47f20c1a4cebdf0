//! Names of models: which repositories have a model of a name, and what the name denotes.

use std::collections::BTreeSet;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use nereid_core::ModelId;
use nereid_core::backend_api::{Error, ErrorCode, Result};

use super::Repositories;
use crate::store::Store;

impl Repositories {
    /// All stores, including those registered at run time.
    pub(super) fn stores(&self) -> impl Iterator<Item = Arc<dyn Store>> {
        self.registered.stores(&self.stores).into_iter()
    }

    /// The names of the models in a repository.
    pub(super) async fn names(&self, store: &dyn Store, as_of: Instant) -> Result<BTreeSet<String>> {
        let entries = store.list("", as_of).await.map_err(|error| {
            Error::not_found(format!("cannot read the model repository '{}': {error}", store.location()))
        })?;
        let folders = entries.into_iter().filter(|entry| entry.is_folder).map(|entry| entry.name);
        Ok(folders.filter(|name| is_model_name(name)).collect())
    }

    /// The repositories that have a model of this name.
    pub(super) async fn places(&self, name: &str, as_of: Instant) -> Vec<Arc<dyn Store>> {
        let look = |store: Arc<dyn Store>| async move {
            match store.list(name, as_of).await {
                Ok(_) => Some((store, true)),
                Err(error) if error.code() == ErrorCode::NotFound => None,
                // An unreadable folder still exists; reading it reports the cause.
                Err(_) => Some((store, false)),
            }
        };
        // In parallel, so that a slow repository does not delay others.
        let places = join_all(self.stores().filter(|_| is_model_name(name)).map(look)).await;
        let places: Vec<_> = places.into_iter().flatten().collect();
        // An unreachable repository may have it, too. Those that have it do not wait for that.
        let is_found = places.iter().any(|(_, is_readable)| *is_readable);
        let places = places.into_iter().filter(|(_, is_readable)| *is_readable || !is_found);
        let limit = if is_found || self.namespacing { usize::MAX } else { 1 };
        places.map(|(store, _)| store).take(limit).collect()
    }

    /// The models that a name denotes in these repositories.
    pub(super) fn ids(&self, name: &str, places: &[Arc<dyn Store>]) -> Result<Vec<ModelId>> {
        if self.namespacing {
            let id = |store: &Arc<dyn Store>| ModelId {
                name: name.to_owned(),
                namespace: store.location().to_owned(),
            };
            return Ok(places.iter().map(id).collect());
        }
        // In one repository, a name cannot denote several folders.
        if places.len() > 1 {
            return Err(not_unique(name, places));
        }
        Ok(vec![ModelId::plain(name)])
    }

    /// The repository that has a model.
    pub(super) async fn place(&self, id: &ModelId, as_of: Instant) -> Result<Arc<dyn Store>> {
        let name = &id.name;
        if !is_model_name(name) {
            return Err(Error::not_found(format!("'{name}' cannot be the name of a model's folder")));
        }
        let mut places = self.places(name, as_of).await;
        places.retain(|store| id.namespace.is_empty() || store.location() == id.namespace);
        match places.as_slice() {
            [store] => Ok(Arc::clone(store)),
            [] => Err(Error::not_found(format!(
                "model not found in any model repository: none has a folder '{name}'"
            ))),
            _ => Err(not_unique(name, &places)),
        }
    }
}

fn not_unique(name: &str, places: &[Arc<dyn Store>]) -> Error {
    let places: Vec<_> = places.iter().map(|store| format!("'{}/{name}'", store.location())).collect();
    Error::invalid_arg(format!(
        "model appears in two or more repositories: {}; use --model-namespacing=true to serve each of them",
        places.join(", ")
    ))
}

/// A name is one part of a path, and not hidden.
pub(crate) fn is_model_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.starts_with('.')
}

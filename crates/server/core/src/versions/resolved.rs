//! The outcome of resolving a model: a version, or a release that chooses one when the request is known.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::Guard;
use nereid_backend_api::InferRequest;

use crate::model::Model;
use crate::release::Release;
use crate::request_head::RequestHead;
use crate::table::ModelTable;

/// The model table at one moment.
type ServedTable = Guard<Arc<ModelTable>>;

/// The model of a request, see [`Server::resolve`](crate::Server::resolve). A model with a release chooses the version when the
/// request is known.
#[derive(Clone)]
pub struct ResolvedModel {
    model: Arc<Model>,
    route: Option<Box<Route>>,
}

#[derive(Clone)]
struct Route {
    release: Arc<dyn Release>,
    key: Option<u64>,
}

impl ResolvedModel {
    /// The model of a request with this version and head.
    pub(crate) fn of(model: Arc<Model>, version: Option<u64>, head: impl FnOnce() -> RequestHead) -> Self {
        let route = match (version, model.release()) {
            (None, Some(release)) => {
                let key = if release.has_keys() { release.key(&head()) } else { None };
                Some(Box::new(Route { release: Arc::clone(release), key }))
            }
            _ => None,
        };
        Self { model, route }
    }

    /// The version that describes the model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
}

impl From<Arc<Model>> for ResolvedModel {
    fn from(model: Arc<Model>) -> Self {
        Self { model, route: None }
    }
}

impl Deref for ResolvedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

/// The target of a request: a version, or a model that chooses one.
pub trait InferTarget {
    /// The version, unless another one is [chosen](Self::chosen).
    fn described(&self) -> &Arc<Model>;

    /// The version that the model's release chooses for a request among the served ones, if there is a release.
    fn chosen(&self, request: &InferRequest, models: impl FnOnce() -> ServedTable) -> Option<Arc<Model>>;
}

impl InferTarget for Arc<Model> {
    fn described(&self) -> &Arc<Model> {
        self
    }

    fn chosen(&self, _: &InferRequest, _: impl FnOnce() -> ServedTable) -> Option<Arc<Model>> {
        None
    }
}

impl InferTarget for ResolvedModel {
    fn described(&self) -> &Arc<Model> {
        &self.model
    }

    fn chosen(&self, request: &InferRequest, models: impl FnOnce() -> ServedTable) -> Option<Arc<Model>> {
        let Route { release, key } = &**self.route.as_ref()?;
        Some(models().choose(&self.model, &**release, *key, request))
    }
}

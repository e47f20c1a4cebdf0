//! The version of a model that a request goes to: the requested one, or else the latest ready one.
//!
//! A model may have a [`VersionChooser`] that decides otherwise: by the head of the request, or after a wait. [`Residency`] plugs
//! in here, for models that are loaded on demand. A release splits the requests that name no version, once they are decoded.

mod residency;
mod resolved;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::future::{Either, select};
use nereid_backend_api::{Error, Result};

pub use self::residency::{GpuMemory, MeasuredMemory, MemoryBasis, ModelMemory, Residency};
pub use self::resolved::{InferTarget, ResolvedModel};
use crate::lifecycle::LifeCycle;
use crate::model::Model;
use crate::request_head::RequestHead;
use crate::scope::{Scope, ScopedName};
use crate::table::ModelTable;

/// A request that needs a model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The name of the model.
    pub name: String,
    /// The models that the name can mean.
    pub scope: Scope,
    /// The requested version, if any.
    pub version: Option<u64>,
    /// The head of the request; empty for inner requests.
    pub head: RequestHead,
    /// When it arrived.
    pub arrived: Instant,
}

impl ModelRequest {
    /// A request that arrives now.
    pub fn new(name: impl Into<String>, version: Option<u64>, head: RequestHead) -> Self {
        Self { name: name.into(), scope: Scope::ALL, version, head, arrived: Instant::now() }
    }

    /// Limits the name to the models of a scope.
    #[must_use]
    pub fn within(self, scope: &Scope) -> Self {
        Self { scope: scope.clone(), ..self }
    }

    /// The name in its scope.
    pub fn scoped_name(&self) -> ScopedName<'_> {
        ScopedName::new(&self.name, &self.scope)
    }

    /// When its client stops waiting, if that is known.
    pub fn deadline(&self) -> Option<Instant> {
        self.arrived.checked_add(self.head.time_limit()?)
    }
}

/// Chooses the version of a model for each of its requests.
pub trait VersionChooser: Send + Sync {
    /// Chooses among the models that are served now. Called for each request, on an I/O thread: it must be quick.
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice;
}

/// The decision of a [`VersionChooser`].
pub enum Choice {
    /// The version, or the error of the request.
    Version(Result<Arc<Model>>),
    /// The request waits for this future, then the chooser decides again. A server that stops ends the wait.
    Wait(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// The version choosers of models, by name. Other models have the default policy.
#[derive(Clone, Default)]
pub struct VersionChoosers(BTreeMap<String, Arc<dyn VersionChooser>>);

impl VersionChoosers {
    /// Sets the chooser of a model.
    pub fn set(&mut self, model: impl Into<String>, chooser: Arc<dyn VersionChooser>) {
        self.0.insert(model.into(), chooser);
    }

    pub(crate) fn of(&self, model: &str) -> Option<&Arc<dyn VersionChooser>> {
        self.0.get(model)
    }
}

impl fmt::Debug for VersionChoosers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The model of a request, see [`Server::resolve`](crate::Server::resolve).
#[must_use = "futures do nothing unless polled"]
pub struct ResolveFuture(Resolving);

enum Resolving {
    Done(Ready<Result<ResolvedModel>>),
    Waiting(Pin<Box<dyn Future<Output = Result<ResolvedModel>> + Send>>),
}

impl ResolveFuture {
    pub(crate) fn done(outcome: Result<ResolvedModel>) -> Self {
        Self(Resolving::Done(ready(outcome)))
    }

    /// Lets a chooser decide, as often as it wants the request to wait. `has_releases`: whether a release may split the requests
    /// that it decides about.
    pub(crate) fn choose(
        chooser: Arc<dyn VersionChooser>,
        request: ModelRequest,
        has_releases: bool,
        models: &Arc<LifeCycle>,
    ) -> Self {
        let resolved = move |model: Arc<Model>, request: &ModelRequest| match has_releases {
            true => ResolvedModel::of(model, request.version, || request.head.clone()),
            false => model.into(),
        };
        let choice = chooser.choose(&request, &models.table().load());
        let mut wait = match choice {
            Choice::Version(outcome) => return Self::done(outcome.map(|model| resolved(model, &request))),
            Choice::Wait(wait) => wait,
        };
        let models = Arc::clone(models);
        Self(Resolving::Waiting(Box::pin(async move {
            let mut changes = models.events().subscribe();
            loop {
                let stopped =
                    Box::pin(async { while !models.is_stopping() && changes.next().await.is_some() {} });
                if let Either::Right(_) = select(wait, stopped).await {
                    let name = &request.name;
                    return Err(Error::unavailable(format!(
                        "the server is stopping; model '{name}' is not loaded"
                    )));
                }
                let choice = chooser.choose(&request, &models.table().load());
                wait = match choice {
                    Choice::Version(outcome) => return outcome.map(|model| resolved(model, &request)),
                    Choice::Wait(wait) => wait,
                };
            }
        })))
    }
}

impl Future for ResolveFuture {
    type Output = Result<ResolvedModel>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Resolving::Done(outcome) => Pin::new(outcome).poll(context),
            Resolving::Waiting(waiting) => waiting.as_mut().poll(context),
        }
    }
}

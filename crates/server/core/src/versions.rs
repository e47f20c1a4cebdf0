//! The version of a model that a request goes to: the requested one, or else the latest ready one.
//!
//! A model may have a [`VersionChooser`] that decides otherwise: by the head of the request, or after a wait. Canary versions
//! plug in here, and [`Residency`] for models that are loaded on demand.

mod residency;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use nereid_backend_api::{Error, Result};

pub use self::residency::Residency;
use crate::lifecycle::LifeCycle;
use crate::model::Model;
use crate::table::ModelTable;

/// Names and values that come before the body of a request, such as HTTP headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    values: Vec<(String, String)>,
    time_limit: Option<Duration>,
}

impl RequestHead {
    /// Sets how long the client waits for its answer, from now on.
    pub fn with_time_limit(self, time_limit: Option<Duration>) -> Self {
        Self { time_limit, ..self }
    }

    /// The first value of this name, regardless of case.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.values.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for RequestHead {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        let values = entries.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { values, time_limit: None }
    }
}

/// A request that needs a model.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The name of the model.
    pub name: String,
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
        Self { name: name.into(), version, head, arrived: Instant::now() }
    }

    /// When its client stops waiting, if that is known.
    pub fn deadline(&self) -> Option<Instant> {
        self.arrived.checked_add(self.head.time_limit?)
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
    Done(Ready<Result<Arc<Model>>>),
    Waiting(Pin<Box<dyn Future<Output = Result<Arc<Model>>> + Send>>),
}

impl ResolveFuture {
    pub(crate) fn done(outcome: Result<Arc<Model>>) -> Self {
        Self(Resolving::Done(ready(outcome)))
    }

    /// Lets a chooser decide, as often as it wants the request to wait.
    pub(crate) fn choose(
        chooser: Arc<dyn VersionChooser>,
        request: ModelRequest,
        models: &Arc<LifeCycle>,
    ) -> Self {
        let choice = chooser.choose(&request, &models.table().load());
        let mut wait = match choice {
            Choice::Version(outcome) => return Self::done(outcome),
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
                    Choice::Version(outcome) => return outcome,
                    Choice::Wait(wait) => wait,
                };
            }
        })))
    }
}

impl Future for ResolveFuture {
    type Output = Result<Arc<Model>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Resolving::Done(outcome) => Pin::new(outcome).poll(context),
            Resolving::Waiting(waiting) => waiting.as_mut().poll(context),
        }
    }
}

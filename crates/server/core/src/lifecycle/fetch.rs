//! The stage before loading: detects changes, and fetches the files of models to load.
//!
//! The stage has threads of its own, one for each fetch in progress, so that a slow source delays no load of a model whose
//! files are present. A waiting fetch is dropped when an unload of its model is requested or the server ends.

use std::collections::BTreeSet;
use std::time::Instant;

use futures_util::future::{Either, select};
use nereid_backend_api::{Error, ErrorCode, ReadinessReports, Result, block_on};
use tokio::sync::oneshot;

use super::records::Records;
use super::workers::shutting_down;
use super::{LifeCycle, Record, Task, unreadable};
use crate::scope::ScopedName;
use crate::source::{FetchedModel, Overrides};
use crate::spec::{Fingerprint, ModelId, Origin};

/// The next step for a model.
pub(super) enum FetchOutcome {
    /// Load it.
    Model(ModelToLoad),
    /// Nothing: the served model is up to date.
    Unchanged(ModelId),
    /// Unload it: it was removed from the source.
    Gone(ModelId),
    /// Nothing: the source could not be read.
    Unknown(Error),
}

impl FetchOutcome {
    /// Whether a model needs to be loaded or unloaded, or has been requested.
    pub(super) fn needs_work(&self) -> bool {
        matches!(self, Self::Model(_) | Self::Unchanged(_) | Self::Gone(_))
    }
}

/// A model whose files were fetched, or could not be.
pub(super) struct ModelToLoad {
    pub id: ModelId,
    /// Computed before the files were fetched, so that a change during the fetch is detected later.
    pub fingerprint: Result<Fingerprint>,
    pub files: Result<Box<dyn FetchedModel>>,
}

/// Cancels a fetch when dropped.
pub(super) type Canceller = oneshot::Sender<()>;

impl LifeCycle {
    /// Asks the source what a task has to do, and fetches the models to load.
    ///
    /// # Errors
    /// The fetch was cancelled while it waited for the source.
    pub(super) fn fetch_for(
        &self,
        name: &str,
        task: &Task,
        records: &mut Records,
        cancelled: oneshot::Receiver<()>,
    ) -> Result<Vec<FetchOutcome>> {
        let fetch = Box::pin(async {
            match task {
                Task::Load { overrides, scope, as_of, .. } => {
                    let name = ScopedName::new(name, scope);
                    self.fetch_every(name, overrides, records, *as_of).await
                }
                Task::Poll { as_of, .. } => self.fetch_changed(name, records, *as_of).await,
                Task::Unload { .. } | Task::Resize { .. } | Task::Reconcile { .. } => Vec::new(),
            }
        });
        // What does not have to wait is done in any case.
        match block_on(select(fetch, cancelled)) {
            Either::Left((fetched, _)) => Ok(fetched),
            Either::Right(_) if self.lock().stopping => Err(shutting_down()),
            Either::Right(_) => {
                Err(Error::unavailable(format!("the load of '{name}' was cancelled by an unload")))
            }
        }
    }

    /// Every model of that name. Files that come with the request are a model of no namespace.
    async fn fetch_every(
        &self,
        ScopedName { name, scope }: ScopedName<'_>,
        overrides: &Overrides,
        records: &mut Records,
        as_of: Instant,
    ) -> Vec<FetchOutcome> {
        let plain = ModelId::plain(name);
        let mut ids = self.ids(name, as_of).await;
        let is_listed = ids.contains(&plain);
        ids.retain(|id| scope.contains(id));
        if ids.is_empty() || !overrides.files.is_empty() {
            if !scope.contains(&plain) {
                return vec![FetchOutcome::Unknown(self.unknown(&plain, as_of).await)];
            }
            ids = vec![plain];
        }
        let mut fetched = Vec::new();
        for id in ids {
            let preparing = self.fetches.begin(&id);
            let prepared = self.source.prepare(&id, &preparing.progress, as_of).await;
            drop(preparing);
            let fingerprint = match prepared {
                // In a source with namespaces, the files of a request belong to none of its models.
                Ok(()) if !overrides.files.is_empty() && !is_listed => {
                    Err(Error::not_found(format!("no repository has a model '{id}'")))
                }
                Ok(()) => self.source.fingerprint(&id, as_of).await,
                Err(error) => Err(error),
            };
            if let Ok(now) = &fingerprint
                && overrides.is_empty()
                && self.is_served(&id, now, records.of(&id)).await
            {
                fetched.push(FetchOutcome::Unchanged(id));
                continue;
            }
            fetched.push(FetchOutcome::Model(self.fetch(id, fingerprint, overrides, as_of).await));
        }
        fetched
    }

    /// The error of a load of a model that no repository has, for a client that may not find those that some have.
    async fn unknown(&self, plain: &ModelId, as_of: Instant) -> Error {
        // No repository is of this namespace.
        let nowhere = ModelId { namespace: "\0".to_owned(), ..plain.clone() };
        let preparing = self.fetches.begin(plain);
        let fetched = self.source.fetch(&nowhere, &Overrides::default(), &preparing.progress, as_of).await;
        let error =
            fetched.err().unwrap_or_else(|| Error::not_found("model not found in any model repository"));
        unreadable(plain, &error)
    }

    /// Whether the served model is up to date and healthy, so that loading it again would change nothing.
    async fn is_served(&self, id: &ModelId, now: &Fingerprint, record: &Record) -> bool {
        if record.served.as_ref() != Some(now) || record.failed.is_some() || record.pending.is_some() {
            return false;
        }
        let table = self.table.load_full();
        let models: Vec<_> = table.versions(id).filter_map(|(_, state)| state.model().cloned()).collect();
        for model in &models {
            let is_silent = model.executor().readiness() == ReadinessReports::Never;
            let is_healthy = is_silent || model.ready().await.is_ok();
            if model.origin() != Origin::Source || !is_healthy {
                return false;
            }
        }
        !models.is_empty()
    }

    /// The models of that name, and those that had it, whose change was there already at the last poll.
    async fn fetch_changed(&self, name: &str, records: &mut Records, as_of: Instant) -> Vec<FetchOutcome> {
        let ids: BTreeSet<_> = records.ids(name).chain(self.ids(name, as_of).await).collect();
        let mut fetched = Vec::new();
        for id in ids {
            let record = records.of(&id);
            match self.source.fingerprint(&id, as_of).await {
                // Its next request loads it as it is then.
                Ok(_) if self.table.load().is_evicted(&id) => {}
                Ok(now) => {
                    if record.is_to_be_loaded(&id, &now) {
                        let overrides = Overrides::default();
                        fetched.push(FetchOutcome::Model(self.fetch(id, Ok(now), &overrides, as_of).await));
                    }
                }
                Err(error) if error.code() == ErrorCode::NotFound => {
                    if record.served.is_some() || record.failed.is_some() {
                        tracing::info!("'{id}' is no longer in the repository; unloading it");
                    }
                    fetched.push(FetchOutcome::Gone(id));
                }
                Err(error) => {
                    tracing::warn!("cannot poll '{id}', keeping it as it is: {error}");
                    fetched.push(FetchOutcome::Unknown(error));
                }
            }
        }
        fetched
    }

    async fn fetch(
        &self,
        id: ModelId,
        fingerprint: Result<Fingerprint>,
        overrides: &Overrides,
        as_of: Instant,
    ) -> ModelToLoad {
        let fetching = self.fetches.begin(&id);
        let files = self.source.fetch(&id, overrides, &fetching.progress, as_of).await;
        drop(fetching);
        ModelToLoad { id, fingerprint, files }
    }

    /// The models of that name. If it denotes several in one namespace, fetching reports that.
    async fn ids(&self, name: &str, as_of: Instant) -> Vec<ModelId> {
        self.source.find(name, as_of).await.unwrap_or_else(|_| vec![ModelId::plain(name)])
    }
}

impl Record {
    /// Records what a poll saw. A change is loaded once two polls in a row saw the same fingerprint.
    fn is_to_be_loaded(&mut self, id: &ModelId, now: &Fingerprint) -> bool {
        let before = self.seen.replace(now.clone());
        if self.tried() == Some(now) {
            return false;
        }
        let what = now.difference(self.tried());
        let is_complete = before.as_ref() == Some(now);
        if is_complete {
            tracing::info!("'{id}' has changed ({what}) and is stable since the last poll; reloading it");
        } else {
            tracing::info!("'{id}' has changed ({what}); it is reloaded once a poll sees no further change");
        }
        is_complete
    }
}

//! Loads, reloads and unloads models while the server serves.
//!
//! Each change of a model is a task. Tasks of one model run in order of arrival; tasks of different models run in
//! parallel, on a few threads that live as long as there is work. A model that hangs while loading blocks its own tasks
//! and one of these threads.
//!
//! A load becomes visible only as a whole: when every version to be served is loaded, all of them enter the table in
//! one step. If one fails, the previous versions stay. A replaced or unloaded version still takes requests from callers
//! that found it in the table before; once it is no longer referenced, its instances end.

mod catalog;
mod dependents;
mod evict;
mod fetch;
mod forget;
mod members;
mod records;
mod resize;
mod tasks;
mod workers;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use nereid_backend_api::{Error, ErrorCode, ReadinessReports, Result, block_on};

use self::catalog::Catalog;
pub(crate) use self::catalog::Listing;
use self::dependents::Pending;
use self::fetch::ModelToLoad;
use self::forget::ForgetSchedule;
use self::tasks::Tasks;
pub(crate) use self::tasks::{Done, LoadReason, Task};
use crate::events::Events;
use crate::executor::BuildError;
use crate::model::{Model, Retirements, Services};
use crate::readiness_watch::{POLL_INTERVAL, ReadinessPoll};
use crate::source::{Fetches, ModelSource};
use crate::spec::ModelSpec;
use crate::spec::{Fingerprint, ModelId};
use crate::table::{ModelTable, ServedModels, VersionState};
use crate::versions::Residency;

/// All models of a server, and the tasks that change them.
pub(crate) struct LifeCycle {
    source: Arc<dyn ModelSource>,
    catalog: Arc<Catalog>,
    fetches: Fetches,
    services: Services,
    residency: Option<Arc<dyn Residency>>,
    table: Arc<ArcSwap<ModelTable>>,
    limits: Limits,
    tasks: Mutex<Tasks>,
    unloadings: AtomicU64,
    retirements: Arc<Retirements>,
    /// Versions that left the table, as long as they are held.
    retired: Mutex<Vec<Weak<Model>>>,
    forgetting: ForgetSchedule,
    readiness_poll: Arc<ReadinessPoll>,
}

/// How long a load that changes the instances of a model waits for the end of those that it removes.
const REMOVAL_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(5) };

/// How much runs in parallel, and how often a failed load is retried.
pub(crate) struct Limits {
    pub fetches: usize,
    pub loads: usize,
    pub retries: usize,
}

/// The life cycle's record of a model.
#[derive(Clone, Default)]
struct Record {
    /// The fingerprint of what is served now.
    served: Option<Fingerprint>,
    /// The fingerprint of the last load, if it failed.
    failed: Option<Fingerprint>,
    /// The error of the last load, if it failed.
    failure: Option<Error>,
    /// The fingerprint at the last poll.
    seen: Option<Fingerprint>,
    /// The pending specification, if it depends on other models.
    pending: Option<Pending>,
    /// Whether the model was read since it was reconciled with its members.
    needs_reconciling: bool,
    /// Whether what is served was loaded with files or a configuration of a client.
    is_overridden: bool,
}

impl Record {
    /// The fingerprint of the last load, whether it succeeded or not.
    fn tried(&self) -> Option<&Fingerprint> {
        self.failed.as_ref().or(self.served.as_ref())
    }

    fn is_empty(&self) -> bool {
        self.served.is_none() && self.failed.is_none() && self.seen.is_none() && self.pending.is_none()
    }

    /// Records the outcome of a load.
    fn note(&mut self, fingerprint: Fingerprint, outcome: &Result<()>) {
        match outcome {
            Ok(()) => {
                self.served = Some(fingerprint);
                self.failed = None;
            }
            Err(_) => self.failed = Some(fingerprint),
        }
        self.failure = outcome.as_ref().err().cloned();
    }
}

impl LifeCycle {
    pub(crate) fn new(
        source: Arc<dyn ModelSource>,
        mut services: Services,
        residency: Option<Arc<dyn Residency>>,
        limits: Limits,
    ) -> Arc<Self> {
        let table = Arc::<ArcSwap<ModelTable>>::default();
        services.models = ServedModels::new(&table);
        let in_turn = residency.as_ref().is_some_and(|residency| residency.is_limited());
        let readiness_poll =
            ReadinessPoll::new(Arc::downgrade(&table), &services.instances.timer, POLL_INTERVAL);
        Arc::new(Self {
            catalog: Catalog::new(Arc::clone(&source)),
            source,
            fetches: Fetches::new(services.events.clone()),
            services,
            residency,
            table,
            limits,
            tasks: Mutex::new(Tasks::new(in_turn)),
            unloadings: AtomicU64::new(0),
            retirements: Arc::default(),
            retired: Mutex::default(),
            forgetting: ForgetSchedule::default(),
            readiness_poll,
        })
    }

    pub(crate) fn table(&self) -> &ArcSwap<ModelTable> {
        &self.table
    }

    /// Empties the table and returns the previous one.
    pub(crate) fn clear(&self) -> Arc<ModelTable> {
        let before = self.table.rcu(|table| table.emptied());
        self.events().notify();
        before.ready().for_each(|model| model.guard().withdraw());
        before
    }

    /// The listing of the source.
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The fetches in progress.
    pub(crate) fn fetches(&self) -> &Fetches {
        &self.fetches
    }

    /// Reads a model and loads it; one with members is only read, and reconciled when these are loaded.
    fn load(
        self: &Arc<Self>,
        model: ModelToLoad,
        anew: bool,
        reason: LoadReason,
        known: &mut Record,
    ) -> Result<()> {
        let ModelToLoad { id, fingerprint, files } = model;
        let read = files.and_then(|files| files.read());
        // A folder that is there and has nothing to load in it is not a model.
        let is_model =
            fingerprint.is_err() || !matches!(&read, Err(error) if error.code() == ErrorCode::NotFound);
        let read = read.and_then(|spec| Ok(ModelSpec { is_on_demand: self.is_on_demand(&spec)?, ..spec }));
        let is_required = reason == LoadReason::Start && is_model;
        if is_required && !read.as_ref().is_ok_and(|spec| spec.is_on_demand) {
            self.require(&id);
        }
        let spec = match read {
            Ok(spec) => spec,
            Err(error) => {
                tracing::error!("Poll failed for model directory '{id}': {error}");
                // What is not in the source at all is not a model.
                if !matches!(&fingerprint, Err(error) if error.code() == ErrorCode::NotFound) {
                    self.set_failure(&id, &error);
                    self.note_failed(&id, &error);
                }
                known.failed = fingerprint.ok();
                known.failure = Some(error.clone());
                return Err(unreadable(&id, &error));
            }
        };
        let is_deferred = || match reason {
            LoadReason::Start => spec.is_on_demand || !self.has_room(&spec),
            LoadReason::Member => !self.has_room(&spec),
            LoadReason::Request => false,
        };
        if !self.table.load().is_served(&id) && is_deferred() && self.defer(&spec) {
            known.pending = None;
            known.note(spec.fingerprint, &Ok(()));
            return Ok(());
        }
        if spec.fault.is_none() && self.services.executors.dependencies(&spec).is_some() {
            known.pending = Some(Pending { spec, anew, is_overridden: anew });
            known.needs_reconciling = true;
            return Ok(());
        }
        known.pending = None;
        let fingerprint = spec.fingerprint.clone();
        let guard = spec.guard.clone();
        let outcome = self.load_into_memory(spec, anew, known.served.as_ref());
        if outcome.is_ok() {
            known.is_overridden = anew;
        }
        guard.report(&outcome);
        self.note_outcome(&id, &outcome);
        known.note(fingerprint, &outcome);
        outcome
    }

    fn is_on_demand(&self, spec: &ModelSpec) -> Result<bool> {
        self.residency.as_ref().map_or(Ok(false), |residency| residency.is_on_demand(&spec.config))
    }

    /// Whether a model may be loaded that no request waits for.
    fn has_room(&self, spec: &ModelSpec) -> bool {
        let has_room = |residency: &Arc<dyn Residency>| residency.has_room(spec);
        self.services.executors.dependencies(spec).is_some() || self.residency.as_ref().is_none_or(has_room)
    }

    /// Serves the versions of `spec`, once there is room for them.
    fn load_into_memory(
        self: &Arc<Self>,
        spec: ModelSpec,
        anew: bool,
        served: Option<&Fingerprint>,
    ) -> Result<()> {
        let Some(residency) = self.residency.as_ref().filter(|_| !self.table.load().is_served(&spec.id))
        else {
            return self.apply(spec, anew, served);
        };
        if let Err(error) = residency.before_load(&spec) {
            tracing::warn!("'{}' is not loaded: {error}", spec.id);
            return Err(error);
        }
        let outcome = self.apply(spec.clone(), anew, served);
        residency.after_load(&spec, &outcome);
        outcome
    }

    /// Leaves a model to its first request, unless it cannot be served.
    fn defer(&self, spec: &ModelSpec) -> bool {
        let id = &spec.id;
        if spec.fault.is_some() || spec.versions.is_empty() {
            return false;
        }
        self.change(|table| {
            table.clear_failure(id);
            table.release(id);
            table.clear_unavailable(id, &spec.versions);
            spec.versions.iter().for_each(|&version| table.set_version(id, version, VersionState::Evicted));
        });
        tracing::info!("'{id}' is loaded on demand");
        true
    }

    /// The server is not ready without this model.
    fn require(&self, id: &ModelId) {
        self.change(|table| table.require(id));
    }

    /// Serves the versions of `spec`. If that fails, keeps serving the current ones.
    fn apply(self: &Arc<Self>, spec: ModelSpec, anew: bool, served: Option<&Fingerprint>) -> Result<()> {
        let id = &spec.id;
        if spec.versions.is_empty() {
            let nothing = || Error::invalid_arg(format!("model '{id}' has no version to serve"));
            let error = spec.fault.clone().unwrap_or_else(nothing);
            tracing::error!("failed to load '{id}': {error}");
            self.set_failure(id, &error);
            return Err(error.context(format_args!("load failed for model '{id}'")));
        }
        let table = self.table.load_full();
        let same_files = |served: &Fingerprint, version: u64| {
            served.whole == spec.fingerprint.whole
                && served.versions.get(&version) == spec.fingerprint.versions.get(&version)
        };
        let reports = |model: &Model| model.executor().readiness() != ReadinessReports::Never;
        // Versions whose backend reports that they cannot serve as they are.
        let unhealthy: BTreeSet<_> = table
            .versions(id)
            .filter_map(|(version, state)| Some((version, state.model()?)))
            .filter(|(_, model)| reports(model) && block_on(model.ready()).is_err())
            .map(|(version, _)| version)
            .collect();
        // The serving version, if only its instances or its release change.
        let kept = |version: u64| match table.version(id, version) {
            Some(VersionState::Ready(model)) if !unhealthy.contains(&version) => {
                let same = served.is_some_and(|served| same_files(served, version));
                (same && model.differs_in_instances_only(&spec, &self.services)).then_some(model)
            }
            _ => None,
        };
        let unchanged = |version: &u64| {
            !anew
                && !unhealthy.contains(version)
                && matches!(
                    table.version(id, *version),
                    Some(VersionState::Ready(model)) if model.origin() == spec.origin
                )
                && served.is_some_and(|served| {
                    served.config == spec.fingerprint.config && same_files(served, *version)
                })
        };
        let wanted: Vec<_> = spec.versions.iter().copied().filter(|version| !unchanged(version)).collect();
        let is_ready = |version: u64| matches!(table.version(id, version), Some(VersionState::Ready(_)));
        self.change(|table| {
            table.clear_failure(id);
            table.clear_unavailable(id, &spec.versions);
            for &version in wanted.iter().filter(|version| !is_ready(**version)) {
                let was_evicted = table.version(id, version).is_some_and(VersionState::is_evicted);
                table.set_version(id, version, VersionState::Loading { was_evicted });
            }
        });
        let outcomes: Vec<_> = wanted
            .iter()
            .map(|&version| (version, self.load_version(&spec, version, kept(version))))
            .collect();
        if outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            return Err(self.roll_back(id, outcomes, &is_ready));
        }
        let gone: Vec<_> = table
            .versions(id)
            .filter(|(version, state)| {
                matches!(state, VersionState::Ready(_)) && !spec.versions.contains(version)
            })
            .map(|(version, _)| version)
            .collect();
        drop(table);
        let loaded: Vec<_> = outcomes
            .into_iter()
            .filter_map(|(version, outcome)| Some((version, Arc::new(outcome.ok()?))))
            .collect();
        let versions: Vec<_> = loaded.iter().map(|(version, _)| *version).collect();
        let states = loaded.into_iter().map(|(version, model)| (version, Some(model)));
        self.replace(id, states.chain(gone.into_iter().map(|version| (version, None))).collect());
        // Logged last: a reader of the log may request the model at once.
        for version in versions {
            tracing::info!("successfully loaded '{id}' version {version}");
        }
        Ok(())
    }

    fn load_version(&self, spec: &ModelSpec, version: u64, kept: Option<&Arc<Model>>) -> Result<Model> {
        let id = &spec.id;
        let served = self.table.load().version(id, version).and_then(VersionState::model).cloned();
        let served = served.as_deref();
        if let Some(fault) = &spec.fault {
            tracing::error!("failed to load '{id}' version {version}: {fault}");
            return Err(fault.clone());
        }
        if let Some(kept) = kept {
            tracing::info!("changing the instances of '{id}' version {version}");
            return kept.with_instances(spec, &self.services).inspect_err(|error| {
                tracing::error!("failed to change the instances of '{id}' version {version}: {error}");
            });
        }
        let factory = self.services.executors.of(spec);
        let mut retries = self.limits.retries;
        loop {
            tracing::info!("loading '{id}' version {version}");
            // A panic is the backend's: it takes down its model, not the thread that loads others.
            let load = || Model::load(spec, version, factory, &self.services, served);
            let panicked = || Error::internal("the backend panicked while loading the model");
            let loaded = catch_unwind(AssertUnwindSafe(load))
                .unwrap_or_else(|_| Err(BuildError::temporary(panicked())));
            match loaded {
                Ok(model) => return Ok(model),
                Err(BuildError { error, is_temporary }) if retries == 0 || !is_temporary => {
                    tracing::error!("failed to load '{id}' version {version}: {error}");
                    return Err(error);
                }
                Err(BuildError { error, .. }) => {
                    tracing::warn!("failed to load '{id}' version {version}, retrying: {error}");
                    retries -= 1;
                }
            }
        }
    }

    /// Records why the model as a whole failed, unless some of its versions are serving.
    fn set_failure(&self, id: &ModelId, error: &Error) {
        let ready = |(_, state): (u64, &VersionState)| matches!(state, VersionState::Ready(_));
        if !self.table.load().versions(id).any(ready) {
            self.change(|table| table.set_failure(id, error.clone()));
        }
    }

    /// Records how a load ended, for the index and the metrics.
    fn note_outcome(&self, id: &ModelId, outcome: &Result<()>) {
        match outcome {
            Ok(()) if self.table.load().has_failed_reload(id) => {
                self.change(|table| table.clear_failed_reload(id));
            }
            Ok(()) => {}
            Err(error) => self.note_failed(id, error),
        }
    }

    fn note_failed(&self, id: &ModelId, error: &Error) {
        self.change(|table| table.note_failure(id, error));
    }

    /// Drops the versions loaded together with one that failed. What was serving before keeps serving.
    fn roll_back(
        self: &Arc<Self>,
        id: &ModelId,
        outcomes: Vec<(u64, Result<Model>)>,
        was_ready: &dyn Fn(u64) -> bool,
    ) -> Error {
        let mut reasons = String::new();
        for (version, outcome) in outcomes {
            let state = match outcome {
                Ok(model) => {
                    model.unload();
                    VersionState::Unloaded
                }
                Err(error) => {
                    reasons += &format!("version {version} is at UNAVAILABLE state: {error}; ");
                    VersionState::Unavailable(error)
                }
            };
            if !was_ready(version) {
                self.change(|table| table.set_version(id, version, state.clone()));
            }
        }
        Error::invalid_arg(format!("load failed for model '{id}': {}", reasons.trim_end_matches("; ")))
    }

    fn unload(self: &Arc<Self>, id: &ModelId, known: &mut Record) {
        *known = Record::default();
        let ready: Vec<_> = self
            .table
            .load()
            .versions(id)
            .filter(|(_, state)| matches!(state, VersionState::Ready(_)))
            .map(|(version, _)| (version, None))
            .collect();
        self.change(|table| {
            table.release(id);
            table.clear_failure(id);
            table.clear_unavailable(id, &[]);
        });
        self.replace(id, ready);
    }

    /// Replaces serving versions, or takes them out of service (`None`), in one step.
    fn replace(self: &Arc<Self>, id: &ModelId, versions: Vec<(u64, Option<Arc<Model>>)>) {
        self.replace_or_evict(id, versions, false);
    }

    /// See [`replace`](Self::replace). With `is_eviction`, versions that are taken out of service can be loaded again.
    fn replace_or_evict(
        self: &Arc<Self>,
        id: &ModelId,
        versions: Vec<(u64, Option<Arc<Model>>)>,
        is_eviction: bool,
    ) {
        let number = self.unloadings.fetch_add(1, Ordering::Relaxed);
        versions.iter().filter_map(|(_, model)| model.as_ref()).for_each(|model| model.guard().serve());
        let before = self.table.rcu(|table| {
            let mut table = ModelTable::clone(table);
            for (version, model) in &versions {
                let state = match model {
                    Some(model) => {
                        if !model.is_on_demand() {
                            table.require(id);
                        }
                        VersionState::Ready(Arc::clone(model))
                    }
                    None => VersionState::Unloading { number, is_eviction },
                };
                table.set_version(id, *version, state);
            }
            table.advance();
            table
        });
        self.services.events.notify();
        let replaced = versions.iter().filter_map(|(version, _)| match before.version(id, *version) {
            Some(VersionState::Ready(model)) => Some(Arc::clone(model)),
            _ => None,
        });
        let replaced: Vec<_> = replaced.collect();
        drop(before);
        let mut changed = Vec::new();
        for model in replaced {
            model.guard().withdraw();
            model.retire(&self.retirements);
            self.retired().push(Arc::downgrade(&model));
            let followers = versions.iter().filter_map(|(_, follower)| follower.as_ref());
            match followers.into_iter().find(|follower| follower.follows(&model)) {
                Some(follower) => {
                    model.hand_over(follower);
                    // With open sequences, the version ends much later.
                    changed.extend((!follower.follows(&model)).then_some(model.load_number()));
                }
                None => model.end_sequences(),
            }
            let (this, id, version) = (Arc::downgrade(self), id.clone(), model.version());
            // The last holder ends it: this thread, or a request that found it in the table.
            model.when_ended(move || {
                if let Some(this) = this.upgrade() {
                    this.unloaded(&id, version, number);
                }
            });
        }
        // Removed instances end before the load is done, unless requests keep them.
        changed.into_iter().for_each(|load| self.retirements.wait_for(load, REMOVAL_LIMIT));
    }

    /// Versions that left the table and are still held.
    fn retired(&self) -> MutexGuard<'_, Vec<Weak<Model>>> {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|model| model.strong_count() > 0);
        retired
    }

    /// See [`retired`](Self::retired).
    pub(crate) fn retired_models(&self) -> Vec<Arc<Model>> {
        self.retired().iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until no version that left the table is ending.
    pub(crate) fn wait_for_retirements(&self) {
        self.retirements.wait();
    }

    /// Marks a version that was taken out of service as unloaded or evicted.
    fn unloaded(&self, id: &ModelId, version: u64, number: u64) {
        self.change(|table| match table.version(id, version) {
            Some(VersionState::Unloading { number: other, is_eviction }) if *other == number => {
                let state = if *is_eviction { VersionState::Evicted } else { VersionState::Unloaded };
                table.set_version(id, version, state);
            }
            // Loaded again since.
            _ => {}
        });
    }

    fn change(&self, change: impl Fn(&mut ModelTable)) {
        self.table.rcu(|table| {
            let mut table = ModelTable::clone(table);
            change(&mut table);
            table.advance();
            table
        });
        self.services.events.notify();
    }

    #[cfg(test)]
    pub(crate) fn limiter(&self) -> Option<Arc<nereid_scheduling::rate_limiter::RateLimiter>> {
        self.services.instances.limiter.clone()
    }

    /// Polls backends for clients that watch readiness.
    pub(crate) fn readiness_poll(&self) -> &Arc<ReadinessPoll> {
        &self.readiness_poll
    }

    pub(crate) fn events(&self) -> &Events {
        &self.services.events
    }
}

/// The error of a load whose model cannot be read.
fn unreadable(id: &ModelId, error: &Error) -> Error {
    Error::internal(format!("failed to load '{id}', failed to poll from model repository: {error}"))
}

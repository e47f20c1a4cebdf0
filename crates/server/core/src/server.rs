//! The server as every face sees it: health, models, and [`Server::infer`].

mod control;
mod notes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::Guard;
use nereid_backend_api::{Error, InferRequest, MetricRegistry, Peers, Result};
use nereid_budgets::{BodyBudget, Budget};
use nereid_trace_settings::{TraceControl, TraceSettings, TraceStore};

use crate::backends::Backends;
use crate::caller::Caller;
use crate::events::{Changes, Events};
use crate::executor::{BackendFactory, ExecutorKinds, Executors, InstanceServices};
use crate::gpu_limits::GpuLimits;
use crate::host_policies::HostPolicies;
use crate::inflight::ResponseStream;
use crate::interceptors::{Interceptors, ReleaseFactory};
use crate::lifecycle::{Done, LifeCycle, Limits, Listing, LoadReason, Task};
use crate::model::{Model, Services, Work};
use crate::peers::{InnerCaller, ServerPeers};
use crate::readiness_watch::ReadinessWatch;
use crate::reminder::Reminder;
use crate::request_head::RequestHead;
use crate::scope::{Scope, ScopedName};
use crate::source::{FetchStatus, ModelSource, Overrides, SourceEntry};
use crate::spec::ModelId;
use crate::table::{ModelStatus, ModelTable, ServedModels, VersionState};
use crate::versions::{
    InferTarget, ModelRequest, Residency, ResolveFuture, ResolvedModel, VersionChooser, VersionChoosers,
};
use nereid_scheduling::rate_limiter::{RateLimit, RateLimiter};
use nereid_scheduling::shedding::LoadShedding;
use nereid_scheduling::timer::Timer;
use nereid_statistics::LatencyOptions;

/// Fetches mostly wait, so more of them run side by side than loads.
const DEFAULT_FETCHES: usize = 16;

/// How many models are unloaded in parallel when the server stops: a backend may take seconds for one.
const UNLOADS: usize = 16;

/// The options of a server, fixed when it starts.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The name it answers with.
    pub name: String,
    /// The version it answers with.
    pub version: String,
    /// Whether the server is ready only when every model is.
    pub strict_readiness: bool,
    /// How many models are fetched side by side; 0 for 16.
    pub max_fetches: usize,
    /// How many models are loaded side by side; at least 1.
    pub load_threads: usize,
    /// How often loading a version that failed is tried again.
    pub load_retries: usize,
    /// Whether clients may load and unload models.
    pub model_control: ModelControl,
    /// How executions are limited over all models.
    pub rate_limit: RateLimit,
    /// The most requests in flight over all models; 0 for no limit.
    pub max_inflight_requests: usize,
    /// The most bytes of requests and answers of clients elsewhere in flight, over all faces; 0 for no limit.
    pub max_inflight_bytes: usize,
    /// The most bytes of unread answers to one request after the first one; 0 for no limit. A request with more fails: its
    /// backend is never delayed.
    pub max_unread: usize,
    /// Which distributions of latencies are kept of each model.
    pub latencies: LatencyOptions,
    /// Which requests are traced at first.
    pub trace: TraceSettings,
    /// Where traces go; `None` keeps the settings and traces nothing.
    pub trace_store: Option<Arc<dyn TraceStore>>,
    /// Whether requests are refused at once that would wait in a queue for longer than their deadline or timeout allows.
    pub load_shedding: LoadShedding,
    /// The number of queued requests at which each model's batcher starts: for tests that need a full queue.
    pub hold_batches: usize,
    /// Like `hold_batches`, for requests of sequences that wait for a slot.
    pub hold_backlog: usize,
    /// The numbers of the GPUs that instances may run on.
    pub gpus: Vec<i32>,
    /// How full GPUs may be when a model is loaded onto them.
    pub gpu_limits: GpuLimits,
    /// Where instances run, by the names of their host policies.
    pub host_policies: HostPolicies,
    /// Where backends keep metrics of their own.
    pub metrics: MetricRegistry,
    /// The steps before the queues of models, such as a response cache.
    pub interceptors: Interceptors,
    /// Executors of models besides backends, such as ensembles.
    pub executors: Executors,
    /// The models whose requests do not simply go to the latest version.
    pub versions: VersionChoosers,
    /// Makes the releases of models, which split the requests that name no version.
    pub releases: Option<Arc<dyn ReleaseFactory>>,
    /// Loads models for their requests. Without it, models are loaded by request of clients or by the server alone.
    pub residency: Option<Arc<dyn Residency>>,
}

/// How models come and go while the server serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelControl {
    /// Models are loaded once, at startup.
    #[default]
    None,
    /// Clients load and unload them.
    Explicit,
    /// The server follows the repository, by polling it.
    Poll,
    /// Models are loaded by their requests, as [`ServerOptions::residency`] decides. Clients may load and unload them, too.
    OnDemand,
}

/// An inference server without a face.
pub struct Server {
    options: ServerOptions,
    models: Arc<LifeCycle>,
    /// How many requests may be in progress, if that is limited.
    slots: Option<Budget>,
    bodies: BodyBudget,
    trace: TraceControl,
    /// Set while requests are welcome: after the first models are loaded, until shutdown begins.
    open: AtomicBool,
    /// Set while the server could not start, because its source cannot be read.
    failed: AtomicBool,
    /// Set when shutdown begins.
    stopping: AtomicBool,
}

impl Server {
    /// A server that knows these backends, by the names configurations use, and no model yet.
    pub fn new(
        options: ServerOptions,
        backends: impl Into<Backends>,
        source: Arc<dyn ModelSource>,
    ) -> Arc<Self> {
        let limiter = match &options.rate_limit {
            RateLimit::Off => None,
            RateLimit::ExecutionCount(resources) => Some(RateLimiter::new(resources.clone())),
        };
        let bodies = BodyBudget::new(options.max_inflight_bytes);
        let (backends, events) = (backends.into(), Events::default());
        let slots = (options.max_inflight_requests > 0).then(|| Budget::new(options.max_inflight_requests));
        let limits = Limits {
            fetches: if options.max_fetches == 0 { DEFAULT_FETCHES } else { options.max_fetches },
            loads: options.load_threads,
            retries: options.load_retries,
        };
        let trace = TraceControl::new(options.trace.clone(), options.trace_store.clone());
        Arc::new_cyclic(|server| {
            let instances = Arc::new(InstanceServices {
                timer: Timer::default(),
                limiter,
                hold_batches: (options.hold_batches, options.hold_backlog),
                load_shedding: options.load_shedding,
                gpus: options.gpus.clone(),
                gpu_limits: options.gpu_limits.clone(),
                host_policies: options.host_policies.clone(),
                peers: Arc::new(ServerPeers::new(Weak::clone(server), InnerCaller::Backend)),
                events: events.clone(),
            });
            let backends = Arc::new(BackendFactory::new(backends, Arc::clone(&instances)));
            let services = Services {
                instances,
                executors: ExecutorKinds::new(options.executors.clone(), backends),
                max_unread: options.max_unread,
                bodies: bodies.clone(),
                latencies: options.latencies,
                interceptors: options.interceptors.clone(),
                releases: options.releases.clone(),
                models: ServedModels::default(),
                events,
            };
            let models = LifeCycle::new(source, services, options.residency.clone(), limits);
            Self {
                options,
                models,
                slots,
                bodies,
                trace,
                open: AtomicBool::new(false),
                failed: AtomicBool::new(false),
                stopping: AtomicBool::new(false),
            }
        })
    }

    /// The server's interface for its backends. It does not keep the server alive.
    pub fn peers(self: &Arc<Self>) -> Arc<dyn Peers> {
        Arc::new(ServerPeers::new(Arc::downgrade(self), InnerCaller::Backend))
    }

    /// The interface for the application that the server is in: its requests count as a client's, which are refused once the
    /// server stops.
    pub fn peers_of_application(self: &Arc<Self>) -> Arc<dyn Peers> {
        Arc::new(ServerPeers::new(Arc::downgrade(self), InnerCaller::Application))
    }

    /// The options.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// The budget of the memory for requests and answers in flight. Faces count requests as they arrive.
    pub fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Which requests are traced.
    pub fn trace(&self) -> &TraceControl {
        &self.trace
    }

    /// The models as they are now.
    pub fn models(&self) -> Guard<Arc<ModelTable>> {
        self.models.table().load()
    }

    /// Subscribes to changes: of the model table, of readiness, of the server itself.
    pub fn changes(&self) -> Changes {
        self.models.events().subscribe()
    }

    /// Subscribes to changes of [`ready`](Self::ready). While there is a subscription, backends that announce nothing are
    /// polled.
    pub fn watch_readiness(self: &Arc<Self>) -> ReadinessWatch {
        ReadinessWatch::new(Arc::clone(self), self.models.readiness_poll())
    }

    /// Whether the server is live, ready or not. It is not live if its source cannot be read at start.
    pub fn is_live(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// Whether shutdown has begun.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether requests are welcome and, with `strict_readiness`, every required model is served: see
    /// [`ModelTable::all_ready`]. Ignores the readiness of backends, see [`ready`](Self::ready).
    pub fn is_ready(&self) -> bool {
        self.open.load(Ordering::Acquire) && (!self.options.strict_readiness || self.models().all_ready())
    }

    /// Whether requests are welcome and, with `strict_readiness`, every model is loaded and its backend reports it as ready.
    /// Resolves within seconds.
    pub async fn ready(&self) -> bool {
        if !self.is_ready() {
            return false;
        }
        if !self.options.strict_readiness {
            return true;
        }
        // Start all checks before waiting for any.
        let asked: Vec<_> = {
            let models = self.models();
            let required = models.ready().filter(|model| !model.is_on_demand());
            required.map(|model| (model.id().clone(), model.ready())).collect()
        };
        for (id, answer) in asked {
            if let Err(error) = answer.await {
                tracing::debug!("the server is not ready, as '{id}' is not: {error}");
                return false;
            }
        }
        true
    }

    /// Whether a version of a model would answer requests; one that is loaded on demand would, and stays unloaded. Resolves
    /// within seconds.
    ///
    /// # Errors
    /// The reason why it would not: the model is unknown or not served, or its backend is not ready.
    pub async fn model_ready(&self, name: ScopedName<'_>, version: Option<u64>) -> Result<()> {
        let error = match self.model(name, version) {
            Ok(model) => {
                let answer = model.ready();
                drop(model);
                return answer.await;
            }
            Err(error) => error,
        };
        let Some(residency) = &self.options.residency else { return Err(error) };
        let is_offered = residency.is_offered(name, &self.models());
        if is_offered.await { Ok(()) } else { Err(error) }
    }

    /// The version of a model that a request with this name and version goes to.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable`, see [`ModelTable::find`].
    pub fn model(&self, name: ScopedName<'_>, version: Option<u64>) -> Result<Arc<Model>> {
        self.models().find(name, version).cloned()
    }

    /// Finds the model of the request that follows. Each request does this once, and passes the model to
    /// [`infer`](Self::infer).
    ///
    /// Resolves at once, unless the model has a [`VersionChooser`] that lets the request wait, or is not served and loaded by
    /// [`Residency`].
    ///
    /// # Errors
    /// As [`model`](Self::model), or the chooser's own.
    pub fn resolve(&self, name: ScopedName<'_>, version: Option<u64>) -> ResolveFuture {
        self.resolve_with(name, version, RequestHead::default)
    }

    /// [`resolve`](Self::resolve) for a request with this head, which is only read for models with a chooser or a release.
    ///
    /// # Errors
    /// See there.
    pub fn resolve_with(
        &self,
        name: ScopedName<'_>,
        version: Option<u64>,
        head: impl FnOnce() -> RequestHead,
    ) -> ResolveFuture {
        let (chooser, has_releases): (Arc<dyn VersionChooser>, _) = match self.options.versions.of(name.name)
        {
            Some(chooser) => (Arc::clone(chooser), false),
            None => match (self.model(name, version), &self.options.residency) {
                (Err(_), Some(residency)) => (Arc::clone(residency) as _, true),
                (outcome, _) => {
                    return ResolveFuture::done(outcome.map(|model| ResolvedModel::of(model, version, head)));
                }
            },
        };
        let request = ModelRequest::new(name.name, version, head()).within(name.scope);
        ResolveFuture::choose(chooser, request, has_releases, &self.models)
    }

    /// Takes a request in. Its answers come through the stream, once it is scheduled and executed.
    ///
    /// Never blocks. If executions of the model are shorter than the hand-off to another thread, and its backend allows it, the
    /// request may be executed on the calling thread.
    ///
    /// # Errors
    /// The request does not fit the model, too many requests are in progress, or the server is stopping. A full queue answers
    /// through the stream.
    pub fn infer(
        &self,
        model: &impl InferTarget,
        request: InferRequest,
        mut caller: Caller,
    ) -> Result<ResponseStream> {
        let chosen = model.chosen(&request, || self.models());
        let model = chosen.as_ref().unwrap_or(model.described());
        if self.stopping.load(Ordering::Acquire) {
            // Requests and sequences that have begun may end.
            if !caller.is_backend() && !model.continues_sequence(&request) {
                return Err(Error::unavailable(
                    "Server is stopping, scheduler for model has stopped accepting new inference requests",
                ));
            }
        }
        if let Some(slots) = &self.slots {
            let slot = slots.try_acquire(1).ok_or_else(|| {
                Error::unavailable(format!(
                    "the server has reached its limit of {} requests in progress; try again later",
                    slots.capacity()
                ))
            })?;
            caller = caller.with_permit(slot);
        }
        model.infer(request, caller)
    }

    /// Loads models from the source, several side by side, and then welcomes requests: those named, or all. Gives the
    /// names of those that failed, and why.
    ///
    /// # Errors
    /// The source cannot be listed. The server is not live then, nor does it load what is named.
    pub fn start(&self, only: Option<Vec<String>>) -> Result<Vec<(String, Error)>> {
        // Where all are loaded, so are those that ensembles consist of.
        let (with_members, as_of) = (only.is_some(), Instant::now());
        let listed = names(&self.models.catalog().refresh());
        self.failed.store(listed.is_err(), Ordering::Release);
        self.models.events().notify();
        let listed = listed?;
        // Models that are loaded on demand are required by no one, even if they are loaded at start.
        let reason = if self.loads_all_on_demand() { LoadReason::Request } else { LoadReason::Start };
        let names = only.unwrap_or(listed);
        let (done, outcomes) = channel();
        let loads = names.into_iter().map(|name| {
            let (done, model) = (done.clone(), name.clone());
            let ended: Done = Box::new(move |outcome| done.send((model, outcome)).unwrap_or_default());
            let overrides = Overrides::default();
            (name, Task::Load { overrides, scope: Scope::ALL, with_members, reason, as_of }, ended)
        });
        self.models.submit_all(loads.collect::<Vec<_>>());
        drop(done);
        let (mut failures, mut reminder) = (Vec::new(), Reminder::new(Instant::now()));
        loop {
            match outcomes.recv_timeout(reminder.time_left(Instant::now())) {
                Ok((name, outcome)) => failures.extend(outcome.err().map(|error| (name, error))),
                Err(RecvTimeoutError::Timeout) => {
                    if reminder.is_due(Instant::now()) {
                        tracing::warn!("{}", self.models.progress());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.open.store(true, Ordering::Release);
        self.models.events().notify();
        Ok(failures)
    }

    /// Polls the source for changes and applies those that are complete: new, removed and changed models and versions. A change
    /// is complete when two polls saw the same state. Waits for the loads for as long as `patience`; further polls skip models
    /// that are still being loaded. Models that are loaded on demand are followed while they are loaded.
    ///
    /// Returns whether a change was seen that waits for another poll.
    ///
    /// # Errors
    /// The source cannot be listed; everything stays as it is.
    pub fn poll(&self, patience: Duration) -> Result<bool> {
        if !self.is_live() {
            // As at start: nothing is loaded that a half-copied change could replace.
            return self.start(self.loads_all_on_demand().then(Vec::new)).map(|_| false);
        }
        let as_of = Instant::now();
        let mut names = names(&self.models.catalog().refresh())?;
        let with_members = self.loads_all_on_demand();
        if with_members {
            names.clear();
        }
        let names: BTreeSet<_> = names.into_iter().chain(self.models.known()).collect();
        let (done, outcomes) = channel();
        let polls = self.models.idle(names).into_iter().map(|name| {
            let done = done.clone();
            let ended: Done = Box::new(move |_| done.send(()).unwrap_or_default());
            (name, Task::Poll { as_of, with_members }, ended)
        });
        self.models.submit_all(polls.collect::<Vec<_>>());
        drop(done);
        let end = Instant::now().checked_add(patience);
        let left = || end.map_or(patience, |end| end.saturating_duration_since(Instant::now()));
        while outcomes.recv_timeout(left()).is_ok() {}
        Ok(self.models.awaits_poll())
    }

    /// The repository's index: every version of the models of the source and of served models, and the models of the source
    /// without a known version. Other models are forgotten. A name of several models of the source, none of which can be
    /// served, is listed with the reason.
    ///
    /// The calling thread reads no source. If the server polls, the index uses the listing of the last poll; otherwise the source
    /// is listed on another thread, once for all waiting callers.
    ///
    /// # Errors
    /// The source cannot be listed.
    pub fn index(&self) -> impl Future<Output = Result<Vec<(ModelId, Option<ModelStatus>)>>> + Send + use<> {
        let (models, polled) = (Arc::clone(&self.models), self.polled());
        let on_demand = self.loads_all_on_demand();
        async move {
            let listing = match polled {
                Some(listing) => listing,
                None => models.catalog().refreshed().await,
            };
            index(&models.forget_gone(&listing), &listing, on_demand)
        }
    }

    /// [`index`](Self::index), for threads that may block.
    ///
    /// # Errors
    /// See there.
    pub fn blocking_index(&self) -> Result<Vec<(ModelId, Option<ModelStatus>)>> {
        let listing = self.polled().unwrap_or_else(|| self.models.catalog().refresh());
        index(&self.models.forget_gone(&listing), &listing, self.loads_all_on_demand())
    }

    /// Whether the source has a model of this name, as it was listed at `since` or later; `None` if it was not listed since.
    ///
    /// # Errors
    /// The source could not be listed.
    pub fn is_listed(&self, name: ScopedName<'_>, since: Instant) -> Result<Option<bool>> {
        self.models.catalog().has(name, since).transpose()
    }

    /// Lists the source on another thread, once for all waiting callers.
    pub fn list_source(&self) -> impl Future<Output = ()> + Send + use<> {
        let listing = self.models.catalog().refreshed();
        async { drop(listing.await) }
    }

    fn loads_all_on_demand(&self) -> bool {
        self.options.model_control == ModelControl::OnDemand
    }

    /// The listing of the last poll, if the server polls.
    fn polled(&self) -> Option<Arc<Listing>> {
        let polls = self.options.model_control == ModelControl::Poll;
        polls.then(|| self.models.catalog().last()).flatten()
    }

    /// The fetches in progress. [`changes`](Self::changes) announces every progress they make.
    pub fn fetches(&self) -> Vec<FetchStatus> {
        self.models.fetches().status()
    }

    /// Begins to stop: the server is no longer ready, and refuses new requests of clients. Requests in progress continue, with
    /// the inner requests of backends and ensembles, and clients may continue their sequences. Clients that wait for a slow
    /// source get an error at once.
    pub fn begin_shutdown(&self) {
        self.open.store(false, Ordering::Release);
        self.stopping.store(true, Ordering::Release);
        self.models.cancel_fetches();
        self.models.events().notify();
    }

    /// The remaining work of the models, including versions that are being unloaded.
    pub fn work(&self) -> Work {
        let retired = self.models.retired_models();
        let models = self.models();
        models.ready().chain(&retired).map(|model| model.work()).min().unwrap_or(Work::Nothing)
    }

    /// Executes queued requests and ends all instances, including those of versions that are being unloaded.
    pub fn unload_all(&self) {
        self.models.close();
        // What has begun needs its members.
        let dependents = self.models().dependents_before_members();
        dependents.iter().for_each(|dependent| dependent.unload());
        drop(dependents);
        let mut models: Vec<_> = self.models.clear().ready().cloned().collect();
        models.extend(self.models.retired_models());
        let threads = models.len().min(UNLOADS);
        let models = Mutex::new(models.into_iter());
        let next = || models.lock().unwrap_or_else(PoisonError::into_inner).next();
        let unload = || {
            while let Some(model) = next() {
                model.unload();
                // The instances end here, unless the version is still referenced elsewhere.
                drop(model);
            }
        };
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(unload))));
        self.models.wait_for_retirements();
    }
}

fn names(listing: &Listing) -> Result<Vec<String>> {
    let names = |listed: &Vec<SourceEntry>| listed.iter().map(|listed| listed.name.clone()).collect();
    listing.as_ref().map(names).map_err(Error::clone)
}

fn index(
    table: &ModelTable,
    listing: &Listing,
    on_demand: bool,
) -> Result<Vec<(ModelId, Option<ModelStatus>)>> {
    // The versions of a model that was never loaded are unknown.
    let status = |id, state| ModelStatus { id, version: None, state, failed_reload: None };
    let listed = listing.as_ref().map_err(Error::clone)?;
    let names: BTreeSet<_> = listed.iter().map(|listed| listed.name.as_str()).collect();
    let gone: BTreeSet<_> = table.idle().filter(|id| !names.contains(id.name.as_str())).collect();
    let there = table.index().filter(|status| !gone.contains(&status.id)).map(|mut status| {
        // Its next request loads it, too.
        if on_demand && matches!(status.state, VersionState::Unloaded) && !table.is_served(&status.id) {
            status.state = VersionState::Evicted;
        }
        status
    });
    let mut index: Vec<_> = there.map(|status| (status.id.clone(), Some(status))).collect();
    let known: BTreeSet<_> = index.iter().map(|(id, _)| id.clone()).collect();
    for SourceEntry { name, ids } in listed {
        match ids {
            Ok(ids) => {
                let unknown = ids.iter().filter(|id| !known.contains(id));
                let on_demand = |id: &ModelId| on_demand.then(|| status(id.clone(), VersionState::Evicted));
                index.extend(unknown.map(|id| (id.clone(), on_demand(id))));
            }
            Err(error) => {
                let id = ModelId::plain(name.clone());
                let state = VersionState::Unavailable(error.clone());
                if !known.contains(&id) {
                    index.push((id.clone(), Some(status(id, state))));
                }
            }
        }
    }
    index.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(index)
}

#[cfg(test)]
mod tests;

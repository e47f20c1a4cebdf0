//! Loads models for their requests.

use std::collections::BTreeSet;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::select;
use jiff::Timestamp;
use nereid_backend_api::{Error, ErrorCode, ModelConfig, Result};
use nereid_budgets::Budget;
use nereid_core::{
    Choice, Model, ModelId, ModelMemory, ModelRequest, ModelSpec, ModelTable, Residency, ScopedName, Server,
    VersionChooser, VersionState,
};
use nereid_scheduling::timer::{Alarm, Ring, Timer};
use tokio::sync::oneshot::{Receiver, Sender, channel};

use crate::ResidencyOptions;
use crate::amounts::MemoryBudgets;
use crate::gpus::GpuReader;
use crate::growth::Growth;
use crate::idleness::Idleness;
use crate::loads::Loads;
use crate::parameters::Parameters;
use crate::prefetch::{Clock, Prefetch, Prefetching, Schedules};
use crate::rooms::{RoomLimits, Rooms};

/// How many requests may wait for loads at a time, over all models.
const MAX_WAITING: usize = 16_384;

/// A listing of the source that began this long before a request is new enough for it.
const LISTING_AGE: Duration = Duration::from_secs(1);

/// Loads models for their requests. See [`ServerOptions::residency`](nereid_core::ServerOptions::residency).
pub struct ResidencyManager {
    options: ResidencyOptions,
    server: OnceLock<Weak<Server>>,
    waiting: Arc<Waiting>,
    places: Budget,
    alarm: Alarm,
    rooms: Arc<Rooms>,
    idleness: Arc<Idleness>,
    growth: Arc<Growth>,
    schedules: Arc<Schedules>,
    prefetch: Arc<Prefetch>,
    /// Evicted models that are being loaded.
    returning: Mutex<BTreeSet<String>>,
    /// Held for the timer, which does not keep it alive.
    _prefetching: Arc<Prefetching>,
    _timer: Timer,
}

/// The requests that wait for loads.
pub(crate) struct Waiting {
    loads: Mutex<Loads>,
    /// Requests that wait for a listing of the source, by the end of their time.
    listing: Mutex<Vec<(Instant, Sender<()>)>>,
}

impl ResidencyManager {
    /// Loads nothing before it is [attached](Self::attach) to a server. `gpus` reads the memory in use of GPUs.
    pub fn new(options: ResidencyOptions, gpus: GpuReader) -> Arc<Self> {
        Self::with_clock(options, gpus, Box::new(Timestamp::now))
    }

    /// With another wall clock for the schedules of models.
    pub(crate) fn with_clock(options: ResidencyOptions, gpus: GpuReader, clock: Clock) -> Arc<Self> {
        let timer = Timer::default();
        let waiting = Arc::new(Waiting {
            loads: Mutex::new(Loads::new(options.retry_pause)),
            listing: Mutex::default(),
        });
        let target = Arc::downgrade(&waiting);
        let alarm = timer.alarm(target);
        let (server, places) = (OnceLock::new(), Budget::new(MAX_WAITING));
        let schedules = Arc::new(Schedules::new(clock));
        let limits = RoomLimits {
            budgets: MemoryBudgets { host: options.memory_budget, gpus: options.gpu_memory_budgets.clone() },
            evictions_a_minute: options.evictions_a_minute.max(1),
            idle_timeout: options.idle_timeout,
        };
        let rooms = Arc::new(Rooms::new(limits, Arc::clone(&schedules), options.records.clone(), gpus));
        let prefetch = Prefetch::new(Arc::clone(&schedules), Arc::clone(&rooms), Arc::clone(&waiting));
        let prefetch = Arc::new(prefetch);
        let prefetching = Arc::new(Prefetching(Arc::clone(&prefetch)));
        let target = Arc::downgrade(&prefetching);
        prefetch.set_alarm(timer.alarm(target));
        let idleness = Idleness::new(Arc::clone(&rooms), &timer);
        if options.idle_timeout.is_some() {
            idleness.start();
        }
        let growth = Growth::new(Arc::clone(&rooms), &timer);
        Arc::new(Self {
            options,
            server,
            waiting,
            places,
            alarm,
            rooms,
            idleness,
            growth,
            schedules,
            prefetch,
            returning: Mutex::default(),
            _prefetching: prefetching,
            _timer: timer,
        })
    }

    /// Loads the models of this server, which it does not keep alive. Only the first server counts.
    pub fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
        self.idleness.attach(server);
        self.prefetch.attach(server);
        if self.is_limited() {
            self.growth.start(server);
        }
    }

    /// The memory of the versions in memory. What a model takes is divided equally among its versions.
    pub fn resident(&self) -> Vec<(ModelId, u64, ModelMemory)> {
        let Some(server) = self.server() else { return Vec::new() };
        let models = server.models();
        let ready: Vec<_> = models.ready().filter(|model| !model.is_composite()).collect();
        let memory = self.rooms.memory(ready.iter().map(|model| model.name()));
        let of_version = |(model, memory): (&Arc<Model>, Option<ModelMemory>)| {
            let memory = memory?.divided_by(models.resident_versions(model.name()));
            Some((model.id().clone(), model.version(), memory))
        };
        ready.into_iter().zip(memory).filter_map(of_version).collect()
    }

    fn returning(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.returning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Whether requests load a model that is not served, according to the table. `None` for a model that only the source may have.
    fn is_wanted(&self, name: ScopedName<'_>, models: &ModelTable) -> Option<bool> {
        let mut is_awaited = false;
        for state in models.states_of(name) {
            // A load for an ensemble may be in progress.
            if state.is_evicted() || matches!(state, VersionState::Loading { was_evicted: true }) {
                return Some(true);
            }
            is_awaited |= matches!(state, VersionState::Loading { .. } | VersionState::Unavailable(_));
        }
        if self.options.all_on_demand {
            return None;
        }
        Some(is_awaited && self.waiting.loads().is_active(name))
    }

    /// When a request waits no longer.
    fn end_of_wait(&self, request: &ModelRequest) -> Instant {
        let longest = request.arrived + self.options.wait;
        request.deadline().map_or(longest, |deadline| deadline.min(longest))
    }

    /// Lets a request wait for a listing of the source.
    fn wait_for_listing(&self, server: &Server, until: Instant) -> Choice {
        let (wake, expired) = channel();
        let mut listing = self.waiting.listing();
        listing.retain(|(_, other)| !other.is_closed());
        listing.push((until, wake));
        drop(listing);
        self.alarm.set(until);
        let listed = Box::pin(server.list_source());
        self.wait(async move {
            select(listed, expired).await;
        })
    }

    fn wait_for_load(&self, ended: Receiver<()>, until: Instant) -> Choice {
        self.alarm.set(until);
        self.wait(async {
            // The request is decided about again in either case.
            let _ = ended.await;
        })
    }

    /// Holds a place among the waiting requests until `what` is ready.
    fn wait(&self, what: impl Future<Output = ()> + Send + 'static) -> Choice {
        let Some(place) = self.places.try_acquire(1) else {
            let message = format!("{MAX_WAITING} requests wait for models to be loaded; try again later");
            return Choice::Version(Err(Error::unavailable(message).with_retry_after(self.options.wait)));
        };
        Choice::Wait(Box::pin(async move {
            what.await;
            drop(place);
        }))
    }

    fn start(&self, server: &Server, name: ScopedName<'_>) {
        let waiting = Arc::downgrade(&self.waiting);
        let (loaded, scope) = (name.name.to_owned(), name.scope.clone());
        tracing::info!("loading '{name}' for a request");
        server.load_on_demand(name, move |outcome| {
            if let Some(waiting) = waiting.upgrade() {
                waiting.loads().ended(ScopedName::new(&loaded, &scope), Instant::now(), &outcome);
            }
        });
    }
}

impl VersionChooser for ResidencyManager {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        let mut choice = self.decide(request, models);
        let mut looked_at: Option<Arc<ModelTable>> = None;
        while let Err(error) = choice {
            let Some(server) = self.server() else { return Choice::Version(Err(error)) };
            let latest = Arc::clone(&server.models());
            if ptr::eq(looked_at.as_deref().unwrap_or(models), &*latest) {
                return Choice::Version(Err(error));
            }
            // The load that the table shows in progress may have ended since.
            choice = self.decide(request, &latest);
            looked_at = Some(latest);
        }
        choice.unwrap_or_else(|error| Choice::Version(Err(error)))
    }
}

impl ResidencyManager {
    /// Decides about a request by a table. `Err` if its model is not wanted, according to that table.
    fn decide(&self, request: &ModelRequest, models: &ModelTable) -> Result<Choice> {
        let name = request.scoped_name();
        let error = match models.find(name, request.version) {
            Ok(model) => return Ok(Choice::Version(Ok(Arc::clone(model)))),
            Err(error) => error,
        };
        // Other versions are served, or other models have the name, too.
        let is_final = models.states_of(name).any(|state| state.model().is_some())
            || error.code() == ErrorCode::InvalidArg;
        let Some(server) = self.server().filter(|_| !is_final) else {
            return Ok(Choice::Version(Err(error)));
        };
        let (now, until) = (Instant::now(), self.end_of_wait(request));
        match self.is_wanted(name, models) {
            Some(true) => {}
            Some(false) => return Err(error),
            None => match server.is_listed(name, since(request.arrived)) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Ok(Choice::Version(Err(error))),
                Ok(None) if now < until => return Ok(self.wait_for_listing(&server, until)),
                Ok(None) => {
                    let message = format!("the repositories were not listed in time to find model '{name}'");
                    return Ok(Choice::Version(Err(
                        Error::unavailable(message).with_retry_after(LISTING_AGE)
                    )));
                }
                Err(error) => {
                    let message = format!("cannot look for model '{name}': {error}");
                    return Ok(Choice::Version(Err(
                        Error::unavailable(message).with_retry_after(LISTING_AGE)
                    )));
                }
            },
        }
        let answer = self.waiting.loads().request(name, request.arrived, now, until);
        // Its schedule may be loading it: a request may have more models leave.
        self.rooms.unschedule(name.name);
        if answer.starts_load {
            self.start(&server, name);
        }
        Ok(match answer.wait {
            Ok(ended) => self.wait_for_load(ended, until),
            Err(error) => Choice::Version(Err(error)),
        })
    }
}

impl Residency for ResidencyManager {
    fn is_on_demand(&self, config: &ModelConfig) -> Result<bool> {
        let parameters = Parameters::of(config)?;
        if parameters.idle_timeout.is_some() {
            self.idleness.start();
        }
        self.prefetch.set(&config.name, parameters.schedule);
        Ok(parameters.load_on_demand || self.options.all_on_demand)
    }

    fn note(&self, name: &str) -> Option<String> {
        Some(format!("by its schedule next at {}", self.schedules.next(name)?))
    }

    fn has_room(&self, spec: &ModelSpec) -> bool {
        self.server().is_none_or(|server| self.rooms.has_room(&server, spec))
    }

    fn has_room_for_instances(&self, model: &Model, instances: usize) -> bool {
        self.server().is_none_or(|server| self.rooms.has_room_for_instances(&server, model, instances))
    }

    fn is_limited(&self) -> bool {
        self.options.memory_budget.is_some() || !self.options.gpu_memory_budgets.is_empty()
    }

    fn before_load(&self, spec: &ModelSpec) -> Result<()> {
        let Some(server) = self.server() else { return Ok(()) };
        self.rooms.before_load(&server, spec)?;
        let name = spec.id.name.as_str();
        if server.models().states_of(ScopedName::everywhere(name)).any(VersionState::is_evicted) {
            self.returning().insert(name.to_owned());
        }
        Ok(())
    }

    fn after_load(&self, spec: &ModelSpec, outcome: &Result<()>) {
        if let Some(server) = self.server() {
            self.rooms.after_load(&server, spec, outcome.is_ok());
        }
        // A load for an ensemble may have failed: requests try again after the pause.
        let was_evicted = self.returning().remove(&spec.id.name);
        if let Err(error) = outcome
            && was_evicted
        {
            self.waiting.loads().failed(ScopedName::everywhere(&spec.id.name), Instant::now(), error);
        }
    }

    fn memory(&self, models: &[ModelId]) -> Vec<Option<ModelMemory>> {
        self.rooms.memory(models.iter().map(|id| id.name.as_str()))
    }

    fn is_offered(
        &self,
        name: ScopedName<'_>,
        models: &ModelTable,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let is_final = models.states_of(name).any(|state| state.model().is_some());
        if is_final || self.waiting.loads().is_paused(name, Instant::now()) {
            return Box::pin(ready(false));
        }
        let Some(server) = self.server() else { return Box::pin(ready(false)) };
        if let Some(wanted) = self.is_wanted(name, models) {
            return Box::pin(ready(wanted));
        }
        let since = since(Instant::now());
        let is_listed =
            move |server: &Server, name: ScopedName<'_>| server.is_listed(name, since).unwrap_or(Some(false));
        if let Some(is_listed) = is_listed(&server, name) {
            return Box::pin(ready(is_listed));
        }
        let (listing, name, scope) = (server.list_source(), name.name.to_owned(), name.scope.clone());
        Box::pin(async move {
            listing.await;
            is_listed(&server, ScopedName::new(&name, &scope)).unwrap_or(false)
        })
    }
}

/// The oldest listing that is new enough at that time.
fn since(time: Instant) -> Instant {
    time.checked_sub(LISTING_AGE).unwrap_or(time)
}

impl fmt::Debug for ResidencyManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidencyManager").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Waiting {
    pub(crate) fn loads(&self) -> MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listing(&self) -> MutexGuard<'_, Vec<(Instant, Sender<()>)>> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring for Waiting {
    fn ring(&self) {
        let now = Instant::now();
        for (_, expired) in self.listing().extract_if(.., |(until, _)| *until <= now) {
            let _ = expired.send(());
        }
        self.loads().expire(now);
    }
}

#[cfg(test)]
mod tests;

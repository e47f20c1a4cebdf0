//! The budget of memory for models, and models that leave: the least valuable ones to make room, and idle ones.
//!
//! A model leaves only while it has no requests in progress and no open sequences, and is not kept by its configuration. Ensembles
//! that consist of it must be as free, as they leave with it; their requests count as its own. The server refuses to evict models
//! that it could not load again.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nereid_backend_api::{Error, MemoryKind, Result};
use nereid_core::{Model, ModelMemory, ModelSpec, ScopedName, Server, Work};

use crate::amounts::{Gpu, MemoryBudgets, Place, Shortage};
use crate::content::Content;
use crate::gpus::{GpuReader, GpuReading};
use crate::memory;
use crate::parameters::{Parameters, chooses_gpus, gpu_instances};
use crate::prefetch::Schedules;
use crate::queue;
use crate::recording::Recording;
use crate::served::{Served, is_composite, parameters, uses};
use crate::sizes::{Description, Ended, Known, Reading, Sizes};
use state::State;

/// How long a load waits until a model in use can leave.
const PATIENCE: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(5) };

/// How long a load waits for models that are leaving, if those make room for it, before others leave as well.
const LEAVING: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_millis(2500) };

/// The time between two attempts to find a model that can leave.
const RETRY: Duration = Duration::from_millis(10);

/// The period for which evictions are limited.
const MINUTE: Duration = Duration::from_secs(60);

/// A model stays for this long after its load, so that the requests that wait for it reach it.
const FRESH: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };

/// Clients may try again after this long if no model can leave.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(5);

/// The limits of models in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoomLimits {
    /// Memory that all models may take.
    pub budgets: MemoryBudgets,
    /// How many models may leave in a minute to make room.
    pub evictions_a_minute: usize,
    /// The time without requests after which a model leaves, unless its configuration sets another.
    pub idle_timeout: Option<Duration>,
}

/// The memory of models: what they take, and who leaves.
pub(crate) struct Rooms {
    limits: RoomLimits,
    schedules: Arc<Schedules>,
    state: Mutex<State>,
    /// Keeps what loads took for the next run of the server.
    recording: Option<Recording>,
    read_gpus: GpuReader,
}

/// The next step of a load.
enum Step {
    /// The model may be loaded.
    Load,
    /// This model leaves first.
    Evict(String),
    /// No model can leave now.
    Wait(Error),
}

impl Rooms {
    /// With the records of earlier runs in that folder, if there is one.
    pub(crate) fn new(
        limits: RoomLimits,
        schedules: Arc<Schedules>,
        records: Option<PathBuf>,
        read_gpus: GpuReader,
    ) -> Self {
        let (recording, records) = records.map(Recording::open).unzip();
        let state = State { sizes: Sizes::with_records(records.unwrap_or_default()), ..State::default() };
        Self { limits, schedules, state: Mutex::new(state), recording, read_gpus }
    }

    /// A model is about to be loaded by its schedule: busier ones need not leave for it.
    pub(crate) fn schedule(&self, name: &str) {
        self.lock().scheduled.insert(name.to_owned(), false);
    }

    /// Ends the special treatment of a scheduled load: the load ended, or a request waits for it. Returns whether there was no room.
    pub(crate) fn unschedule(&self, name: &str) -> bool {
        self.lock().scheduled.remove(name).unwrap_or(false)
    }

    /// Whether the budget has room for a model now.
    pub(crate) fn has_room(&self, server: &Server, spec: &ModelSpec) -> bool {
        let budgets = &self.limits.budgets;
        if budgets.is_empty() {
            return true;
        }
        let mut state = self.describe(spec);
        let name = &spec.id.name;
        let used = state.used(&server.models(), name);
        let fits = budgets.without_room(&used, &state.sizes.amount(name)).is_empty();
        if fits {
            // Counts until its load ends, so that loads side by side do not share the same room.
            state.loading.insert(name.clone(), Instant::now());
        }
        fits
    }

    /// Whether the budget has room for this number of instances of a model in memory. Instances beyond those that models were loaded
    /// with count as much as these do.
    pub(crate) fn has_room_for_instances(&self, server: &Server, model: &Model, instances: usize) -> bool {
        let Some(budget) = self.limits.budgets.host else { return true };
        let models = server.models();
        let state = self.lock();
        let added = models.ready().map(|other| {
            let Some(at_load) = other.instances_at_load() else { return 0 };
            let is_this = other.id() == model.id() && other.version() == model.version();
            let now = if is_this { instances } else { other.instances().unwrap_or(at_load) };
            // Versions of equal names in several namespaces share a size.
            let versions = models.states_of(ScopedName::everywhere(other.name()));
            let versions = versions.filter(|state| state.model().is_some()).count().max(1);
            let size = state.sizes.of(other.name()) / versions as u64;
            size / at_load.max(1) as u64 * now.saturating_sub(at_load) as u64
        });
        state.used(&models, "").host + added.sum::<u64>() <= budget
    }

    /// Makes room for a model, and begins to measure its load.
    pub(crate) fn before_load(&self, server: &Server, spec: &ModelSpec) -> Result<()> {
        let name = spec.id.name.as_str();
        let place = self.describe(spec).queue.enter(name);
        let outcome = self.wait_for_room(server, name, place);
        self.lock().queue.leave(place);
        outcome.inspect_err(|_| self.give_up(name))
    }

    fn wait_for_room(&self, server: &Server, name: &str, place: queue::Place) -> Result<()> {
        let (mut began, mut kept) = (Instant::now(), BTreeSet::new());
        loop {
            match self.next_step(server, name, place, &kept, began.elapsed(), Instant::now())? {
                Step::Load => return Ok(()),
                Step::Evict(other) => self.evict(server, name, other, &mut kept),
                Step::Wait(error) if began.elapsed() >= PATIENCE || server.is_stopping() => {
                    return Err(error);
                }
                Step::Wait(_) => {
                    kept.clear();
                    if self.lock().queue.ahead_of(place).next().is_some() {
                        // Those ahead may wait for as long.
                        began = Instant::now();
                    }
                    thread::sleep(RETRY);
                }
            }
        }
    }

    /// A load has ended.
    pub(crate) fn after_load(&self, server: &Server, spec: &ModelSpec, is_loaded: bool) {
        let name = &spec.id.name;
        let (now, ended) = (self.in_use(), Instant::now());
        let own: Vec<_> = server.models().ready().filter(|model| *model.id() == spec.id).cloned().collect();
        let known = known(&own, &now.gpus);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let mut state = self.lock();
        let began = state.loading.remove(name).unwrap_or(ended);
        let took = ended.saturating_duration_since(began);
        let records = state.sizes.end(name, Ended { is_loaded, took, now, known, at });
        if is_loaded {
            state.fresh.retain(|_, at| ended.saturating_duration_since(*at) < FRESH);
            state.fresh.insert(name.clone(), ended);
        }
        drop(state);
        self.keep_budgets(server, name, ended);
        if let Some(recording) = &self.recording {
            records.into_iter().for_each(|(content, record)| recording.keep(content, record));
        }
    }

    /// Has models leave at once if one took more than was expected of it.
    fn keep_budgets(&self, server: &Server, loaded: &str, now: Instant) {
        let mut refused = BTreeSet::from([loaded.to_owned()]);
        loop {
            let surplus = self.surplus(&mut self.lock(), server, &refused, now);
            let Some((Shortage { place, taken, budget }, Some(other))) = surplus else { return };
            match server.evict_model(&other) {
                Ok(names) => {
                    tracing::info!(
                        "'{other}' leaves the memory: with '{loaded}', models take {}, more than the memory budget of {}",
                        place.bytes(taken),
                        megabytes(budget)
                    );
                    self.left(names);
                }
                Err(error) => tracing::debug!("{error}"),
            }
            refused.insert(other);
        }
    }

    /// A budget that is exceeded, and the model that leaves, if one can.
    fn surplus(
        &self,
        state: &mut State,
        server: &Server,
        refused: &BTreeSet<String>,
        now: Instant,
    ) -> Option<(Shortage, Option<String>)> {
        let short = self.limits.budgets.exceeded(&state.staying(&server.models())).into_iter().next()?;
        let models = Served::of(server);
        state.note_uses(&models, &self.limits.budgets);
        let can_leave = |name: &&str| {
            let takes = state.sizes.amount(name).of(short.place) > 0;
            takes && !refused.contains(*name) && self.may_leave(state, &models, name, now)
        };
        let leaving = state.policy.least(models.iter().map(|(name, _)| name.as_str()).filter(can_leave));
        let leaving = leaving.map(str::to_owned);
        Some((short, leaving.filter(|_| state.is_calm(self.limits.evictions_a_minute, now))))
    }

    /// Whether the load of a model waits for room.
    #[cfg(test)]
    pub(crate) fn waits(&self, name: &str) -> bool {
        self.lock().queue.all().any(|other| other == name)
    }

    /// The memory of each model, or `None` if nothing is known.
    pub(crate) fn memory<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Option<ModelMemory>> {
        self.lock().sizes.memory(names)
    }

    /// Counts what the processes of loaded models have grown by since they were loaded. Returns the model that leaves if a budget is
    /// exceeded.
    pub(crate) fn follow_growth(&self, server: &Server, now: Instant) -> Option<String> {
        let models = Served::of(server);
        let gpus = GpuReading::of((self.read_gpus)());
        let known = models.iter().map(|(name, versions)| (name, known(versions, &gpus)));
        let known: Vec<_> = known.filter_map(|(name, it)| Some((name, it.processes?, it.gpus))).collect();
        let mut state = self.lock();
        let grown =
            known.into_iter().filter(|(name, bytes, gpus)| state.sizes.follow(name, *bytes, gpus.as_ref()));
        let has_grown = grown.count() > 0;
        let (Shortage { place, taken, budget }, leaving) =
            self.surplus(&mut state, server, &BTreeSet::new(), now)?;
        if has_grown || leaving.is_some() {
            tracing::warn!(
                "models have grown to {}, more than the memory budget of {}{}",
                place.bytes(taken),
                megabytes(budget),
                leaving.as_ref().map_or_else(String::new, |name| format!(": '{name}' leaves the memory"))
            );
        }
        leaving
    }

    /// A model has left the memory to make room, the last of these, and the ensembles that consisted of it.
    pub(crate) fn left(&self, mut names: Vec<String>) {
        let mut state = self.lock();
        names.iter().for_each(|name| state.policy.left(name));
        if let Some(name) = names.pop() {
            state.sizes.freed(&name);
            state.evictions.push_back((Instant::now(), name));
        }
    }

    /// The models that have had no requests for too long.
    pub(crate) fn idle(&self, server: &Server, now: Instant) -> Vec<String> {
        let models = Served::of(server);
        let mut state = self.lock();
        state.uses.retain(|name, _| !models.versions(name).is_empty());
        let mut idle = Vec::new();
        for (name, versions) in models.iter() {
            let timeout = parameters(versions).idle_timeout.or(self.limits.idle_timeout);
            let is_limited = |timeout: &Duration| !timeout.is_zero() && !is_composite(versions);
            let Some(timeout) = timeout.filter(is_limited) else { continue };
            if !self.may_leave(&state, &models, name, now) {
                state.uses.remove(name);
                continue;
            }
            let users = models.with_users(name).into_iter();
            let last = users.map(|user| state.last_use(user, uses(models.versions(user)), now)).max();
            if last.is_some_and(|last| now.saturating_duration_since(last) >= timeout) {
                idle.push(name.clone());
            }
        }
        idle
    }

    /// Whether nothing holds a model in memory, nor the ensembles that consist of it.
    fn may_leave(&self, state: &State, models: &Served, name: &str, now: Instant) -> bool {
        let is_busy = |model: &Arc<Model>| model.work() != Work::Nothing || model.pending() > 0;
        let is_free = |name: &str| {
            let versions = models.versions(name);
            !versions.iter().any(is_busy) && !state.is_fresh(name, uses(versions), now)
        };
        let is_member = !is_composite(models.versions(name));
        is_member && !self.stays(models, name) && models.with_users(name).into_iter().all(is_free)
    }

    /// Whether its configuration keeps a model in memory, or an ensemble that consists of it.
    fn stays(&self, models: &Served, name: &str) -> bool {
        let is_kept =
            |name: &str| parameters(models.versions(name)).keep_loaded || self.schedules.keeps(name);
        models.with_users(name).into_iter().any(is_kept)
    }

    /// The bytes that the models that stay take of a memory, except one model.
    fn kept(&self, state: &State, models: &Served, except: &str, place: Place) -> u64 {
        let stays = |(name, versions): &(&String, &[Arc<Model>])| {
            !is_composite(versions) && *name != except && self.stays(models, name)
        };
        models.iter().filter(stays).map(|(name, _)| state.sizes.amount(name).of(place)).sum()
    }

    /// The memory of processes counts under a budget, or for a later run under one, as reading it takes long.
    fn in_use(&self) -> Reading {
        let with_processes = self.limits.budgets.host.is_some() || self.recording.is_some();
        Reading { memory: memory::in_use(with_processes), gpus: GpuReading::of((self.read_gpus)()) }
    }

    /// A model is not loaded.
    fn give_up(&self, name: &str) {
        let mut state = self.lock();
        state.loading.remove(name);
        if let Some(had_no_room) = state.scheduled.get_mut(name) {
            *had_no_room = true;
        }
    }

    fn describe(&self, spec: &ModelSpec) -> MutexGuard<'_, State> {
        let parameters = Parameters::of(&spec.config).unwrap_or_default();
        let description = Description {
            declared: parameters.memory,
            declared_gpus: parameters.gpu_memory,
            gpu_instances: gpu_instances(&spec.config),
            chooses_gpus: chooses_gpus(&spec.config),
            files: memory::file_bytes(&spec.directory),
            content: Content::of(spec),
        };
        let mut state = self.lock();
        state.sizes.describe(&spec.id.name, description);
        state
    }

    fn next_step(
        &self,
        server: &Server,
        name: &str,
        at: queue::Place,
        kept: &BTreeSet<String>,
        waited: Duration,
        now: Instant,
    ) -> Result<Step> {
        let before = self.in_use();
        let models = Served::of(server);
        let mut state = self.lock();
        let (budgets, needed) = (&self.limits.budgets, state.sizes.amount(name));
        if let Some(Shortage { place, taken, budget }) = budgets.exceeded(&needed).first() {
            return Err(Error::unavailable(format!(
                "model '{name}' takes about {}, more than the memory budget of {}",
                place.bytes(*taken),
                megabytes(*budget)
            )));
        }
        let used = state.used_before(at, name, &server.models());
        let short = budgets.without_room(&used, &needed);
        let Some(&Shortage { place, budget, .. }) = short.first() else {
            state.begin(name, before);
            return Ok(Step::Load);
        };
        let staying = self.kept(&state, &models, name, place);
        if staying.saturating_add(needed.of(place)) > budget {
            let message = format!(
                "no room for model '{name}': it takes about {}, and models that stay in memory take {} of {}",
                place.bytes(needed.of(place)),
                megabytes(staying),
                megabytes(budget)
            );
            return Err(Error::unavailable(message).with_retry_after(NO_ROOM_PAUSE));
        }
        let once_left = state.used_once_left(at, name, &server.models());
        if waited < LEAVING && budgets.without_room(&once_left, &needed).is_empty() {
            let message = format!("no room for model '{name}' until those that leave the memory have left");
            return Ok(Step::Wait(Error::unavailable(message).with_retry_after(NO_ROOM_PAUSE)));
        }
        state.note_uses(&models, budgets);
        let can_leave = |other: &&str| {
            let is_there = state.sizes.amount(other).of(place) > 0;
            let is_busier = || state.scheduled.contains_key(name) && !state.policy.is_no_busier(other, name);
            let is_other = *other != name && !kept.contains(*other);
            is_there && is_other && self.may_leave(&state, &models, other, now) && !is_busier()
        };
        let leaving = models.iter().map(|(other, _)| other.as_str()).filter(can_leave);
        let Some(other) = state.policy.least(leaving) else {
            let message = format!(
                "no room for model '{name}': it takes about {}, and models take {} of {}; none can leave now",
                place.bytes(needed.of(place)),
                megabytes(used.of(place)),
                megabytes(budget)
            );
            return Ok(Step::Wait(Error::unavailable(message).with_retry_after(NO_ROOM_PAUSE)));
        };
        state.check_rate(name, self.limits.evictions_a_minute, now)?;
        Ok(Step::Evict(other.to_owned()))
    }

    fn evict(&self, server: &Server, name: &str, other: String, kept: &mut BTreeSet<String>) {
        let size = self.lock().sizes.of(&other);
        match server.evict_model_and_wait(&other) {
            Ok(names) => {
                tracing::info!("'{other}' leaves the memory ({}) to make room for '{name}'", megabytes(size));
                self.left(names);
            }
            Err(error) => {
                tracing::debug!("{error}");
                kept.insert(other);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a model's versions, from their processes and their backend.
fn known(versions: &[Arc<Model>], gpus: &GpuReading) -> Known {
    let processes: Vec<_> = versions.iter().flat_map(|model| model.processes()).collect();
    let of_processes = (!processes.is_empty()).then(|| memory::of_processes(&processes));
    Known {
        processes: of_processes,
        gpus: of_processes.and_then(|_| gpus.of_processes(&processes)),
        reported_gpus: reported_gpus(versions),
    }
}

/// The memory of GPUs that the backend of a model's versions reports.
fn reported_gpus(versions: &[Arc<Model>]) -> BTreeMap<Gpu, u64> {
    let mut gpus = BTreeMap::new();
    for usage in versions.iter().flat_map(|model| model.memory_usage()) {
        if let (MemoryKind::Gpu, Ok(gpu)) = (usage.memory.kind, Gpu::try_from(usage.memory.device)) {
            *gpus.entry(gpu).or_default() += usage.byte_size;
        }
    }
    gpus
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

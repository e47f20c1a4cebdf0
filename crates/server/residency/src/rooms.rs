//! The budget of memory for models, and models that leave: the least valuable ones to make room, and idle ones.
//!
//! A model leaves only while it has no requests in progress and no open sequences, and is not kept by its configuration. Ensembles
//! that consist of it must be as free, as they leave with it; their requests count as its own. The server refuses to evict models
//! that it could not load again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nereid_backend_api::{Error, MemoryKind, Result};
use nereid_core::{Model, ModelMemory, ModelSpec, ModelTable, ScopedName, Server, VersionState, Work};

use crate::amounts::{Amount, Gpu, MemoryBudgets, Shortage};
use crate::content::Content;
use crate::gpus::{GpuReader, GpuReading};
use crate::memory;
use crate::parameters::{Parameters, chooses_gpus, gpu_instances};
use crate::policy::Policy;
use crate::prefetch::Schedules;
use crate::recording::Recording;
use crate::served::{Served, is_composite, parameters, uses};
use crate::sizes::{Description, Ended, Known, Reading, Sizes};

/// How long a load waits until a model in use can leave.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };

/// The time between two attempts to find a model that can leave.
const RETRY: Duration = Duration::from_millis(10);

/// The period for which evictions are limited.
const MINUTE: Duration = Duration::from_secs(60);

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

#[derive(Default)]
struct State {
    sizes: Sizes,
    policy: Policy,
    /// The models that are being loaded, and since when.
    loading: BTreeMap<String, Instant>,
    /// The models that are being loaded by their schedules, and whether there was no room.
    scheduled: BTreeMap<String, bool>,
    /// When models left to make room in the last minute, and which.
    evictions: VecDeque<(Instant, String)>,
    /// When each model was used last, going by its counters.
    uses: BTreeMap<String, (u64, Instant)>,
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
        drop(self.describe(spec));
        let (began, mut kept) = (Instant::now(), BTreeSet::new());
        loop {
            let step =
                self.next_step(server, name, &kept, Instant::now()).inspect_err(|_| self.give_up(name))?;
            match step {
                Step::Load => return Ok(()),
                Step::Evict(other) => self.evict(server, name, other, &mut kept),
                Step::Wait(error) if began.elapsed() >= PATIENCE || server.is_stopping() => {
                    self.give_up(name);
                    return Err(error);
                }
                Step::Wait(_) => {
                    kept.clear();
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
        drop(state);
        if let Some(recording) = &self.recording {
            records.into_iter().for_each(|(content, record)| recording.keep(content, record));
        }
    }

    /// The memory of each model, or `None` if nothing is known.
    pub(crate) fn memory<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Option<ModelMemory>> {
        self.lock().sizes.memory(names)
    }

    /// Counts what the processes of loaded models have grown by since they were loaded. Returns the model that leaves if a budget is
    /// exceeded because of that.
    pub(crate) fn follow_growth(&self, server: &Server, now: Instant) -> Option<String> {
        let models = Served::of(server);
        let gpus = GpuReading::of((self.read_gpus)());
        let known = models.iter().map(|(name, versions)| (name, known(versions, &gpus)));
        let known: Vec<_> = known.filter_map(|(name, it)| Some((name, it.processes?, it.gpus))).collect();
        let mut state = self.lock();
        let grown =
            known.into_iter().filter(|(name, bytes, gpus)| state.sizes.follow(name, *bytes, gpus.as_ref()));
        let has_grown = grown.count() > 0;
        let used = state.used(&server.models(), "");
        let short = self.limits.budgets.exceeded(&used).into_iter().next();
        let Shortage { place, taken, budget } = short.filter(|_| has_grown)?;
        state.note_uses(&models, &self.limits.budgets);
        let can_leave = |name: &&str| state.sizes.amount(name).of(place) > 0 && self.may_leave(&models, name);
        let leaving = state.policy.least(models.iter().map(|(name, _)| name.as_str()).filter(can_leave));
        let leaving =
            leaving.map(str::to_owned).filter(|_| state.is_calm(self.limits.evictions_a_minute, now));
        tracing::warn!(
            "models have grown to {}, more than the memory budget of {}{}",
            place.bytes(taken),
            megabytes(budget),
            leaving.as_ref().map_or_else(String::new, |name| format!(": '{name}' leaves the memory"))
        );
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
            if !self.may_leave(&models, name) {
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
    fn may_leave(&self, models: &Served, name: &str) -> bool {
        let is_busy = |model: &Arc<Model>| model.work() != Work::Nothing || model.pending() > 0;
        let is_free = |name: &str| {
            let versions = models.versions(name);
            !versions.iter().any(is_busy) && !parameters(versions).keep_loaded && !self.schedules.keeps(name)
        };
        !is_composite(models.versions(name)) && models.with_users(name).into_iter().all(is_free)
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

    fn next_step(&self, server: &Server, name: &str, kept: &BTreeSet<String>, now: Instant) -> Result<Step> {
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
        let used = state.used(&server.models(), name);
        let short = budgets.without_room(&used, &needed);
        let Some(&Shortage { place, budget, .. }) = short.first() else {
            state.begin(name, before);
            return Ok(Step::Load);
        };
        state.note_uses(&models, budgets);
        let can_leave = |other: &&str| {
            let is_there = state.sizes.amount(other).of(place) > 0;
            let is_busier = || state.scheduled.contains_key(name) && !state.policy.is_no_busier(other, name);
            let is_other = *other != name && !kept.contains(*other);
            is_there && is_other && self.may_leave(&models, other) && !is_busier()
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

impl State {
    /// The memory of all models but one: of those in memory, being unloaded and being loaded.
    fn used(&self, models: &ModelTable, except: &str) -> Amount {
        let takes = |state: &VersionState| {
            matches!(state, VersionState::Unloading { .. })
                || state.model().is_some_and(|model| !model.is_composite())
        };
        let resident =
            models.names().filter(|name| models.states_of(ScopedName::everywhere(name)).any(takes));
        let all: BTreeSet<_> = resident.chain(self.loading.keys().map(String::as_str)).collect();
        let amounts = all.into_iter().filter(|name| *name != except).map(|name| self.sizes.amount(name));
        amounts.fold(Amount::default(), |sum, amount| sum.plus(&amount))
    }

    fn begin(&mut self, name: &str, before: Reading) {
        self.loading.insert(name.to_owned(), Instant::now());
        self.sizes.begin(before);
    }

    /// Notes how often the models in memory were used, and what they take. A request to an ensemble is a use of each member.
    fn note_uses(&mut self, models: &Served, budgets: &MemoryBudgets) {
        let counts = models.iter().map(|(name, versions)| (name.as_str(), uses(versions)));
        let counts: BTreeMap<_, _> =
            counts.map(|(name, total)| (name, self.policy.count(name, total))).collect();
        for (name, versions) in models.iter().filter(|(_, versions)| !is_composite(versions)) {
            let last = || versions.iter().map(|model| model.statistics().load_duration()).sum();
            let cost = self.sizes.load_time(name).unwrap_or_else(last);
            let users = models.with_users(name).into_iter();
            let uses = users.filter_map(|user| counts.get(user)).sum();
            self.policy.note(name, uses, budgets.weight(&self.sizes.amount(name)), cost);
        }
    }

    /// When a model was used last, which has answered this many requests.
    fn last_use(&mut self, name: &str, total: u64, now: Instant) -> Instant {
        let last = self.uses.entry(name.to_owned()).or_insert((total, now));
        if last.0 != total {
            *last = (total, now);
        }
        last.1
    }

    /// Whether fewer models than this left the memory within the last minute.
    fn is_calm(&mut self, limit: usize, now: Instant) -> bool {
        while self.evictions.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MINUTE) {
            self.evictions.pop_front();
        }
        self.evictions.len() < limit
    }

    /// Limits how many models leave in a minute.
    fn check_rate(&mut self, name: &str, limit: usize, now: Instant) -> Result<()> {
        if self.is_calm(limit, now) {
            return Ok(());
        }
        let Some((first, _)) = self.evictions.front() else { return Ok(()) };
        let mut competing: BTreeMap<&str, usize> = BTreeMap::new();
        self.evictions.iter().for_each(|(_, other)| *competing.entry(other).or_default() += 1);
        let mut competing: Vec<_> = competing.into_iter().collect();
        competing.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let competing: Vec<_> =
            competing.iter().take(5).map(|(other, count)| format!("'{other}' {count} times")).collect();
        tracing::warn!(
            "'{name}' has to wait: {limit} models left the memory within a minute, most of all {}; raise \
             --model-memory-budget, or spread the models over several servers",
            competing.join(", ")
        );
        let message =
            format!("no room for model '{name}': {limit} models left the memory within the last minute");
        let left = (*first + MINUTE).saturating_duration_since(now);
        Err(Error::unavailable(message).with_retry_after(left))
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

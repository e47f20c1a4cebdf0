//! The task queue: tasks of one model run in order, tasks of different models in parallel.
//!
//! A task that needs the source goes through two stages, fetching and loading; others are done at once. Threads take them
//! from here ([`workers`](super::workers)).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Error, Result};
use tokio::sync::oneshot::{Receiver, channel};

use super::dependents::{DeferredOutcome, Dependencies};
use super::fetch::{Canceller, FetchOutcome};
use super::members::MemberLoads;
use super::records::Records;
use crate::scope::Scope;
use crate::source::Overrides;
use crate::spec::ModelId;

/// Receives the outcome of a task.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The reason for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadReason {
    /// The server starts with the model, or a poll found it. The server is not ready without it, even if it fails to load. A model
    /// that is loaded on demand, or has no room, waits for its first request.
    Start,
    /// The model is a member of one that the server loads by itself. Without room, it waits for its first request.
    Member,
    /// A request or a client waits for it, or its schedule loads it.
    Request,
}

/// A change to the models of a name.
pub(crate) enum Task {
    /// Load it, or reload it if it has changed or something is overridden.
    Load {
        /// Replacements for what is in the repository.
        overrides: Overrides,
        /// The models that the name means.
        scope: Scope,
        /// Whether to load its members, too.
        with_members: bool,
        /// The reason for the load.
        reason: LoadReason,
        /// When it was requested: older knowledge of the source is outdated.
        as_of: Instant,
    },
    /// Reload it if two polls in a row saw the same change; unload it if it was removed.
    Poll {
        /// When the poll began.
        as_of: Instant,
        /// Whether a changed model loads its members even if no one wanted them before.
        with_members: bool,
    },
    /// Unload it.
    Unload {
        /// The models that the name means.
        scope: Scope,
        /// Whether to unload the members that were loaded only for it, too.
        with_members: bool,
    },
    /// Change the number of a version's instances.
    Resize {
        /// The model.
        id: ModelId,
        /// The version.
        version: u64,
        /// The number of instances.
        instances: usize,
    },
    /// Reconcile a model, whose specification is already read, with its members.
    Reconcile {
        /// The outcome of reading it.
        so_far: Result<()>,
        /// Why it can never be served, if it depends on itself.
        circle: Option<Error>,
        /// How members that are not in memory are loaded before.
        members: MemberLoads,
    },
}

impl Task {
    /// Whether the task needs the source before it can run.
    fn needs_fetch(&self) -> bool {
        matches!(self, Self::Load { .. } | Self::Poll { .. })
    }

    fn is_load(&self) -> bool {
        matches!(self, Self::Load { .. })
    }
}

/// How many tasks may wait.
pub(super) const CAPACITY: usize = 10_000;

#[derive(Default)]
pub(super) struct Tasks {
    waiting: VecDeque<Job>,
    /// How many jobs wait of each model.
    counts: BTreeMap<String, usize>,
    /// How many of those that wait need no fetch.
    direct: usize,
    /// Models that a job is being done of, or was fetched for.
    busy: BTreeSet<String>,
    /// The busy models whose job may load them, and whether it does so if they are not in memory.
    loading: BTreeMap<String, bool>,
    /// The busy models that are being reconciled, with the models that they waited for.
    reconciling: BTreeMap<String, BTreeSet<String>>,
    /// Cancellers of the fetches in progress, by model.
    fetching: BTreeMap<String, Canceller>,
    /// Jobs whose models are fetched, and what is known of these models.
    fetched: VecDeque<(Job, Records, Vec<FetchOutcome>)>,
    /// How many threads fetch, and how many load.
    pub(super) threads: PerStage<usize>,
    pub(super) closed: bool,
    /// Whether the server is stopping: nothing waits for a source any more.
    pub(super) stopping: bool,
    /// Records of models that were loaded, or failed to load.
    pub(super) known: BTreeMap<String, Records>,
    pub(super) dependencies: Dependencies,
    /// Whether models that consist of others load their members one model after another.
    in_turn: bool,
}

/// A stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Fetch,
    Load,
}

/// Something for each stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerStage<T> {
    pub fetch: T,
    pub load: T,
}

impl<T> PerStage<T> {
    pub(super) fn of(&mut self, stage: Stage) -> &mut T {
        match stage {
            Stage::Fetch => &mut self.fetch,
            Stage::Load => &mut self.load,
        }
    }
}

pub(super) struct Job {
    pub name: String,
    pub task: Task,
    /// The models whose earlier jobs are done first. A reconciliation's are never in a circle: see [`Dependencies::circle`].
    pub after: BTreeSet<String>,
    pub done: Done,
}

impl Tasks {
    /// No tasks yet. `in_turn`: whether models that consist of others load their members one model after another.
    pub(super) fn new(in_turn: bool) -> Self {
        Self { in_turn, ..Self::default() }
    }

    pub(super) fn push(&mut self, job: Job) {
        self.insert(self.waiting.len(), job);
    }

    fn insert(&mut self, index: usize, job: Job) {
        *self.counts.entry(job.name.clone()).or_default() += 1;
        if !job.task.needs_fetch() {
            self.direct += 1;
        }
        if matches!(job.task, Task::Unload { .. }) && !self.is_awaited(&job.name) {
            self.fetching.remove(&job.name);
        }
        self.waiting.insert(index, job);
    }

    /// The place of a model's reconciliation in the queue: before reconciliations of models that wait for it. So a job waits
    /// for earlier ones alone.
    fn place_of_reconciling(&self, name: &str) -> usize {
        self.waiting.iter().position(|job| job.after.contains(name)).unwrap_or(self.waiting.len())
    }

    fn remove(&mut self, index: usize) -> Option<Job> {
        let job = self.waiting.remove(index)?;
        if !job.task.needs_fetch() {
            self.direct -= 1;
        }
        if let Some(count) = self.counts.get_mut(&job.name) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&job.name);
            }
        }
        Some(job)
    }

    /// How many jobs wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many jobs a stage may have to do.
    pub(super) fn backlog(&self, stage: Stage) -> usize {
        match stage {
            Stage::Fetch => self.waiting.len() - self.direct,
            Stage::Load => self.fetched.len() + self.direct,
        }
    }

    /// Whether the last of a model's jobs that wait before a place is a load. A poll leaves an evicted model alone.
    fn is_being_loaded(&self, name: &str, place: usize) -> bool {
        match self.waiting.iter().take(place).rfind(|job| job.name == name) {
            Some(job) => job.task.is_load(),
            None => self.loading.get(name).is_some_and(|is_load| *is_load),
        }
    }

    /// Whether a job waits for jobs of this model.
    fn is_awaited(&self, name: &str) -> bool {
        let mut awaited = BTreeSet::new();
        self.waiting.iter().for_each(|job| self.dependencies.add_members(&job.after, &mut awaited));
        awaited.contains(name)
    }

    /// Whether models that consist of others load their members one model after another.
    pub(super) fn in_turn(&self) -> bool {
        self.in_turn
    }

    /// Whether a reconciliation waits that needs this model in memory: no load of it, or of what consists of it, comes before. Of
    /// those that take turns, only the first one does.
    fn is_needed(&self, name: &str) -> bool {
        let (mut loads, mut needed) = (BTreeSet::new(), BTreeSet::new());
        let mut is_turn_taken = false;
        for job in &self.waiting {
            match &job.task {
                Task::Load { .. } => drop(loads.insert(job.name.as_str())),
                Task::Reconcile { members, .. } => {
                    let takes_turns = self.in_turn && members.takes_turns();
                    if !takes_turns || !std::mem::replace(&mut is_turn_taken, true) {
                        self.dependencies.add_members_but(&job.after, &loads, &mut needed);
                    }
                }
                Task::Poll { .. } | Task::Unload { .. } | Task::Resize { .. } => {}
            }
        }
        needed.contains(name)
    }

    pub(super) fn is_concerned(&self, name: &str) -> bool {
        self.busy.contains(name) || self.counts.contains_key(name)
    }

    /// The models whose loads are in progress, and how many others wait for theirs. A loaded model that only waits for its
    /// ensembles is neither.
    pub(super) fn progress(&self) -> (BTreeSet<&String>, usize) {
        let fetched: BTreeSet<_> = self.fetched.iter().map(|(job, ..)| &job.name).collect();
        let loading = self.loading.keys().chain(self.reconciling.keys());
        let running: BTreeSet<_> = loading.filter(|name| !fetched.contains(name)).collect();
        let queued = self.waiting.iter().filter(|job| !matches!(job.task, Task::Unload { .. }));
        let waiting: BTreeSet<_> = queued.map(|job| &job.name).chain(fetched).collect();
        let waiting = waiting.difference(&running).count();
        (running, waiting)
    }

    /// The first job that can run now, and its records: no job of the same model runs or waits before it, and no job of the
    /// models that it waits for. Nor does an unload overtake earlier requests for models that depend on its model, directly or
    /// not. The model is busy from now on.
    fn next(&mut self, needs_fetch: bool) -> Option<(Job, Records)> {
        let mut passed = BTreeSet::new();
        let mut awaited = BTreeSet::new();
        self.reconciling.values().for_each(|after| self.dependencies.add_members(after, &mut awaited));
        let next = self.waiting.iter().position(|job| {
            let is_unload = matches!(job.task, Task::Unload { .. });
            let is_blocked = |name: &str| self.busy.contains(name) || passed.contains(name);
            let may_be_done = job.task.needs_fetch() == needs_fetch
                && !is_blocked(&job.name)
                && !job.after.iter().any(|name| is_blocked(name))
                && (!is_unload || !awaited.contains(job.name.as_str()));
            if !may_be_done {
                passed.insert(job.name.as_str());
                self.dependencies.add_members(&job.after, &mut awaited);
            }
            may_be_done
        });
        let job = self.remove(next?)?;
        self.busy.insert(job.name.clone());
        if job.task.needs_fetch() {
            self.loading.insert(job.name.clone(), job.task.is_load());
        }
        if !job.after.is_empty() && matches!(job.task, Task::Reconcile { .. }) {
            self.reconciling.insert(job.name.clone(), job.after.clone());
        }
        let records = self.known.remove(&job.name).unwrap_or_default();
        Some((job, records))
    }

    /// The next job to fetch for, and the signal of its cancellation.
    pub(super) fn next_to_fetch(&mut self) -> Option<(Job, Records, Receiver<()>)> {
        if self.backlog(Stage::Fetch) == 0 {
            return None;
        }
        let (job, records) = self.next(true)?;
        let (canceller, cancelled) = channel();
        let is_unload = |other: &Job| other.name == job.name && matches!(other.task, Task::Unload { .. });
        let is_cancelled = self.counts.contains_key(&job.name)
            && !self.is_awaited(&job.name)
            && self.waiting.iter().any(is_unload);
        if !is_cancelled && !self.stopping {
            self.fetching.insert(job.name.clone(), canceller);
        }
        Some((job, records, cancelled))
    }

    /// Queues a job whose models are fetched.
    pub(super) fn push_fetched(&mut self, job: Job, records: Records, fetched: Vec<FetchOutcome>) {
        self.fetched.push_back((job, records, fetched));
    }

    /// A fetch has ended.
    pub(super) fn end_fetch(&mut self, name: &str) {
        self.fetching.remove(name);
    }

    /// The next job to do, and what was fetched for it. Those that nothing is fetched for are quick, and go first.
    pub(super) fn next_to_do(&mut self) -> Option<(Job, Records, Vec<FetchOutcome>)> {
        let direct = if self.direct > 0 { self.next(false) } else { None };
        match direct {
            Some((job, records)) => Some((job, records, Vec::new())),
            None => self.fetched.pop_front(),
        }
    }

    /// Takes the records of a model and of those that depend on it, the outermost ones first, as if a job of each began.
    /// [`end`](Self::end) ends them. `None` if a job of one of them is in progress, or a waiting one needs the model as it is.
    pub(super) fn take_with_users(&mut self, name: &str) -> Option<Vec<(String, Records)>> {
        let names = self.dependencies.outermost_first(name);
        let is_waiting = |job: &Job| job.name == name && !job.task.is_load();
        if self.closed
            || names.iter().any(|name| self.busy.contains(name))
            || self.waiting.iter().any(is_waiting)
            || self.is_needed(name)
        {
            return None;
        }
        let taken = names.into_iter().map(|name| {
            self.busy.insert(name.clone());
            let records = self.known.remove(&name).unwrap_or_default();
            (name, records)
        });
        Some(taken.collect())
    }

    /// A job is done.
    pub(super) fn end(&mut self, name: &str) {
        self.busy.remove(name);
        self.loading.remove(name);
        self.reconciling.remove(name);
    }

    /// Takes out a job that a stage without threads cannot do: the one that came last.
    pub(super) fn give_up_last(&mut self, stage: Stage) -> Option<Job> {
        if stage == Stage::Load
            && let Some((job, ..)) = self.fetched.pop_back()
        {
            self.end(&job.name);
            return Some(job);
        }
        let needs_fetch = stage == Stage::Fetch;
        let last = self.waiting.iter().rposition(|job| job.task.needs_fetch() == needs_fetch)?;
        self.remove(last)
    }

    /// Cancels the fetches in progress, and later ones that would have to wait.
    pub(super) fn cancel_fetches(&mut self) {
        self.stopping = true;
        self.fetching.clear();
    }

    /// Takes no further jobs, cancels the fetches in progress, and returns the waiting jobs.
    pub(super) fn close(&mut self) -> Vec<Job> {
        self.closed = true;
        self.counts.clear();
        self.direct = 0;
        self.fetching.clear();
        let fetched = std::mem::take(&mut self.fetched).into_iter().map(|(job, ..)| job);
        std::mem::take(&mut self.waiting).into_iter().chain(fetched).collect()
    }

    /// Queues the reconciliation of a model, unless one is queued already, and notifies `done` when it completes.
    pub(super) fn reconcile(&mut self, name: &str, done: Done) {
        let place = self.place_of_reconciling(name);
        let waiting = self
            .waiting
            .iter_mut()
            .take(place)
            .find(|job| job.name == name && matches!(job.task, Task::Reconcile { .. }));
        if let Some(job) = waiting {
            let before = std::mem::replace(&mut job.done, Box::new(|_| {}));
            job.done = Box::new(move |outcome: Result<()>| {
                before(outcome.clone());
                done(outcome);
            });
            return;
        }
        let (after, circle) = self.before_reconciling(name);
        let task = Task::Reconcile { so_far: Ok(()), circle, members: MemberLoads::of_change() };
        self.insert(place, Job { name: name.to_owned(), task, after, done });
    }

    /// The models whose loads a model's reconciliation waits for; if it contains itself, an error with the cycle.
    fn before_reconciling(&self, name: &str) -> (BTreeSet<String>, Option<Error>) {
        // Those in a circle would wait for each other.
        match self.dependencies.circle(name) {
            None => (self.dependencies.members(name), None),
            Some(way) => {
                let way = way.join(" -> ");
                let message = format!("circular dependency between ensembles: {way}");
                (BTreeSet::new(), Some(Error::invalid_arg(message)))
            }
        }
    }

    /// A model was read: it is reconciled when its members are loaded. If `load_all`, they are loaded before, or reloaded if they
    /// have changed.
    pub(super) fn reconcile_after_members(
        &mut self,
        name: &str,
        so_far: Result<()>,
        members: MemberLoads,
        load_all: bool,
        done: Done,
    ) {
        let (after, circle) = self.before_reconciling(name);
        let loads = if load_all { after.clone() } else { BTreeSet::new() };
        let is_queued = load_all && self.in_turn && members.takes_turns();
        let members = if is_queued { members.queued() } else { members };
        let task = Task::Reconcile { so_far, circle, members };
        self.reconcile_after_loads(Job { name: name.to_owned(), task, after, done }, loads, members);
    }

    /// Queues a reconciliation, and before it the loads of these members.
    pub(super) fn reconcile_after_loads(&mut self, job: Job, loads: BTreeSet<String>, how: MemberLoads) {
        let own = self.waiting.iter().position(|other| other.name == job.name).unwrap_or(self.waiting.len());
        // It keeps its turn.
        let own = if how.is_turn() { 0 } else { own };
        let mut place = own.min(self.place_of_reconciling(&job.name));
        let in_turn = self.in_turn && how.takes_turns() && !how.is_turn();
        let after = if in_turn { self.reconciled_before(&job.name) } else { BTreeSet::new() };
        for member in loads {
            if self.is_being_loaded(&member, place) {
                continue;
            }
            if !self.known.contains_key(&member) {
                self.dependencies.imply(&member);
            }
            let (overrides, scope) = (Overrides::default(), Scope::ALL);
            let MemberLoads { reason, as_of, .. } = how;
            let task = Task::Load { overrides, scope, with_members: true, reason, as_of };
            self.insert(place, Job { name: member, task, after: after.clone(), done: Box::new(|_| {}) });
            place += 1;
        }
        self.insert(place, job);
    }

    /// The other models that are being reconciled, or wait for it.
    fn reconciled_before(&self, name: &str) -> BTreeSet<String> {
        let waiting = self.waiting.iter().filter(|job| matches!(job.task, Task::Reconcile { .. }));
        let names = waiting.map(|job| &job.name).chain(self.reconciling.keys());
        names.filter(|other| *other != name).cloned().collect()
    }

    /// Unloads the members of an unloaded model that were loaded only for it, if `with_members`.
    pub(super) fn unload_left_over(
        &mut self,
        members: &BTreeSet<String>,
        with_members: bool,
        later: &Arc<DeferredOutcome>,
    ) {
        for member in members.iter().filter(|_| with_members) {
            if self.dependencies.is_left_over(member) {
                let task = Task::Unload { scope: Scope::ALL, with_members };
                let (name, after) = (member.clone(), BTreeSet::new());
                self.push(Job { name, task, after, done: later.part() });
            }
        }
    }
}

//! Who does what, when: tasks of one model one after the other, those of different models side by side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;

use nereid_backend_api::{Error, Result};

use super::LifeCycle;
use super::ensembles::{Deferred, Dependencies};
use super::records::{Records, all};
use crate::source::Overrides;

/// Tells how a task ended.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// What is to be done with the models of a name.
pub(crate) enum Task {
    /// Load it, or load it anew if it has changed or something is overridden.
    Load {
        /// What is overridden.
        overrides: Overrides,
        /// Whether the models that an ensemble consists of are loaded, too.
        with_members: bool,
    },
    /// Load it anew if it has changed and the change was there already at the last look; unload it if it has gone.
    Poll,
    /// Unload it.
    Unload {
        /// And the models that are there only because it needed them.
        with_members: bool,
    },
    /// Bring an ensemble in line with its members. What it is to be was read before.
    Reconcile {
        /// How that went.
        so_far: Result<()>,
        /// Why it can never be served.
        circle: Option<Error>,
    },
}

/// So many tasks may wait.
const TASKS: usize = 10_000;

#[derive(Default)]
pub(super) struct Tasks {
    waiting: VecDeque<Job>,
    /// How many jobs wait of each model.
    counts: BTreeMap<String, usize>,
    /// Models that a thread has a task of.
    busy: BTreeSet<String>,
    threads: usize,
    closed: bool,
    /// What is known of models that were loaded, or tried.
    known: BTreeMap<String, Records>,
    dependencies: Dependencies,
}

struct Job {
    name: String,
    task: Task,
    /// The models whose jobs are done first. Never in a circle: see [`Dependencies::circle`].
    after: BTreeSet<String>,
    done: Done,
}

impl Tasks {
    fn push(&mut self, job: Job) {
        *self.counts.entry(job.name.clone()).or_default() += 1;
        self.waiting.push_back(job);
    }

    fn remove(&mut self, index: usize) -> Option<Job> {
        let job = self.waiting.remove(index)?;
        if let Some(count) = self.counts.get_mut(&job.name) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&job.name);
            }
        }
        Some(job)
    }

    fn is_concerned(&self, name: &str) -> bool {
        self.busy.contains(name) || self.counts.contains_key(name)
    }

    /// The first job that can be done now: nobody does one of the same model, none of the same model waits before it,
    /// and there is none of those it comes after.
    fn next(&mut self) -> Option<Job> {
        let mut passed = BTreeSet::new();
        let next = self.waiting.iter().position(|job| {
            let may_be_done = !self.busy.contains(&job.name)
                && !passed.contains(job.name.as_str())
                && !job.after.iter().any(|name| self.is_concerned(name));
            if !may_be_done {
                passed.insert(job.name.as_str());
            }
            may_be_done
        });
        self.remove(next?)
    }

    /// Has an ensemble settled, unless that waits to be done already: then `done` hears of that.
    fn reconcile(&mut self, name: &str, done: Done) {
        let waiting = self
            .waiting
            .iter_mut()
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
        let task = Task::Reconcile { so_far: Ok(()), circle };
        self.push(Job { name: name.to_owned(), task, after, done });
    }

    /// The models that an ensemble is settled after; none if it consists of itself, and then the way on which it does.
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

    /// An ensemble was read: it is settled when its members are. They are loaded before, if `with_members`.
    fn reconcile_after_members(&mut self, name: &str, so_far: Result<()>, with_members: bool, done: Done) {
        let (after, circle) = self.before_reconciling(name);
        for member in after.iter().filter(|_| with_members) {
            if self.is_concerned(member) {
                continue;
            }
            if !self.known.contains_key(member) {
                self.dependencies.imply(member);
            }
            let task = Task::Load { overrides: Overrides::default(), with_members };
            self.push(Job { name: member.clone(), task, after: BTreeSet::new(), done: Box::new(|_| {}) });
        }
        self.push(Job { name: name.to_owned(), task: Task::Reconcile { so_far, circle }, after, done });
    }

    /// Unloads those of an unloaded ensemble's members that were there because of it, if `with_members`.
    fn unload_left_over(&mut self, members: &BTreeSet<String>, with_members: bool, later: &Arc<Deferred>) {
        for member in members.iter().filter(|_| with_members) {
            if self.dependencies.is_left_over(member) {
                let task = Task::Unload { with_members };
                let (name, after) = (member.clone(), BTreeSet::new());
                self.push(Job { name, task, after, done: later.part() });
            }
        }
    }
}

impl LifeCycle {
    /// Has a task done, on another thread.
    pub(crate) fn submit(self: &Arc<Self>, name: String, task: Task, done: Done) {
        self.submit_all([(name, task, done)]);
    }

    /// Has tasks done that are all known before the first of them begins: an ensemble waits for those of its members.
    pub(crate) fn submit_all(self: &Arc<Self>, new: impl IntoIterator<Item = (String, Task, Done)>) {
        let mut tasks = self.lock();
        let mut refused = Vec::new();
        let mut taken = 0;
        for (name, task, done) in new {
            if tasks.closed {
                refused.push((done, Error::unavailable("the server is shutting down")));
            } else if tasks.waiting.len() >= TASKS {
                let error = Error::unavailable(format!("{TASKS} loads and unloads are waiting already"));
                refused.push((done, error));
            } else {
                if matches!(task, Task::Load { .. }) {
                    tasks.dependencies.request(&name);
                }
                tasks.push(Job { name, task, after: BTreeSet::new(), done });
                taken += 1;
            }
        }
        drop(tasks);
        (0..taken.min(self.threads)).for_each(|_| self.spawn_worker(self.lock()));
        refused.into_iter().for_each(|(done, error)| done(Err(error)));
    }

    /// Gives a thread to what waits, if one more may be had.
    fn spawn_worker(self: &Arc<Self>, mut tasks: MutexGuard<'_, Tasks>) {
        if tasks.threads >= self.threads {
            return;
        }
        tasks.threads += 1;
        drop(tasks);
        let this = Arc::clone(self);
        let spawned = thread::Builder::new().name("nereid-load".into()).spawn(move || this.work());
        if let Err(error) = spawned {
            tracing::error!("cannot start a thread to load models: {error}");
            let mut tasks = self.lock();
            tasks.threads -= 1;
            if tasks.threads == 0
                && let Some(last) = tasks.waiting.len().checked_sub(1)
                && let Some(job) = tasks.remove(last)
            {
                drop(tasks);
                (job.done)(Err(Error::internal(format!("cannot start a thread to load models: {error}"))));
            }
        }
    }

    /// Takes no further tasks; those that wait are not done.
    pub(crate) fn close(&self) {
        let mut tasks = self.lock();
        tasks.closed = true;
        tasks.counts.clear();
        let waiting = std::mem::take(&mut tasks.waiting);
        drop(tasks);
        for job in waiting {
            (job.done)(Err(Error::unavailable("the server is shutting down")));
        }
    }

    /// The models that were loaded, or tried, and not unloaded since.
    pub(crate) fn known(&self) -> Vec<String> {
        self.lock().known.keys().cloned().collect()
    }

    /// Those of the names that no task is waiting for or being done with.
    pub(crate) fn idle(&self, mut names: BTreeSet<String>) -> BTreeSet<String> {
        let tasks = self.lock();
        names.retain(|name| !tasks.is_concerned(name));
        names
    }

    /// Whether a look has seen a change that is taken up when another one has seen the same.
    pub(crate) fn awaits_poll(&self) -> bool {
        self.lock().known.values().any(Records::awaits_poll)
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life: does tasks as long as there are any that can be done.
    fn work(self: Arc<Self>) {
        let mut tasks = self.lock();
        loop {
            let Some(Job { name, task, done, .. }) = tasks.next() else {
                tasks.threads -= 1;
                return;
            };
            tasks.busy.insert(name.clone());
            let mut records = tasks.known.remove(&name).unwrap_or_default();
            drop(tasks);
            let with_members = match &task {
                Task::Load { with_members, .. } | Task::Unload { with_members } => *with_members,
                Task::Poll | Task::Reconcile { .. } => false,
            };
            let is_unload = matches!(task, Task::Unload { .. });
            let before = self.served_of_all(&name);
            let outcome = self.act(&name, task, &mut records);
            let has_changed = self.served_of_all(&name) != before;
            let members = self.members_of_all(&name, &records);
            let needs_reconciling = records.needs_reconciling();

            tasks = self.lock();
            tasks.busy.remove(&name);
            let members_before = tasks.dependencies.members(&name);
            tasks.dependencies.set(&name, members);
            if is_unload {
                tasks.dependencies.request(&name);
            }
            if !records.is_empty() {
                tasks.known.insert(name.clone(), records);
            }
            let mut report = None;
            if needs_reconciling && !tasks.closed {
                tasks.reconcile_after_members(&name, outcome, with_members, done);
            } else {
                let later = Deferred::new(done, outcome);
                if !tasks.closed {
                    let users: Vec<_> = tasks.dependencies.users(&name).cloned().collect();
                    for user in users.iter().filter(|_| has_changed) {
                        tasks.reconcile(user, later.part());
                    }
                    if is_unload {
                        tasks.unload_left_over(&members_before, with_members, &later);
                    }
                }
                report = Some(later);
            }
            // This thread does what waits now; one more may help.
            if tasks.waiting.len() > 1 {
                self.spawn_worker(tasks);
            } else {
                drop(tasks);
            }
            drop(report);
            tasks = self.lock();
        }
    }

    fn act(self: &Arc<Self>, name: &str, task: Task, records: &mut Records) -> Result<()> {
        match task {
            Task::Load { overrides, .. } => self.load_every(name, &overrides, records),
            Task::Poll => self.poll_all(name, records),
            Task::Unload { .. } => {
                self.unload_every(name, records);
                Ok(())
            }
            Task::Reconcile { so_far, circle } => {
                all([so_far, self.reconcile_all(name, circle.as_ref(), records)])
            }
        }
    }
}

//! The worker threads: some fetch, some load, and all exist only while there is work.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;

use nereid_backend_api::{Error, Result};

use super::LifeCycle;
use super::dependents::DeferredOutcome;
use super::fetch::FetchOutcome;
use super::members::MemberLoads;
use super::records::{Records, all};
use super::tasks::{CAPACITY, Done, Job, LoadReason, Stage, Task, Tasks};
use crate::source::Overrides;
use crate::spec::ModelId;

impl LifeCycle {
    /// Queues a task for the worker threads.
    pub(crate) fn submit(self: &Arc<Self>, name: String, task: Task, done: Done) {
        self.submit_all([(name, task, done)]);
    }

    /// Queues tasks before any of them starts, so that a model waits for its members in any order.
    pub(crate) fn submit_all(self: &Arc<Self>, new: impl IntoIterator<Item = (String, Task, Done)>) {
        let mut tasks = self.lock();
        let mut refused = Vec::new();
        for (name, task, done) in new {
            if tasks.closed {
                refused.push((done, shutting_down()));
            } else if tasks.len() >= CAPACITY {
                let error = Error::unavailable(format!("{CAPACITY} loads and unloads are already queued"));
                refused.push((done, error));
            } else {
                if matches!(task, Task::Load { .. }) {
                    tasks.dependencies.request(&name);
                }
                tasks.push(Job { name, task, after: BTreeSet::new(), done });
            }
        }
        self.spawn_workers(tasks, None);
        refused.into_iter().for_each(|(done, error)| done(Err(error)));
    }

    /// Starts a thread for each stage that has more to do than the calling thread, which continues with `own`. Every thread
    /// that takes a job does this, too.
    pub(super) fn spawn_workers(self: &Arc<Self>, mut tasks: MutexGuard<'_, Tasks>, own: Option<Stage>) {
        for (stage, limit) in [(Stage::Fetch, self.limits.fetches), (Stage::Load, self.limits.loads)] {
            let others = usize::from(own == Some(stage));
            let threads = tasks.threads.of(stage);
            if *threads < limit.max(1) {
                *threads += 1;
                if tasks.backlog(stage) <= others || !self.spawn_worker(stage) {
                    *tasks.threads.of(stage) -= 1;
                }
            }
        }
        let mut stranded = Vec::new();
        for stage in [Stage::Fetch, Stage::Load] {
            if *tasks.threads.of(stage) == 0 {
                stranded.extend(tasks.give_up_last(stage));
            }
        }
        drop(tasks);
        for job in stranded {
            (job.done)(Err(Error::internal("cannot start a thread to load models")));
        }
    }

    /// Ends what [`Tasks::take_with_users`] began.
    pub(super) fn give_back(self: &Arc<Self>, name: &str, records: Records) {
        let mut tasks = self.lock();
        tasks.end(name);
        if !records.is_empty() {
            tasks.known.insert(name.to_owned(), records);
        }
        self.spawn_workers(tasks, None);
    }

    fn spawn_worker(self: &Arc<Self>, stage: Stage) -> bool {
        let this = Arc::clone(self);
        let (name, work): (_, fn(Arc<Self>)) = match stage {
            Stage::Fetch => ("nereid-fetch", Self::work_on_fetches),
            Stage::Load => ("nereid-load", Self::work_on_loads),
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(move || work(this));
        spawned.inspect_err(|error| tracing::error!("cannot start a thread to load models: {error}")).is_ok()
    }

    /// Cancels fetches that wait for their source, because the server is stopping. Everything else continues.
    pub(crate) fn cancel_fetches(&self) {
        self.lock().cancel_fetches();
        self.catalog().release();
    }

    /// Whether the server is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Stops taking tasks, refuses the queued ones, and cancels the fetches in progress.
    pub(crate) fn close(&self) {
        let jobs = self.lock().close();
        for job in jobs {
            (job.done)(Err(shutting_down()));
        }
    }

    /// The models that were loaded, or failed to load, and not unloaded since.
    pub(crate) fn known(&self) -> Vec<String> {
        self.lock().known.keys().cloned().collect()
    }

    /// The names that have no queued or running task.
    pub(crate) fn idle(&self, mut names: BTreeSet<String>) -> BTreeSet<String> {
        let tasks = self.lock();
        names.retain(|name| !tasks.is_concerned(name));
        names
    }

    /// Whether a change was seen that waits for the next poll to confirm it.
    pub(crate) fn awaits_poll(&self) -> bool {
        self.lock().known.values().any(Records::awaits_poll)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of a fetching thread.
    fn work_on_fetches(self: Arc<Self>) {
        loop {
            let mut tasks = self.lock();
            let Some((job, mut records, cancelled)) = tasks.next_to_fetch() else {
                tasks.threads.fetch -= 1;
                return;
            };
            self.spawn_workers(tasks, None);
            let fetched = self.fetch_for(&job.name, &job.task, &mut records, cancelled);
            let mut tasks = self.lock();
            tasks.end_fetch(&job.name);
            if tasks.closed {
                tasks.end(&job.name);
                drop(tasks);
                (job.done)(Err(shutting_down()));
                continue;
            }
            match fetched {
                Ok(fetched) if fetched.iter().any(FetchOutcome::needs_work) => {
                    tasks.push_fetched(job, records, fetched);
                    self.spawn_workers(tasks, Some(Stage::Fetch));
                }
                Ok(fetched) => {
                    drop(tasks);
                    let (overrides, reason) = (Overrides::default(), LoadReason::Request);
                    let outcome = self.apply_fetched(fetched, &overrides, reason, &mut records);
                    self.finish(job, records, outcome, false, Stage::Fetch);
                }
                Err(error) => {
                    drop(tasks);
                    self.finish(job, records, Err(error), false, Stage::Fetch);
                }
            }
        }
    }

    /// The main loop of a loading thread.
    fn work_on_loads(self: Arc<Self>) {
        loop {
            let mut tasks = self.lock();
            let Some((job, records, fetched)) = tasks.next_to_do() else {
                tasks.threads.load -= 1;
                return;
            };
            self.spawn_workers(tasks, None);
            let Some((mut job, mut records)) = self.load_members_first(job, records) else { continue };
            let before = self.served_of_all(&job.name);
            let outcome = self.act(&job.name, &mut job.task, fetched, &mut records);
            let has_changed = self.served_of_all(&job.name) != before;
            self.finish(job, records, outcome, has_changed, Stage::Load);
        }
    }

    fn act(
        self: &Arc<Self>,
        name: &str,
        task: &mut Task,
        fetched: Vec<FetchOutcome>,
        records: &mut Records,
    ) -> Result<()> {
        match task {
            Task::Load { overrides, reason, .. } => self.apply_fetched(fetched, overrides, *reason, records),
            Task::Poll { .. } => {
                self.apply_fetched(fetched, &Overrides::default(), LoadReason::Start, records)
            }
            Task::Unload { scope, .. } => {
                self.unload_every(name, scope, records);
                Ok(())
            }
            Task::Resize { id, version, instances } => self.resize(id, *version, *instances),
            Task::Reconcile { so_far, circle, members } => {
                let so_far = std::mem::replace(so_far, Ok(()));
                all([so_far, self.reconcile_all(name, circle.as_ref(), *members, records)])
            }
        }
    }

    /// A job is done: what follows from it is submitted, and its outcome reported when that is done, too.
    fn finish(
        self: &Arc<Self>,
        job: Job,
        records: Records,
        outcome: Result<()>,
        has_changed: bool,
        stage: Stage,
    ) {
        let Job { name, task, done, .. } = job;
        let loads_members = matches!(task, Task::Load { with_members: true, .. });
        let member_loads = MemberLoads::of(&task, self.table().load().ready_of(&name).next().is_some());
        let (is_unload, with_members) = match task {
            Task::Unload { with_members, .. } => (true, with_members),
            _ => (false, false),
        };
        let members = self.members_of_all(&name, &records);
        let needs_reconciling = records.needs_reconciling();

        let mut tasks = self.lock();
        tasks.end(&name);
        let members_before = tasks.dependencies.members(&name);
        tasks.dependencies.set(&name, members);
        if is_unload {
            tasks.dependencies.request(&name);
            if has_changed {
                self.release_users(&tasks, &name);
            }
        }
        if !records.is_empty() {
            tasks.known.insert(name.clone(), records);
        }
        let mut report = None;
        if needs_reconciling && !tasks.closed {
            tasks.reconcile_after_members(&name, outcome, member_loads, loads_members, done);
        } else {
            let deferred = DeferredOutcome::new(done, outcome);
            if !tasks.closed {
                let users: Vec<_> = tasks.dependencies.users(&name).cloned().collect();
                for user in users.iter().filter(|_| has_changed) {
                    tasks.reconcile(user, deferred.part());
                }
                if is_unload {
                    tasks.unload_left_over(&members_before, with_members, &deferred);
                }
            }
            report = Some(deferred);
        }
        self.spawn_workers(tasks, Some(stage));
        drop(report);
        self.forget_if_many();
    }

    /// Models that lose a member by a client's unload no longer count for the server's readiness: the unload implies theirs.
    fn release_users(&self, tasks: &Tasks, member: &str) {
        let users = tasks.dependencies.all_users(member);
        if users.is_empty() {
            return;
        }
        self.change(|table| {
            for name in &users {
                let namespaces: Vec<_> = table.namespaces(name).cloned().collect();
                for namespace in namespaces {
                    table.release(&ModelId { name: name.clone(), namespace });
                }
            }
        });
    }

    /// The loads in progress and the number of those that wait, for the log.
    pub(crate) fn progress(&self) -> String {
        let tasks = self.lock();
        let (running, waiting) = tasks.progress();
        let running: Vec<_> = running.into_iter().map(|name| format!("'{name}'")).collect();
        let waiting = match waiting {
            0 => String::new(),
            count => format!("; {count} more are waiting"),
        };
        format!("still loading {}{waiting}", running.join(", "))
    }
}

pub(super) fn shutting_down() -> Error {
    Error::unavailable("the server is stopping")
}

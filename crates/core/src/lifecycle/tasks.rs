//! Who does what, when: tasks of one model one after the other, those of different models side by side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;

use nereid_backend_api::{Error, Result};

use super::LifeCycle;
use super::family::Family;
use crate::source::Overrides;

/// Tells how a task ended.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// What is to be done with the models of a name.
pub(crate) enum Task {
    /// Load it, or load it anew if it has changed or something is overridden.
    Load(Overrides),
    /// Load it anew if it has changed and the change was there already at the last look; unload it if it has gone.
    Look,
    /// Unload it.
    Unload,
}

/// So many tasks may wait.
const TASKS: usize = 10_000;

#[derive(Default)]
pub(super) struct Tasks {
    waiting: VecDeque<(String, Task, Done)>,
    /// Models that a thread has a task of.
    busy: BTreeSet<String>,
    threads: usize,
    closed: bool,
    /// What is known of models that were loaded, or tried.
    known: BTreeMap<String, Family>,
}

impl LifeCycle {
    /// Has a task done, on another thread.
    pub(crate) fn submit(self: &Arc<Self>, name: String, task: Task, done: Done) {
        let mut tasks = self.lock();
        let refused = if tasks.closed {
            Some(Error::unavailable("the server is shutting down"))
        } else if tasks.waiting.len() >= TASKS {
            Some(Error::unavailable(format!("{TASKS} loads and unloads are waiting already")))
        } else {
            None
        };
        if let Some(error) = refused {
            drop(tasks);
            return done(Err(error));
        }
        tasks.waiting.push_back((name, task, done));
        if tasks.threads < self.threads {
            tasks.threads += 1;
            drop(tasks);
            let this = Arc::clone(self);
            let spawned = thread::Builder::new().name("nereid-load".into()).spawn(move || this.work());
            if let Err(error) = spawned {
                tracing::error!("cannot start a thread to load models: {error}");
                let mut tasks = self.lock();
                tasks.threads -= 1;
                if tasks.threads == 0
                    && let Some((_, _, done)) = tasks.waiting.pop_back()
                {
                    drop(tasks);
                    done(Err(Error::internal(format!("cannot start a thread to load models: {error}"))));
                }
            }
        }
    }

    /// Takes no further tasks; those that wait are not done.
    pub(crate) fn close(&self) {
        let mut tasks = self.lock();
        tasks.closed = true;
        let waiting = std::mem::take(&mut tasks.waiting);
        drop(tasks);
        for (_, _, done) in waiting {
            done(Err(Error::unavailable("the server is shutting down")));
        }
    }

    /// The models that were loaded, or tried, and not unloaded since.
    pub(crate) fn known(&self) -> Vec<String> {
        self.lock().known.keys().cloned().collect()
    }

    /// Those of the names that no task is waiting for or being done with.
    pub(crate) fn idle(&self, mut names: BTreeSet<String>) -> BTreeSet<String> {
        let tasks = self.lock();
        for name in tasks.waiting.iter().map(|(name, ..)| name).chain(&tasks.busy) {
            names.remove(name);
        }
        names
    }

    /// Whether a look has seen a change that is taken up when another one has seen the same.
    pub(crate) fn awaits_look(&self) -> bool {
        self.lock().known.values().any(Family::awaits_look)
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life: does tasks as long as there are any of a model that no other thread has one of.
    fn work(self: Arc<Self>) {
        let mut tasks = self.lock();
        loop {
            let next = tasks.waiting.iter().position(|(name, ..)| !tasks.busy.contains(name));
            let Some((name, task, done)) = next.and_then(|index| tasks.waiting.remove(index)) else {
                tasks.threads -= 1;
                return;
            };
            tasks.busy.insert(name.clone());
            let mut family = tasks.known.remove(&name).unwrap_or_default();
            drop(tasks);
            let outcome = match task {
                Task::Load(overrides) => self.load_all(&name, &overrides, &mut family),
                Task::Look => self.look_at_all(&name, &mut family),
                Task::Unload => {
                    self.unload_every(&name, &mut family);
                    Ok(())
                }
            };
            tasks = self.lock();
            tasks.busy.remove(&name);
            if !family.is_empty() {
                tasks.known.insert(name, family);
            }
            drop(tasks);
            done(outcome);
            tasks = self.lock();
        }
    }
}

//! Idle processes, kept for a while for the next model to try.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nereid_worker::Process;

/// How long a process stays idle: other models of the same start or poll arrive sooner.
const IDLE: Duration = Duration::from_secs(10);

/// The most idle processes kept.
const MOST: usize = 8;

/// The idle processes. They end when this is dropped.
#[derive(Default)]
pub(crate) struct Idle(Mutex<IdleProcesses>);

#[derive(Default)]
struct IdleProcesses {
    /// The idle processes, each with the time at which it became idle.
    processes: Vec<(Arc<Process>, Instant)>,
    /// Whether a thread is running that ends processes idle for too long.
    is_watched: bool,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, IdleProcesses> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a process that is still alive.
    pub(crate) fn take(&self) -> Option<Arc<Process>> {
        let mut waiting = self.lock();
        while let Some((process, _)) = waiting.processes.pop() {
            if process.ended().is_none() {
                return Some(process);
            }
        }
        None
    }

    /// Keeps a process for a while.
    pub(crate) fn put(self: &Arc<Self>, process: Arc<Process>) {
        let mut waiting = self.lock();
        if waiting.processes.len() == MOST {
            return;
        }
        waiting.processes.push((process, Instant::now()));
        if mem::replace(&mut waiting.is_watched, true) {
            return;
        }
        let idle = Arc::downgrade(self);
        let watching = thread::Builder::new().name("nereid-trials".to_owned());
        if watching.spawn(move || while Self::watch(&idle) {}).is_err() {
            // Without that thread, processes end at once.
            *waiting = IdleProcesses::default();
        }
    }

    /// Waits, then ends the processes that have been idle for too long. Returns whether any are left.
    fn watch(idle: &Weak<Self>) -> bool {
        thread::sleep(IDLE);
        let Some(idle) = idle.upgrade() else { return false };
        let mut waiting = idle.lock();
        let now = Instant::now();
        let is_old = |(_, since): &mut (_, Instant)| now.duration_since(*since) >= IDLE;
        let old: Vec<_> = waiting.processes.extract_if(.., is_old).collect();
        waiting.is_watched = !waiting.processes.is_empty();
        let is_watched = waiting.is_watched;
        drop(waiting);
        drop(old);
        is_watched
    }
}

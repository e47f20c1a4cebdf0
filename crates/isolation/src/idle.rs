//! Processes that wait for another model to try, for a while.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nereid_worker::Process;

/// How long a process waits: other models of the same start or poll come sooner.
const IDLE: Duration = Duration::from_secs(10);

/// Most processes that wait.
const MOST: usize = 8;

/// The processes that wait. They end when this is dropped.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Each with since when.
    processes: Vec<(Arc<Process>, Instant)>,
    /// Whether a thread ends those that have waited long enough.
    is_watched: bool,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that lives.
    pub(crate) fn take(&self) -> Option<Arc<Process>> {
        let mut waiting = self.lock();
        while let Some((process, _)) = waiting.processes.pop() {
            if process.ended().is_none() {
                return Some(process);
            }
        }
        None
    }

    /// Keeps one for a while.
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
            // Without a thread, none waits.
            *waiting = Waiting::default();
        }
    }

    /// Waits, and ends those that have waited long enough. Whether any are left.
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

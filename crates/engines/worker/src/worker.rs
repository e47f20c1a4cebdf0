//! Keeps one process running: restarts it when it dies, with growing pauses if it keeps dying.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nereid_backend_api::{Error, Result};

use crate::process::Process;

/// The pause before the second consecutive restart; the first has none. Each further pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A process that lived this long is considered stable.
const SETTLED: Duration = Duration::from_secs(60);

/// How long a batch waits for a restart, the first time and if the process keeps dying.
const PATIENCE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(1)];

/// How long an instance whose process died leaves requests to other instances.
const RECOVERY: Duration = Duration::from_secs(5);

/// How a worker starts processes, and counts restarts.
pub trait WorkerEvents: Send + Sync {
    /// Starts a process and initialises the instance in it. `ended` is for [`Process::start`].
    ///
    /// # Errors
    /// The reason why it did not start.
    fn start(&self, ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>>;

    /// The process was started again.
    fn restarted(&self) {}

    /// The answer of [`Worker::ready`] has changed: the process has died, or it runs again.
    fn readiness_changed(&self) {}
}

/// The state of a worker.
#[derive(Clone, Debug)]
pub enum State {
    /// The process is running.
    Running(Arc<Process>),
    /// The process died, and is being restarted.
    Restarting {
        /// How it died, or why it did not start.
        reason: Arc<str>,
        /// Deaths and failed starts in a row, before this one.
        attempt: u32,
    },
    /// The worker was shut down.
    Stopped,
}

/// A process, and its successors.
pub struct Worker {
    name: String,
    events: Box<dyn WorkerEvents>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    state: State,
    /// When the current process was started.
    since: Instant,
    /// Consecutive restarts without a stable process.
    attempt: u32,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts the process of an instance with that name.
    ///
    /// # Errors
    /// The first start fails.
    pub fn start(name: &str, events: Box<dyn WorkerEvents>) -> Result<Arc<Self>> {
        let state = State::Restarting { reason: "has not started yet".into(), attempt: 0 };
        let inner = Mutex::new(Inner { state, since: Instant::now(), attempt: 0 });
        let worker = Arc::new(Self { name: name.to_owned(), events, inner, changed: Condvar::new() });
        worker.spawn()?;
        Ok(worker)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(self: &Arc<Self>) -> Result<()> {
        let worker = Arc::downgrade(self);
        let ended = move |end: &str| {
            if let Some(worker) = Weak::upgrade(&worker) {
                worker.died(end);
            }
        };
        let process = self.events.start(Box::new(ended))?;
        let mut inner = self.lock();
        if matches!(inner.state, State::Stopped) {
            drop(inner);
            return process.finish();
        }
        inner.state = State::Running(Arc::clone(&process));
        inner.since = Instant::now();
        drop(inner);
        self.changed.notify_all();
        self.events.readiness_changed();
        // It may have died before it was recorded as running.
        if let Some(end) = process.ended() {
            self.died(&end);
        }
        Ok(())
    }

    /// The process has died.
    fn died(self: &Arc<Self>, end: &str) {
        let mut inner = self.lock();
        // The first observer reports it; another process may be running by now.
        if !matches!(&inner.state, State::Running(process) if process.ended().is_some()) {
            return;
        }
        if inner.since.elapsed() >= SETTLED {
            inner.attempt = 0;
        }
        let attempt = inner.attempt;
        let process = std::mem::replace(&mut inner.state, State::Restarting { reason: end.into(), attempt });
        drop(inner);
        drop(process);
        self.events.readiness_changed();
        let worker = Arc::clone(self);
        let restarting = thread::Builder::new().name("nereid-restart".to_owned());
        if let Err(error) = restarting.spawn(move || worker.restart()) {
            tracing::error!("cannot start the process of model instance '{}' again: {error}", self.name);
        }
    }

    /// Restarts the process until it runs.
    fn restart(self: Arc<Self>) {
        loop {
            let mut inner = self.lock();
            let pause = pause(inner.attempt);
            inner.attempt = inner.attempt.saturating_add(1);
            let stopped = |inner: &mut Inner| !matches!(inner.state, State::Stopped);
            let waited = self.changed.wait_timeout_while(inner, pause, stopped);
            let inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            if matches!(inner.state, State::Stopped) {
                return;
            }
            drop(inner);
            tracing::info!("starting the process of model instance '{}' again", self.name);
            self.events.restarted();
            let Err(error) = self.spawn() else { return };
            let mut inner = self.lock();
            if matches!(inner.state, State::Stopped) {
                return;
            }
            let attempt = inner.attempt;
            tracing::error!(
                "the process of model instance '{}' did not start again: {error}; next attempt in {} s",
                self.name,
                self::pause(attempt).as_secs_f32()
            );
            inner.state = State::Restarting { reason: error.to_string().into(), attempt };
        }
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.lock().state.clone()
    }

    /// The running process. Waits a while for a restart.
    ///
    /// # Errors
    /// No process is running; the error has the reason.
    pub(crate) fn running(self: &Arc<Self>) -> Result<Arc<Process>> {
        self.notice();
        let inner = self.lock();
        let patience = match &inner.state {
            State::Running(process) => return Ok(Arc::clone(process)),
            State::Restarting { attempt: 0, .. } => PATIENCE[0],
            State::Restarting { .. } => PATIENCE[1],
            State::Stopped => Duration::ZERO,
        };
        self.wait(inner, patience);
        self.check()
    }

    /// The process, if it is running now.
    pub(crate) fn running_now(self: &Arc<Self>) -> Option<Arc<Process>> {
        self.notice();
        match &self.lock().state {
            State::Running(process) => Some(Arc::clone(process)),
            State::Restarting { .. } | State::Stopped => None,
        }
    }

    fn check(&self) -> Result<Arc<Process>> {
        match &self.lock().state {
            State::Running(process) => Ok(Arc::clone(process)),
            State::Restarting { reason, attempt } => {
                let message =
                    format!("the process of model instance '{}' {reason}; it starts again", self.name);
                Err(Error::unavailable(message).with_retry_after(pause(*attempt)))
            }
            State::Stopped => Err(Error::unavailable(format!("model instance '{}' has ended", self.name))),
        }
    }

    /// Waits a while for a restart.
    pub(crate) fn await_restart(self: &Arc<Self>) {
        self.notice();
        self.wait(self.lock(), RECOVERY);
    }

    /// Checks whether the process has died before its supervisor reports that.
    fn notice(self: &Arc<Self>) {
        let end = match &self.lock().state {
            State::Running(process) => process.ended(),
            State::Restarting { .. } | State::Stopped => None,
        };
        if let Some(end) = end {
            self.died(&end);
        }
    }

    fn wait(&self, inner: MutexGuard<'_, Inner>, patience: Duration) {
        let restarting = |inner: &mut Inner| matches!(inner.state, State::Restarting { .. });
        drop(self.changed.wait_timeout_while(inner, patience, restarting));
    }

    /// Whether the process is running and, if `ask`, reports that it is ready.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn ready(&self, ask: bool) -> Result<()> {
        let process = self.check()?;
        if ask { process.ready() } else { Ok(()) }
    }

    fn is_stopped(&self) -> bool {
        matches!(self.lock().state, State::Stopped)
    }

    /// Ends the process without a restart.
    pub fn stop(&self) {
        let state = std::mem::replace(&mut self.lock().state, State::Stopped);
        self.changed.notify_all();
        if let State::Running(process) = state
            && let Err(error) = process.finish()
        {
            tracing::error!("model instance '{}' was not finalised: {error}", self.name);
        }
    }
}

/// The workers of a model's instances. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Workers(Arc<Mutex<Vec<Weak<Worker>>>>);

impl Workers {
    /// Adds a worker. It is removed when it is dropped.
    pub fn add(&self, worker: &Arc<Worker>) {
        let mut workers = self.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(worker));
    }

    /// The current workers. Those that were stopped are not among them, though their instances may still be ending.
    pub fn all(&self) -> Vec<Arc<Worker>> {
        let workers = self.lock().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        workers.into_iter().filter(|worker| !worker.is_stopped()).collect()
    }

    /// A running process.
    pub(crate) fn running_now(&self) -> Option<Arc<Process>> {
        self.all().iter().find_map(Worker::running_now)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Worker>>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause(attempt: u32) -> Duration {
    let Some(doublings) = attempt.checked_sub(1) else { return Duration::ZERO };
    FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings.min(20)).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let pauses: Vec<_> = (0..9).map(|attempt| pause(attempt).as_millis()).collect();
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    /// Starts nothing.
    struct Nothing;

    impl WorkerEvents for Nothing {
        fn start(&self, _ended: Box<dyn FnOnce(&str) + Send>) -> Result<Arc<Process>> {
            Err(Error::internal("there is no process"))
        }
    }

    #[test]
    fn requests_may_be_repeated_after_the_pause_before_a_restart() {
        for (attempt, seconds) in [(0, 1), (1, 1), (2, 1), (3, 2), (9, 30)] {
            let state = State::Restarting { reason: "was killed".into(), attempt };
            let inner = Mutex::new(Inner { state, since: Instant::now(), attempt });
            let (name, events, changed) = ("m_0".into(), Box::new(Nothing), Condvar::new());
            let error = Worker { name, events, inner, changed }.ready(false).unwrap_err();
            assert_eq!(error.retry_after().map(|pause| pause.get()), Some(seconds), "{attempt}");
            assert!(error.message().contains("'m_0' was killed; it starts again"), "{error}");
        }
    }
}

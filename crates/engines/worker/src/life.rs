//! Whether a process lives, why it ended, and how it is killed.

use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use std::os::unix::process::ExitStatusExt;

use nereid_backend_api::Error;
use rustix::process::{Pid, Signal, kill_process_group};

/// A process that was killed ends within this, or the system is in trouble.
const KILLED: Duration = Duration::from_secs(10);

/// The life of one process, shared by those who work with it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Set while the process lives and was not waited for.
    pid: Option<Pid>,
    /// Why the server killed it.
    verdict: Option<String>,
    /// How it ended.
    end: Option<Arc<str>>,
    /// The server has asked it to end.
    leaving: bool,
}

impl Life {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, pid: Pid) {
        self.lock().pid = Some(pid);
    }

    /// The server asks it to end: that is no failure.
    pub(crate) fn leave(&self) {
        self.lock().leaving = true;
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Kills it, and what it has started. The first reason counts.
    pub(crate) fn kill(&self, why: impl Into<String>) {
        let mut state = self.lock();
        if let Some(pid) = state.pid {
            state.verdict.get_or_insert_with(|| why.into());
            // Fails if it has ended by itself.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// It has ended, and may be waited for: what it has started is killed.
    pub(crate) fn bury(&self) {
        let mut state = self.lock();
        if let Some(pid) = state.pid.take() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// How it ended, in words.
    pub(crate) fn end(&self, status: Option<ExitStatus>) -> Arc<str> {
        let mut state = self.lock();
        let words = match state.verdict.take() {
            Some(verdict) => verdict,
            None => status.map_or_else(|| "has ended".to_owned(), describe),
        };
        let end = Arc::clone(state.end.get_or_insert_with(|| words.into()));
        drop(state);
        self.ended.notify_all();
        end
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<Arc<str>> {
        self.lock().end.clone()
    }

    /// How it ended, once it has; `None` if it lives on.
    pub(crate) fn wait(&self, patience: Duration) -> Option<Arc<str>> {
        let waited = self.ended.wait_timeout_while(self.lock(), patience, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end.clone()
    }

    /// Kills it and waits for its end, which is described.
    pub(crate) fn kill_and_wait(&self, why: &str) -> Arc<str> {
        self.kill(why);
        self.wait(KILLED).unwrap_or_else(|| why.into())
    }
}

/// The error of what a process had to do when it ended.
pub(crate) fn lost(name: &str, end: &str) -> Error {
    Error::internal(format!("the process of model instance '{name}' {end}"))
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}{}", name(signal)),
        (None, None) => "has ended".to_owned(),
    }
}

/// The names of the signals that processes die of.
fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction)",
        6 => " (aborted)",
        7 => " (bus error)",
        8 => " (arithmetic error)",
        9 => " (killed, perhaps because memory ran out)",
        11 => " (segmentation fault)",
        15 => " (terminated)",
        _ => "",
    }
}

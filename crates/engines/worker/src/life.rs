//! Whether a process lives, why it ended, and how it is killed.

use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use std::os::unix::process::ExitStatusExt;

use nereid_backend_api::Error;
use rustix::process::{Pid, Signal, kill_process_group};

/// The limit for a process to exit after it closed a connection.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// Why a process that closed a connection and did not exit was killed.
pub(crate) const CLOSED: &str = "has closed its connection to the server";

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
    /// The server is ending the process.
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

    /// The id of the process while it lives.
    pub(crate) fn id(&self) -> Option<u32> {
        u32::try_from(self.lock().pid?.as_raw_nonzero().get()).ok()
    }

    /// Marks the process as ending by the server's will, which is no failure.
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

    /// Resumes a process that a signal has stopped, so that it can end.
    pub(crate) fn resume(&self) {
        if let Some(pid) = self.lock().pid {
            // Fails if it has ended by itself.
            let _ = kill_process_group(pid, Signal::CONT);
        }
    }

    /// Kills what a process has started that has ended and was not waited for.
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
        (None, Some(signal)) => format!("was killed by signal {signal}{}", describe_signal(signal)),
        (None, None) => "has ended".to_owned(),
    }
}

/// The name of a signal and its usual reason, in brackets; empty for signals without a name.
fn describe_signal(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL: illegal instruction",
        5 => "SIGTRAP",
        6 => "SIGABRT: aborted",
        7 => "SIGBUS: bus error",
        8 => "SIGFPE: arithmetic error",
        9 => "SIGKILL: killed, perhaps because memory ran out",
        10 => "SIGUSR1",
        11 => "SIGSEGV: segmentation fault",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM: terminated",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU: limit of processor time",
        25 => "SIGXFSZ: limit of a file's size",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        29 => "SIGIO",
        30 => "SIGPWR",
        31 => "SIGSYS: forbidden system call",
        _ => return String::new(),
    };
    format!(" ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_by_a_signal_names_the_signal() {
        for (signal, expected) in [
            (11, "was killed by signal 11 (SIGSEGV: segmentation fault)"),
            (9, "was killed by signal 9 (SIGKILL: killed, perhaps because memory ran out)"),
            (6, "was killed by signal 6 (SIGABRT: aborted)"),
            (31, "was killed by signal 31 (SIGSYS: forbidden system call)"),
            (1, "was killed by signal 1 (SIGHUP)"),
            (13, "was killed by signal 13 (SIGPIPE)"),
            (40, "was killed by signal 40"),
        ] {
            assert_eq!(describe(ExitStatus::from_raw(signal)), expected);
        }
        assert_eq!(describe(ExitStatus::from_raw(7 << 8)), "exited with status 7");
    }
}

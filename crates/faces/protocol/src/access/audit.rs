//! The audit of requests: who changed what, and who was refused.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Action, Denied, Identity};

/// Records events. Does not block.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Records an event.
    fn record(&self, event: &AuditEvent<'_>);
}

/// A change by a client, or the refusal of a request.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// The sender.
    pub caller: &'a Identity,
    /// The permitted or refused action.
    pub action: Action,
    /// The model, or the region of shared memory, if the action concerns a single one.
    pub subject: Option<&'a str>,
    /// The protocol and the target of a change.
    pub request: Option<&'a str>,
    /// How it ended.
    pub outcome: AuditOutcome<'a>,
}

/// The outcome of an audited request.
#[derive(Clone, Copy, Debug)]
pub enum AuditOutcome<'a> {
    /// The change was made.
    Done,
    /// The change was permitted and failed, with this status.
    Failed(&'a str),
    /// The client left before the end. The change may have been made.
    Abandoned,
    /// The sender may not do this.
    Refused(&'a Denied),
}

/// A request that is audited if it turns out to change something and is permitted. Refusals are recorded where they are decided.
#[derive(Debug)]
pub struct AuditedRequest {
    audit: Arc<dyn Audit>,
    caller: Identity,
    request: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    action: Action,
    subject: Option<String>,
    is_over: bool,
}

impl AuditedRequest {
    /// Begins the audit of a request.
    pub(super) fn new(audit: Arc<dyn Audit>, caller: Identity, action: Action, request: String) -> Self {
        let state = Mutex::new(State { action, subject: None, is_over: false });
        Self { audit, caller, request, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the request does, and with which model or region.
    pub fn note(&self, action: Action, subject: Option<&str>) {
        let mut state = self.state();
        state.action = action;
        if let Some(subject) = subject {
            state.subject = Some(subject.to_owned());
        }
    }

    /// The request was refused.
    pub fn refused(&self) {
        self.state().is_over = true;
    }

    /// The request was answered; with this status, if it failed.
    pub fn answered(&self, failure: Option<&str>) {
        self.end(failure.map_or(AuditOutcome::Done, AuditOutcome::Failed));
    }

    fn end(&self, outcome: AuditOutcome<'_>) {
        let mut state = self.state();
        if !state.is_over && state.action.is_change() {
            let (action, subject) = (state.action, state.subject.as_deref());
            let request = Some(self.request.as_str());
            self.audit.record(&AuditEvent { caller: &self.caller, action, subject, request, outcome });
        }
        state.is_over = true;
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        self.end(AuditOutcome::Abandoned);
    }
}

//! The audit: who changed what, who was refused, and what the server decided by itself.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Action, Denied, Identity};

/// Records events. Does not block.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Records an event.
    fn record(&self, event: &AuditEvent<'_>);
}

/// A change, or the refusal of a request.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// The sender; `None` if the server itself decided on the change.
    pub caller: Option<&'a Identity>,
    /// The permitted or refused action.
    pub action: Action,
    /// The model, or the region of shared memory, if the action concerns a single one.
    pub subject: Option<&'a str>,
    /// The protocol and the target of a change.
    pub request: Option<&'a str>,
    /// A description of the change, unless the request is enough.
    pub reason: Option<&'a str>,
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
    reason: Option<String>,
    is_over: bool,
}

impl AuditedRequest {
    /// Begins the audit of a request.
    pub(super) fn new(audit: Arc<dyn Audit>, caller: Identity, action: Action, request: String) -> Self {
        let state = Mutex::new(State { action, subject: None, reason: None, is_over: false });
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

    /// Notes what the change is.
    pub fn explain(&self, reason: String) {
        self.state().reason = Some(reason);
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
            self.audit.record(&AuditEvent {
                caller: Some(&self.caller),
                action: state.action,
                subject: state.subject.as_deref(),
                request: Some(&self.request),
                reason: state.reason.as_deref(),
                outcome,
            });
        }
        state.is_over = true;
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        self.end(AuditOutcome::Abandoned);
    }
}

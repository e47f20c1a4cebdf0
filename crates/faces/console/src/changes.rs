//! The last changes by clients, over all protocols, and by the server itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_protocol::{Audit, AuditEvent, AuditOutcome, Identity};
use serde::Serialize;

use crate::sampling::unix_ms;

/// Changes that are kept.
const MAX_CHANGES: usize = 100;
/// Bytes of a text of a client.
const MAX_TEXT: usize = 256;

/// Keeps the last changes, and passes all events on to the audit log, if there is one.
#[derive(Debug, Default)]
pub struct ClientChanges {
    log: Option<Arc<dyn Audit>>,
    changes: Mutex<VecDeque<Change>>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// Milliseconds since the Unix epoch.
    at: u64,
    /// Whether the server itself decided on it.
    automatic: bool,
    /// The name of the client, if it is known.
    principal: Option<String>,
    /// The number of the user at the other end of a Unix socket.
    user: Option<u32>,
    address: Option<String>,
    action: &'static str,
    /// The model, if it is about one.
    subject: Option<String>,
    request: Option<String>,
    /// `done`, `failed` or `abandoned`.
    outcome: &'static str,
    /// The status of a change that failed.
    status: Option<String>,
    /// A description of the change, unless the request is enough.
    reason: Option<String>,
}

impl ClientChanges {
    /// No change yet.
    pub fn new(log: Option<Arc<dyn Audit>>) -> Self {
        Self { log, changes: Mutex::default() }
    }

    /// The changes, oldest first.
    pub(crate) fn last(&self) -> Vec<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Audit for ClientChanges {
    fn record(&self, event: &AuditEvent<'_>) {
        let (outcome, status) = match event.outcome {
            AuditOutcome::Done => ("done", None),
            AuditOutcome::Failed(status) => ("failed", Some(status)),
            AuditOutcome::Abandoned => ("abandoned", None),
            AuditOutcome::Refused(_) => ("", None),
        };
        if !outcome.is_empty() {
            let caller = event.caller;
            let principal = caller.and_then(|caller| caller.principal.as_ref());
            let change = Change {
                at: unix_ms(),
                automatic: caller.is_none(),
                principal: principal.map(|principal| shortened(principal.name())),
                user: caller.and_then(Identity::user),
                address: caller.and_then(Identity::address).map(|address| address.to_string()),
                action: event.action.name(),
                subject: event.subject.map(shortened),
                request: event.request.map(shortened),
                outcome,
                status: status.map(shortened),
                reason: event.reason.map(shortened),
            };
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            if changes.len() == MAX_CHANGES {
                changes.pop_front();
            }
            changes.push_back(change);
        }
        if let Some(log) = &self.log {
            log.record(event);
        }
    }
}

fn shortened(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use nereid_protocol::{Action, Denied};

    use super::*;

    /// Counts events.
    #[derive(Debug, Default)]
    struct Count(Mutex<usize>);

    impl Audit for Count {
        fn record(&self, _: &AuditEvent<'_>) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn changes_are_kept_and_every_event_reaches_the_log() {
        let log = Arc::new(Count::default());
        let changes = ClientChanges::new(Some(Arc::clone(&log) as _));
        let (caller, long) = (Identity::default(), "é".repeat(MAX_TEXT));
        let denied = Denied::Forbidden("no".into());
        let event = AuditEvent {
            caller: Some(&caller),
            action: Action::Load,
            subject: Some(&long),
            request: None,
            reason: None,
            outcome: AuditOutcome::Refused(&denied),
        };
        changes.record(&event);
        assert_eq!(changes.last(), []);
        for number in 0..MAX_CHANGES + 3 {
            let outcome = if number % 2 == 0 { AuditOutcome::Done } else { AuditOutcome::Failed("404") };
            changes.record(&AuditEvent { outcome, ..event });
        }
        let last = changes.last();
        assert_eq!((last.len(), *log.0.lock().unwrap()), (MAX_CHANGES, MAX_CHANGES + 4));
        assert_eq!((last[0].outcome, last[0].status.as_deref()), ("failed", Some("404")));
        assert_eq!(last[0].subject.as_deref(), Some(&*"é".repeat(MAX_TEXT / 2)));
        assert!(!last[0].automatic);
        let outcome = AuditOutcome::Done;
        changes.record(&AuditEvent { caller: None, reason: Some("withdrawn"), outcome, ..event });
        let last = changes.last().pop().unwrap();
        assert_eq!((last.automatic, last.reason.as_deref()), (true, Some("withdrawn")));
    }
}

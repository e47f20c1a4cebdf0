//! A line of the audit log.

use std::net::IpAddr;

use nereid_protocol::{AuditEvent, AuditOutcome, Denied, Identity};
use serde::Serialize;
use time::OffsetDateTime;

use crate::key::id_digits;

/// The longest text of a client's in a line, in characters.
const MAX_TEXT: usize = 256;

/// A line. docs/security.md describes its members.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    time: String,
    action: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    automatic: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
}

impl<'a> Line<'a> {
    /// The line of an event at this time.
    pub(super) fn of(event: &AuditEvent<'a>) -> Self {
        let (outcome, status, reason) = match event.outcome {
            AuditOutcome::Done => ("done", None, event.reason.map(shortened)),
            AuditOutcome::Failed(status) => ("failed", Some(status), event.reason.map(shortened)),
            AuditOutcome::Abandoned => ("abandoned", None, event.reason.map(shortened)),
            AuditOutcome::Refused(denied) => ("refused", None, Some(reason(denied))),
        };
        let caller = event.caller;
        let key = caller.and_then(|it| it.authenticated()).and_then(|(_, credential)| credential);
        let principal = caller.and_then(|caller| caller.principal.as_ref());
        Self {
            time: time(OffsetDateTime::now_utc()),
            action: event.action.name(),
            outcome,
            status,
            reason,
            subject: event.subject.map(shortened),
            request: event.request.map(shortened),
            automatic: caller.is_none(),
            principal: principal.map(|principal| shortened(principal.name())),
            key: key.map(id_digits),
            user: caller.and_then(Identity::user),
            address: caller.and_then(Identity::address),
        }
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The line that stands for refusals that were not written.
pub(super) fn omitted(count: u64) -> String {
    let time = time(OffsetDateTime::now_utc());
    serde_json::json!({ "time": time, "outcome": "omitted", "refusals": count }).to_string()
}

/// Why a request was refused. Says nothing secret: neither keys nor tokens are in it.
fn reason(denied: &Denied) -> String {
    match denied {
        Denied::Restricted { header } => {
            format!("the header '{header}' does not have the key of a restricted API")
        }
        Denied::Unauthenticated(reason) | Denied::Forbidden(reason) => reason.clone(),
        Denied::Exhausted(exhausted) => exhausted.message.clone(),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// A time in RFC 3339, in microseconds.
fn time(at: OffsetDateTime) -> String {
    let (date, hour, minute, second) = (at.date(), at.hour(), at.minute(), at.second());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{:06}Z", at.microsecond())
}

#[cfg(test)]
mod tests {
    use nereid_protocol::{Action, Credential, Origin, Principal};
    use serde_json::{Value, json};
    use time::{Date, Month, Time};

    use super::*;

    #[test]
    fn line_has_what_is_known_of_the_event() {
        let address = Some("192.0.2.7".parse().unwrap());
        let remote = Identity::of_connection(Origin { address, remote: true, ..Origin::default() });
        let user = Identity::of_connection(Origin { user: Some(7), ..Origin::default() });
        let named = remote.clone().with_credential(Principal::new("ann"), Credential(0x2a));
        let denied = Denied::Forbidden("this needs the right 'infer'".to_owned());
        let restricted = Denied::Restricted { header: "k".to_owned() };
        for (caller, action, subject, outcome, expected) in [
            (
                &named,
                Action::Load,
                Some("m\n"),
                AuditOutcome::Done,
                json!({"action": "load", "outcome": "done", "subject": "m\n",
                "request": "HTTP POST /x", "principal": "ann", "key": "000000000000002a", "address": "192.0.2.7"}),
            ),
            (
                &user,
                Action::ChangeLog,
                None,
                AuditOutcome::Failed("400"),
                json!({"action": "change-log", "outcome": "failed",
                "status": "400", "request": "HTTP POST /x", "user": 7}),
            ),
            (
                &remote,
                Action::Infer,
                Some("m"),
                AuditOutcome::Refused(&denied),
                json!({"action": "infer", "outcome": "refused",
                "reason": "this needs the right 'infer'", "subject": "m", "request": "HTTP POST /x", "address": "192.0.2.7"}),
            ),
            (
                &user,
                Action::Unload,
                None,
                AuditOutcome::Refused(&restricted),
                json!({"action": "unload", "outcome": "refused",
                "reason": "the header 'k' does not have the key of a restricted API", "request": "HTTP POST /x", "user": 7}),
            ),
            (
                &user,
                Action::LoadFiles,
                None,
                AuditOutcome::Abandoned,
                json!({"action": "load-files", "outcome": "abandoned",
                "request": "HTTP POST /x", "user": 7}),
            ),
        ] {
            let caller = Some(caller);
            let event =
                AuditEvent { caller, action, subject, request: Some("HTTP POST /x"), reason: None, outcome };
            let text = Line::of(&event).text();
            assert!(!text.contains('\n'));
            let mut line: Value = serde_json::from_str(&text).unwrap();
            assert!(line.as_object_mut().unwrap().remove("time").is_some_and(|time| time.is_string()));
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn a_decision_of_the_server_is_automatic() {
        let event = AuditEvent {
            caller: None,
            action: Action::ChangeRelease,
            subject: Some("m"),
            request: None,
            reason: Some("version 2 was withdrawn: broken"),
            outcome: AuditOutcome::Done,
        };
        let mut line: Value = serde_json::from_str(&Line::of(&event).text()).unwrap();
        line.as_object_mut().unwrap().remove("time");
        let expected = json!({"action": "change-release", "outcome": "done", "subject": "m", "automatic": true,
            "reason": "version 2 was withdrawn: broken"});
        assert_eq!(line, expected);
    }

    #[test]
    fn texts_of_clients_are_short() {
        let (long, caller) = ("ü".repeat(10_000), Identity::default());
        let (action, outcome) = (Action::Load, AuditOutcome::Done);
        let (subject, request) = (Some(long.as_str()), Some(long.as_str()));
        let (caller, reason) = (Some(&caller), Some(long.as_str()));
        let text = Line::of(&AuditEvent { caller, action, subject, request, reason, outcome }).text();
        assert!(text.len() < 7 * MAX_TEXT, "{}", text.len());
    }

    #[test]
    fn time_is_in_rfc_3339() {
        let date = Date::from_calendar_date(2026, Month::March, 4).unwrap();
        let at = date.with_time(Time::from_hms_micro(5, 6, 7, 89).unwrap()).assume_utc();
        assert_eq!(time(at), "2026-03-04T05:06:07.000089Z");
    }
}

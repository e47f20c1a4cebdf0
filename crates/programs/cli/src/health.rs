//! `nereid health`: checks the health of a running server over HTTP, for images without curl.
//!
//! One request on one connection, without a runtime: a container runs it every few seconds.

mod connection;

use std::fmt;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nereid_options::HealthOptions;
use nereid_terminal::{Address, key, path_segment, single_line};
use serde_json::Value;

use self::connection::{Exchange, Reply};

/// The most characters of a server's reason that are printed.
const REASON_LENGTH: usize = 500;

/// Prints nothing if the server, or the model, is ready, and otherwise why it is not.
pub(crate) fn run(options: Box<HealthOptions>) -> ExitCode {
    let limit = options.timeout();
    let (done, checked) = channel();
    // A thread of its own, because the system's resolver of names has no time limit.
    let spawned = thread::Builder::new().name("nereid-health".into()).spawn(move || {
        // The receiver is dropped at the time limit.
        let _ = done.send(check(&options));
    });
    let outcome = match spawned {
        Ok(_) => checked.recv_timeout(limit).unwrap_or_else(|_| Err(late(limit))),
        Err(error) => Err(format!("cannot start a thread: {error}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("nereid health: {}", one_line(&reason));
            ExitCode::FAILURE
        }
    }
}

fn late(limit: Duration) -> String {
    format!("no answer within {} seconds", limit.as_secs())
}

fn check(options: &HealthOptions) -> Result<(), String> {
    let (url, trust) = options.server()?;
    let target = Address::parse(&url).map_err(|reason| format!("--url is '{url}', {reason}"))?;
    let subject =
        Subject { model: options.model.as_deref(), version: options.model_version, live: options.live };
    let mut headers = options.header.clone();
    headers.extend(key()?);
    let exchange = Exchange {
        target: &target,
        path: &subject.path(),
        headers: &headers,
        trust: &trust,
        identity: options.client_identity(),
        limit: options.timeout(),
    };
    let reply = exchange.run().map_err(|reason| format!("{target}: {reason}"))?;
    verdict(&subject, &reply).map_err(|reason| format!("{target}: {reason}"))
}

/// The server, or one of its models.
#[derive(Debug)]
struct Subject<'a> {
    model: Option<&'a str>,
    version: Option<u64>,
    live: bool,
}

impl Subject<'_> {
    /// The path of the check, below the server's URL.
    fn path(&self) -> String {
        match (self.model, self.version) {
            (None, _) if self.live => "/v2/health/live".to_owned(),
            (None, _) => "/v2/health/ready".to_owned(),
            (Some(model), None) => format!("/v2/models/{}/ready", path_segment(model)),
            (Some(model), Some(version)) => {
                format!("/v2/models/{}/versions/{version}/ready", path_segment(model))
            }
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.model, self.version) {
            (None, _) if self.live => f.write_str("the server is not live"),
            (None, _) => f.write_str("the server is not ready"),
            (Some(model), None) => write!(f, "model '{model}' is not ready"),
            (Some(model), Some(version)) => write!(f, "version {version} of model '{model}' is not ready"),
        }
    }
}

/// Judges a reply: only status 200 is healthy.
fn verdict(subject: &Subject<'_>, reply: &Reply) -> Result<(), String> {
    let status = reply.status;
    if status == 200 {
        return Ok(());
    }
    let reason = serde_json::from_slice::<Value>(&reply.body).ok();
    let reason = reason.as_ref().and_then(|reason| reason["error"].as_str()).unwrap_or_default();
    let separator = if reason.is_empty() { "" } else { ": " };
    Err(match status {
        401 | 403 => format!("access was denied (status {status}){separator}{reason}"),
        // The statuses of a server that is not ready, of an unknown model, and of a server that stops.
        400 | 404 | 503 => format!("{subject} (status {status}){separator}{reason}"),
        _ => format!("unexpected answer, status {status}{separator}{reason}"),
    })
}

/// A reason of limited length, without line breaks and control characters.
fn one_line(reason: &str) -> String {
    single_line(reason).chars().take(REASON_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_reason_name_what_is_checked() {
        let subject = |model, version, live| Subject { model, version, live };
        for (subject, path, reason) in [
            (subject(None, None, true), "/v2/health/live", "the server is not live"),
            (subject(None, None, false), "/v2/health/ready", "the server is not ready"),
            (subject(Some("m"), None, false), "/v2/models/m/ready", "model 'm' is not ready"),
            (
                subject(Some("a b/ü%"), Some(3), false),
                "/v2/models/a%20b%2F%C3%BC%25/versions/3/ready",
                "version 3 of model 'a b/ü%' is not ready",
            ),
        ] {
            assert_eq!((subject.path().as_str(), subject.to_string().as_str()), (path, reason));
        }
    }

    #[test]
    fn only_status_200_is_healthy() {
        let subject = Subject { model: Some("m"), version: None, live: false };
        for (status, body, expected) in [
            (200, "anything", None),
            (400, "", Some("model 'm' is not ready (status 400)")),
            (404, r#"{"error":"no m"}"#, Some("model 'm' is not ready (status 404): no m")),
            (503, "<html>", Some("model 'm' is not ready (status 503)")),
            (401, r#"{"error":"no key"}"#, Some("access was denied (status 401): no key")),
            (403, r#"{"error":7}"#, Some("access was denied (status 403)")),
            (302, "", Some("unexpected answer, status 302")),
            (204, "", Some("unexpected answer, status 204")),
            (500, r#"{"error":"x"}"#, Some("unexpected answer, status 500: x")),
        ] {
            let reply = Reply { status, body: body.into() };
            assert_eq!(verdict(&subject, &reply).err().as_deref(), expected, "{status} {body}");
        }
    }

    #[test]
    fn reason_is_one_line_of_limited_length() {
        assert_eq!(one_line("a\r\nb\u{1b}[31mc"), "a  b<U+001B>[31mc");
        assert_eq!(one_line(&"ü".repeat(1000)).chars().count(), REASON_LENGTH);
    }
}

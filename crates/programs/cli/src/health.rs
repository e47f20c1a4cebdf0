//! `nereid health`: checks the health of a running server over HTTP, for images without curl.
//!
//! One request on one connection, without a runtime: a container runs it every few seconds.

mod connection;
mod tls;

use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use std::{env, fmt};

use http::Uri;
use nereid_options::HealthOptions;
use serde_json::Value;

use self::connection::{Exchange, Reply, Target};

/// The variable with the API key, so that no list of processes shows it.
const KEY: &str = "NEREID_API_KEY";

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
    let target = Target::parse(&url)?;
    let subject =
        Subject { model: options.model.as_deref(), version: options.model_version, live: options.live };
    let mut headers = options.header.clone();
    if let Some(key) = env::var_os(KEY).filter(|key| !key.is_empty()) {
        let key = key.into_string().ok().filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
        let key = key
            .ok_or_else(|| format!("{KEY} is not an API key: it has blanks or other characters of no key"))?;
        headers.push(("Authorization".to_owned(), format!("Bearer {key}")));
    }
    let exchange = Exchange {
        target: &target,
        path: &subject.path(),
        headers: &headers,
        trust,
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
            (Some(model), None) => format!("/v2/models/{}/ready", encoded(model)),
            (Some(model), Some(version)) => format!("/v2/models/{}/versions/{version}/ready", encoded(model)),
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

/// Percent-encodes a part of a path.
pub(crate) fn encoded(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for byte in part.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
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

/// A reason without line breaks and control characters, of limited length.
fn one_line(reason: &str) -> String {
    let shown = reason.chars().map(|character| if character.is_control() { ' ' } else { character });
    shown.take(REASON_LENGTH).collect()
}

impl Target {
    /// Parses a server's URL. A host and a port alone are of HTTP.
    ///
    /// # Errors
    /// The URL is invalid, or of another scheme.
    fn parse(url: &str) -> Result<Self, String> {
        let invalid = |reason: &str| format!("--url is '{url}', {reason}");
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(invalid("but must be unix: with the path of a socket"));
            }
            return Ok(Self::at_socket(path.into()));
        }
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = whole.parse().map_err(|error| invalid(&format!("which is not a URL: {error}")))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("but must begin with http://, https:// or unix:")),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(invalid("but must not have a user: set NEREID_API_KEY, or --header"));
        }
        let host = uri.host().unwrap_or_default();
        // The parser drops ports that it cannot represent.
        if authority.len() > host.len() && uri.port_u16().is_none() {
            return Err(invalid("whose port must be a whole number from 1 to 65535"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || uri.query().is_some() {
            return Err(invalid(
                "but must be http:// or https:// with a host, an optional port and an optional path",
            ));
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { is_tls, host: host.to_owned(), port, socket: None, authority: authority.to_owned(), base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_host_port_and_base() {
        for (url, expected) in [
            ("http://localhost:8000", "http localhost 8000 []"),
            ("localhost:8000", "http localhost 8000 []"),
            ("models", "http models 80 []"),
            ("https://models.example.com", "https models.example.com 443 []"),
            ("https://h:8443/a/b/", "https h 8443 [/a/b]"),
            ("HTTP://H:1/", "http H 1 []"),
            ("http://[::1]:8000", "http ::1 8000 []"),
            ("http://127.0.0.1", "http 127.0.0.1 80 []"),
        ] {
            let Target { is_tls, host, port, base, .. } = Target::parse(url).unwrap();
            let scheme = if is_tls { "https" } else { "http" };
            assert_eq!(format!("{scheme} {host} {port} [{base}]"), expected, "{url}");
        }
        for url in ["unix:/run/n.sock", "unix:///run/n.sock"] {
            assert_eq!(Target::parse(url).unwrap().to_string(), "unix:/run/n.sock");
        }
        for (url, expected) in [
            ("unix:", "the path of a socket"),
            ("grpc://h:8001", "must begin with http://"),
            ("http://", "is not a URL"),
            ("", "is not a URL"),
            ("http://me:secret@h", "must not have a user"),
            ("http://h:99999", "whose port must be"),
            ("http://h:", "whose port must be"),
            ("http://h?x=1", "with a host"),
            ("http://a b", "is not a URL"),
        ] {
            let error = Target::parse(url).map(|target| target.to_string()).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

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
        assert_eq!(one_line("a\r\nb\u{1b}[31mc"), "a  b [31mc");
        assert_eq!(one_line(&"ü".repeat(1000)).chars().count(), REASON_LENGTH);
    }
}

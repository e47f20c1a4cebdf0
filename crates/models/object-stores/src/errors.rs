//! Failed requests to clouds: whether to retry, and the message for people.

use std::error::Error as _;

use nereid_core::backend_api::{Error, ErrorCode};

/// Precedes what is wrong with a server's certificate in the text of the TLS library.
const BAD_CERTIFICATE: &str = "invalid peer certificate: ";

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub kind: FailureKind,
    /// In one sentence, without secrets.
    pub message: String,
}

/// The kind of a failure, which decides what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The bucket or object does not exist.
    NotFound,
    /// The credentials are insufficient or have expired: newer ones may work.
    Denied,
    /// The object has changed since it was listed.
    Changed,
    /// A retry will not help.
    Refused,
    /// A retry may help.
    Unavailable,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Converts a library's error, and removes secrets.
    pub(crate) fn of(error: &object_store::Error, secrets: &[String]) -> Self {
        let text = text_of(error);
        let status = status_in(&text);
        let is_expired = ["ExpiredToken", "RequestExpired", "TokenRefreshRequired", "InvalidToken"]
            .iter()
            .any(|code| text.contains(code));
        let kind = match error {
            _ if is_expired => FailureKind::Denied,
            object_store::Error::NotFound { .. } => FailureKind::NotFound,
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                FailureKind::Denied
            }
            object_store::Error::Precondition { .. } => FailureKind::Changed,
            object_store::Error::InvalidPath { .. } | object_store::Error::NotSupported { .. } => {
                FailureKind::Refused
            }
            _ if text.contains(BAD_CERTIFICATE) || is_refused_redirect(&text) => FailureKind::Refused,
            _ => match status {
                // The library's error for a range of a file that has become shorter.
                Some(416) => FailureKind::Changed,
                Some(408 | 429) => FailureKind::Unavailable,
                // Of a listing.
                Some(401 | 403) => FailureKind::Denied,
                Some(400..500) => FailureKind::Refused,
                _ => FailureKind::Unavailable,
            },
        };
        Self::new(kind, without_secrets(shortened(&text, status), secrets))
    }

    /// Converts the failure to an error of the server, for this operation.
    pub(crate) fn error(&self, what: &str) -> Error {
        let code = match self.kind {
            FailureKind::NotFound => ErrorCode::NotFound,
            FailureKind::Denied | FailureKind::Changed | FailureKind::Refused | FailureKind::Unavailable => {
                ErrorCode::Unavailable
            }
        };
        Error::new(code, format!("{what}: {}", self.message))
    }
}

/// The messages of an error and its causes, each once.
fn text_of(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Whether the HTTP client refused to follow a redirect.
fn is_refused_redirect(text: &str) -> bool {
    text.split_once("redirect ").is_some_and(|(_, rest)| rest.contains(" refused: "))
}

/// The status in the library's text.
fn status_in(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Shortens a long text: keeps the server's error code and message, or the end of the chain of causes.
fn shortened(text: &str, status: Option<u16>) -> String {
    const SHOWN: usize = 300;
    let between = |open: &str, close: &str| {
        let (_, rest) = text.split_once(open)?;
        rest.split_once(close).map(|(inside, _)| inside.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let status = status.map_or_else(String::new, |status| format!(" (HTTP status {status})"));
    let detail = between("<AuthenticationErrorDetail>", "</AuthenticationErrorDetail>");
    let message = detail.or_else(|| between("<Message>", "</Message>"));
    if let (Some(code), Some(message)) = (between("<Code>", "</Code>"), message) {
        let message = message.trim_end_matches('.');
        return format!("{code}: {}{status}", message.chars().take(SHOWN).collect::<String>());
    }
    if let Some(message) = between("\"message\": \"", "\"").or_else(|| between("\"message\":\"", "\"")) {
        return format!("{}{status}", message.chars().take(SHOWN).collect::<String>());
    }
    if let Some((_, reason)) = text.split_once(BAD_CERTIFICATE) {
        let hint = match reason.starts_with("UnknownIssuer") {
            true => "; AWS_CA_BUNDLE or SSL_CERT_FILE names the file of an authority of your own",
            false => "",
        };
        let reason = reason.chars().take(SHOWN).collect::<String>();
        return format!("the server's certificate is not trusted: {reason}{hint}");
    }
    // The library's own text ends at a dash.
    let end = text.rsplit_once(" - ").map_or(text, |(_, end)| end);
    let end = end.split_whitespace().collect::<Vec<_>>().join(" ");
    end.chars().take(SHOWN).collect()
}

/// Removes all secrets from a text.
pub(crate) fn without_secrets(text: String, secrets: &[String]) -> String {
    let long = secrets.iter().filter(|secret| secret.len() >= 4);
    long.fold(text, |text, secret| text.replace(secret.as_str(), "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Failure {
        let source = text.to_owned().into();
        Failure::of(&object_store::Error::Generic { store: "S3", source }, &["hush-hush".into()])
    }

    #[test]
    fn a_status_tells_whether_to_try_again() {
        for (status, kind) in [
            (400, FailureKind::Refused),
            (401, FailureKind::Denied),
            (403, FailureKind::Denied),
            // A bucket that is away keeps what it had.
            (404, FailureKind::Refused),
            (405, FailureKind::Refused),
            (408, FailureKind::Unavailable),
            (416, FailureKind::Changed),
            (429, FailureKind::Unavailable),
            (500, FailureKind::Unavailable),
            (503, FailureKind::Unavailable),
        ] {
            let text = format!("Server returned non-2xx status code: {status} What: body");
            assert_eq!(failure(&text).kind, kind, "{status}");
        }
        assert_eq!(failure("connection reset").kind, FailureKind::Unavailable);
        let expired = "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>";
        assert_eq!(failure(expired).kind, FailureKind::Denied);
    }

    #[test]
    fn the_servers_own_words_are_shown_without_secrets() {
        let text = "Error performing GET http://h/b - Server returned non-2xx status code: 403 Forbidden: <?xml?>\n<Error>\
                    <Code>SignatureDoesNotMatch</Code><Message>The key hush-hush\n is wrong.</Message></Error>";
        assert_eq!(failure(text).message, "SignatureDoesNotMatch: The key *** is wrong (HTTP status 403)");
        let azure = "status code: 403 Forbidden: <Error><Code>AuthenticationFailed</Code><Message>See\n RequestId:1</Message>\
                     <AuthenticationErrorDetail>The token is expired.</AuthenticationErrorDetail></Error>";
        assert_eq!(failure(azure).message, "AuthenticationFailed: The token is expired (HTTP status 403)");
        let google = r#"status code: 404 Not Found: {"error": {"code": 404, "message": "no such bucket"}}"#;
        assert_eq!(failure(google).message, "no such bucket (HTTP status 404)");
        assert_eq!(
            failure("Error performing GET http://h - HTTP error: refused").message,
            "HTTP error: refused"
        );
        assert_eq!(failure(&"x".repeat(5000)).message.len(), 300);
    }

    #[test]
    fn refused_redirect_is_not_tried_again() {
        for text in [
            "redirect to '10.0.0.1' refused: a private address",
            "redirect from 'https://h/a' to 'http://h/a' refused: it drops TLS",
        ] {
            assert_eq!(failure(text).kind, FailureKind::Refused, "{text}");
        }
        assert_eq!(failure("connection refused: h").kind, FailureKind::Unavailable);
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_named_and_not_tried_again() {
        for (reason, hint) in [
            ("UnknownIssuer", "; AWS_CA_BUNDLE or SSL_CERT_FILE names the file of an authority of your own"),
            ("certificate expired: verification time 9 (UNIX), but certificate is not valid after 8", ""),
            ("certificate not valid for name \"a - b\"", ""),
        ] {
            let failure =
                failure(&format!("Error performing GET https://h - HTTP error: {BAD_CERTIFICATE}{reason}"));
            assert_eq!(failure.message, format!("the server's certificate is not trusted: {reason}{hint}"));
            assert_eq!(failure.kind, FailureKind::Refused);
        }
    }
}

//! Cross-origin requests: which web pages may use a face from a browser (WHATWG Fetch, "CORS protocol").

use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Uri};

use crate::reply::{self, Reply};

/// How long a browser may cache the answer to a preflight request, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The methods of all faces.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");

/// An origin whose pages may use a face: scheme, host and port, or `*` for every one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_origin = || {
            let uri: Uri = text.parse().ok()?;
            let is_bare = uri.path() == "/" && uri.query().is_none() && !text.ends_with('/');
            let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
            let is_lower = text.bytes().all(|byte| !byte.is_ascii_uppercase());
            (is_bare && is_lower && scheme.starts_with("http") && !authority.as_str().contains('@'))
                .then_some(())
        };
        if text == "*" || is_origin().is_some() {
            return HeaderValue::from_str(text).map(Self).map_err(|error| error.to_string());
        }
        Err("must be an origin in lowercase such as https://example.com or http://localhost:3000, or *"
            .into())
    }
}

/// The origins whose pages may use a face; none by default.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    origins: Vec<Origin>,
    /// Reply headers that pages may read in addition to the usual ones.
    exposed: Option<HeaderValue>,
}

impl Cors {
    /// Allows these origins. Pages may read the `exposed` headers of replies.
    pub fn new(origins: Vec<Origin>, exposed: &[HeaderName]) -> Self {
        let exposed: Vec<_> = exposed.iter().map(HeaderName::as_str).collect();
        let exposed = HeaderValue::from_str(&exposed.join(", ")).ok().filter(|list| !list.is_empty());
        Self { origins, exposed }
    }

    /// The value of `Access-Control-Allow-Origin`, if this request is from a page that may use the face.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        self.origins.iter().find(|Origin(it)| it == "*" || it == origin).map(|Origin(it)| it.clone())
    }

    /// Whether any page may use the face.
    pub(crate) fn is_on(&self) -> bool {
        !self.origins.is_empty()
    }

    /// The reply to a preflight request, by which a browser checks whether a page may send its request.
    pub(crate) fn preflight(&self, head: &Parts) -> Option<Reply> {
        let is_preflight = head.method == Method::OPTIONS
            && head.headers.contains_key(ORIGIN)
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if !is_preflight {
            return None;
        }
        let mut reply = reply::empty(StatusCode::NO_CONTENT);
        if self.allowed(&head.headers).is_some() {
            let headers = reply.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            // Models and restricted groups define further headers, so all are allowed.
            if let Some(asked) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
            }
        }
        Some(reply)
    }

    /// Says in the reply to a request whether its page may read it.
    pub(crate) fn add_to(&self, reply: &mut Reply, request: &HeaderMap) {
        let headers = reply.headers_mut();
        // A cache must not serve the reply for one origin to another.
        headers.append(VARY, HeaderValue::from_static("origin"));
        if let Some(allowed) = self.allowed(request) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            if let Some(exposed) = &self.exposed {
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Echo, serving, status};

    #[test]
    fn origins_are_scheme_host_and_port() {
        for text in ["*", "https://example.com", "http://localhost:3000", "http://[::1]:8080"] {
            assert_eq!(text.parse::<Origin>().map(|Origin(value)| value), Ok(HeaderValue::from_static(text)));
        }
        for text in [
            "",
            "example.com",
            "https://example.com/",
            "https://example.com/page",
            "https://example.com?x",
            "ftp://example.com",
            "https://Example.com",
            "https://user@example.com",
            "http://",
            "null",
            "**",
            "https://a.b\n",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }

    /// The reply's headers `vary` and `access-control-*`.
    fn cors_headers(reply: &str) -> Vec<&str> {
        let head = reply.split("\r\n\r\n").next().unwrap_or_default();
        let mut lines: Vec<_> = head
            .lines()
            .filter(|line| line.starts_with("access-control") || line.starts_with("vary"))
            .collect();
        lines.sort_unstable();
        lines
    }

    #[tokio::test]
    async fn pages_of_allowed_origins_read_replies_and_others_do_not() {
        let exposed = "access-control-expose-headers: inference-header-content-length";
        let origins = |list: &[&str]| list.iter().map(|it| it.parse().unwrap()).collect::<Vec<_>>();
        let one = "access-control-allow-origin: http://a:1";
        for (allowed, origin, expected) in [
            (vec![], Some("http://a:1"), vec![]),
            (vec!["http://a:1"], None, vec!["vary: origin"]),
            (vec!["http://a:1"], Some("http://a:2"), vec!["vary: origin"]),
            (vec!["http://a:1"], Some("http://a:1"), vec![one, exposed, "vary: origin"]),
            (vec!["http://b", "http://a:1"], Some("http://a:1"), vec![one, exposed, "vary: origin"]),
            (vec!["*"], Some("http://a:1"), vec!["access-control-allow-origin: *", exposed, "vary: origin"]),
        ] {
            let name = HeaderName::from_static("inference-header-content-length");
            let serving = serving(Echo::with_cors(Cors::new(origins(&allowed), &[name])));
            let header = origin.map_or_else(String::new, |origin| format!("Origin: {origin}\r\n"));
            // Errors are read by pages, too.
            for (path, code) in [("/echo", "200"), ("/nowhere", "404")] {
                let reply = serving.ask_text("POST", path, &header, "x").await;
                assert_eq!(
                    (status(&reply), cors_headers(&reply)),
                    (code, expected.clone()),
                    "{allowed:?} {origin:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn preflight_requests_are_answered_before_any_route() {
        let serving = serving(Echo::with_cors(Cors::new(vec!["http://a".parse().unwrap()], &[])));
        let ask =
            "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-key, content-type\r\n";
        let reply = serving.ask_text("OPTIONS", "/echo", &format!("Origin: http://a\r\n{ask}"), "").await;
        assert_eq!(status(&reply), "204");
        for line in [
            "access-control-allow-origin: http://a",
            "access-control-allow-methods: GET, POST",
            "access-control-allow-headers: x-key, content-type",
            "access-control-max-age: 7200",
        ] {
            assert!(reply.contains(line), "{line} in {reply}");
        }
        let foreign = serving.ask_text("OPTIONS", "/echo", &format!("Origin: http://b\r\n{ask}"), "").await;
        assert_eq!((status(&foreign), cors_headers(&foreign)), ("204", vec!["vary: origin"]));
        // Not a preflight request: an unsupported method of the route.
        assert_eq!(status(&serving.ask_text("OPTIONS", "/echo", "", "").await), "405");
    }
}

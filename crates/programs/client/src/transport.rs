//! Connections to one server, for both protocols.

use std::error::Error as StdError;
use std::time::Duration;

use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::{Error, Options};

#[cfg(feature = "tls")]
pub(crate) type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = HttpConnector;

/// The protocol below the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    #[cfg(feature = "grpc")]
    Http2,
}

/// The base of a server's URLs: scheme, authority, and a path without a slash at its end.
pub(crate) fn base(url: &str) -> Result<String, Error> {
    let invalid = |reason: String| Error::invalid(format!("invalid URL '{url}': {reason}"));
    let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = whole.parse().map_err(|error| invalid(format!("{error}")))?;
    let scheme = uri.scheme_str().unwrap_or_default();
    if scheme != "http" && (scheme != "https" || cfg!(not(feature = "tls"))) {
        let known =
            if cfg!(feature = "tls") { "http:// or https://" } else { "http:// (without the feature tls)" };
        return Err(invalid(format!("must begin with {known}")));
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.is_empty() || authority.contains('@') || uri.query().is_some() {
        return Err(invalid("must be a host, an optional port and an optional path".into()));
    }
    Ok(format!("{scheme}://{authority}{}", uri.path().trim_end_matches('/')))
}

/// The headers of every request.
pub(crate) fn headers(options: &Options) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in &options.headers {
        let invalid = || Error::invalid(format!("invalid header '{name}'"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(header, value);
    }
    Ok(headers)
}

/// A pool of connections.
pub(crate) fn client<B>(options: &Options, version: Version) -> Result<Client<Connector, B>, Error>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(options.connect_timeout);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(Duration::from_secs(60)));
    tcp.enforce_http(false);
    #[cfg(feature = "tls")]
    let tcp = {
        let protocol = if version == Version::Http1 { "http/1.1" } else { "h2" };
        Connector::from((tcp, options.tls.config(&[protocol])?))
    };
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new());
    #[cfg(feature = "grpc")]
    if version == Version::Http2 {
        builder.http2_only(true).http2_adaptive_window(true);
    }
    Ok(builder.build(tcp))
}

/// The error of a request that has no response.
pub(crate) fn unreachable(error: &hyper_util::client::legacy::Error) -> Error {
    if error.is_connect() { Error::Connect(innermost(error)) } else { Error::Lost(innermost(error)) }
}

/// The innermost cause: the outer errors name layers of the client alone.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Percent-encodes a segment of a path, such as the name of a model.
pub fn path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_a_host_and_an_optional_path() {
        for (url, expected) in [
            ("localhost:8000", "http://localhost:8000"),
            ("http://[::1]:8000/", "http://[::1]:8000"),
            ("http://h/a/b/", "http://h/a/b"),
        ] {
            assert_eq!(base(url).unwrap(), expected);
        }
        for url in ["", "ftp://h", "http://", "http://me:secret@h", "http://h?x=1", "a b"] {
            assert!(base(url).unwrap_err().to_string().starts_with("invalid URL"), "{url}");
        }
    }

    #[test]
    fn headers_are_checked_before_they_are_sent() {
        let found = headers(&Options::new().api_key("k").header("X-A", "1").header("X-A", "2")).unwrap();
        assert_eq!(found["authorization"], "Bearer k");
        assert_eq!(found.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        for (name, value) in [("a b", "1"), ("", "1"), ("a", "line\nbreak")] {
            assert!(headers(&Options::new().header(name, value)).is_err(), "{name:?}");
        }
        assert!(!format!("{found:?}").contains("Bearer"));
    }

    #[test]
    fn path_segments_are_encoded() {
        for (text, expected) in [("a-b_c.1~", "a-b_c.1~"), ("a b/ü%", "a%20b%2F%C3%BC%25"), ("", "")] {
            assert_eq!(path_segment(text), expected);
        }
    }
}

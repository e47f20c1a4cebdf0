//! Sends spans to the collector: a POST over HTTP/1.1, with or without TLS, each on its own connection.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Time limit of one attempt.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum bytes of an answer read for the reason of a refusal.
const LONGEST_ANSWER: usize = 64 << 10;

type Fault = Box<dyn Error + Send + Sync>;

/// The reason why a collector did not accept a message.
#[derive(Debug)]
pub(super) struct PostError {
    /// The reason in words.
    pub why: String,
    /// Whether another attempt may succeed.
    pub is_temporary: bool,
    /// The collector's request to wait this long before the next attempt.
    pub retry_after: Option<Duration>,
}

/// The collector's answer to a message.
struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    reason: String,
}

/// Knows where the collector is.
#[derive(Debug)]
pub(super) struct Client {
    url: Uri,
    host: String,
    port: u16,
    /// TLS configuration; `None` for plain connections.
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    /// URLs without a scheme use HTTP, as in the reference.
    ///
    /// # Errors
    /// The URL is invalid, or no CA certificates are available to verify the collector.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("'{url}' is not a collector's address: {why}");
        let address = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = address.parse().map_err(|error| wrong(&format!("{error}")))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => (443, Some(Arc::new(secured()?))),
            _ => return Err(wrong("it begins neither with 'http://' nor with 'https://'")),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { port: uri.port_u16().unwrap_or(default_port), host, tls, url: uri })
    }

    pub(super) fn url(&self) -> &Uri {
        &self.url
    }

    /// Sends a message once.
    ///
    /// # Errors
    /// The collector did not accept the message.
    pub(super) async fn post(&self, message: Bytes) -> Result<(), PostError> {
        let failed = |is_temporary, retry_after, why: &dyn Display| PostError {
            why: format!("the collector at {} does not take spans: {why}", self.url),
            is_temporary,
            retry_after,
        };
        match timeout(PATIENCE, self.attempt(message)).await {
            Ok(Ok(answer)) if answer.status.is_success() => Ok(()),
            Ok(Ok(Answer { status, retry_after, reason })) => Err(failed(
                is_temporary(status),
                retry_after,
                &format_args!("{status} {}", reason.escape_debug()),
            )),
            Ok(Err(fault)) => Err(failed(true, None, &fault)),
            Err(_) => Err(failed(true, None, &"it took too long")),
        }
    }

    async fn attempt(&self, message: Bytes) -> Result<Answer, Fault> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => self.send(stream, message).await,
            Some(config) => {
                let name = ServerName::try_from(self.host.clone())?;
                let connector = TlsConnector::from(Arc::clone(config));
                self.send(connector.connect(name, stream).await?, message).await
            }
        }
    }

    async fn send<S>(&self, stream: S, message: Bytes) -> Result<Answer, Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::post(path)
            .header(HOST, self.url.authority().map_or("", |authority| authority.as_str()))
            .header(USER_AGENT, concat!("nereid/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(message))?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
            let reason = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
            let reason = reason.map(|body| body.to_bytes()).unwrap_or_default();
            let reason = String::from_utf8_lossy(&reason).into_owned();
            Ok(Answer { status, retry_after, reason })
        };
        tokio::pin!(exchange);
        tokio::select! {
            outcome = &mut exchange => outcome,
            // The connection may end after the answer, but not before.
            ended = connection => {
                ended?;
                exchange.await
            }
        }
    }
}

/// Whether a message with this answer may be accepted later (OTLP 1.x, "Retryable Response Codes").
fn is_temporary(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// The pause that a collector requests, in whole seconds. Dates are ignored: clocks may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Trusts the machine's certificates, or those that `SSL_CERT_FILE` names.
fn secured() -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reasons: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(format!(
            "no CA certificates found to verify the collector with; set SSL_CERT_FILE to a file ({})",
            reasons.join(", ")
        ));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_into_parts() {
        let place = |url: &str| Client::new(url).map(|client| (client.host, client.port));
        assert_eq!(place("http://localhost:4318/v1/traces"), Ok(("localhost".into(), 4318)));
        assert_eq!(place("http://[::1]/x?y=z"), Ok(("::1".into(), 80)));
        assert_eq!(place("localhost:4318/v1/traces"), Ok(("localhost".into(), 4318)));
        assert_eq!(place("collector"), Ok(("collector".into(), 80)));
        assert_eq!(place("[::1]:4318"), Ok(("::1".into(), 4318)));
        let url = |url: &str| Client::new(url).map(|client| client.url.to_string());
        assert_eq!(url("localhost:4318/v1/traces"), url("http://localhost:4318/v1/traces"));
    }

    #[test]
    fn retry_after_is_read_as_seconds() {
        for (value, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("1.5", None),
            ("-1", None),
            ("soon", None),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
            ("99999999999999999999", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            assert_eq!(retry_after(&headers), expected.map(Duration::from_secs), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for url in ["", ":4318", "ftp://host/", "http://", "/v1/traces", "http://a b/"] {
            let refused = Client::new(url).unwrap_err();
            assert!(refused.contains("is not a collector's address"), "{refused}");
        }
    }
}

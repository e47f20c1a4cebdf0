//! The HTTP client of all clouds: hyper with rustls, and limits on how long a server may be silent.

use std::error::Error;
use std::fs;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{PROXY_AUTHORIZATION, RETRY_AFTER};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::ErrorKind;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::clouds::Patience;
use crate::environment::Environment;
use crate::offered::OfferedDigest;
use crate::proxies::{Proxies, ProxyConnector};

/// Idle connections are closed after this long.
const IDLE: Duration = Duration::from_secs(20);

/// The longest `Retry-After` that is honoured: if a server asks for more, the request is sent again after this long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The client. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    client: Client<HttpsConnector<ProxyConnector>, HttpRequestBody>,
    proxies: Proxies,
    patience: Patience,
}

impl Connector {
    /// A client with the machine's trust roots, the authorities in the file that `AWS_CA_BUNDLE` names, and the proxies
    /// of the environment.
    ///
    /// # Errors
    /// The file cannot be read, or a proxy's URL is invalid.
    pub(crate) fn new(environment: &Environment, patience: Patience) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        // A machine without any is no fault: it may need none.
        for error in found.errors.iter().filter(|error| matches!(error.kind, ErrorKind::Io { .. })) {
            tracing::warn!("{error}");
        }
        roots.add_parsable_certificates(found.certs);
        if let Some(path) = environment.get("AWS_CA_BUNDLE") {
            let unreadable = |error: &dyn Error| format!("cannot read AWS_CA_BUNDLE '{path}': {error}");
            let bytes = fs::read(&path).map_err(|error| unreadable(&error))?;
            for certificate in CertificateDer::pem_slice_iter(&bytes) {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                roots.add(certificate).map_err(|error| unreadable(&error))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot set up TLS: {error}"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let proxies = Proxies::of(environment)?;
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(patience.connect));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(ProxyConnector { tcp, proxies: proxies.clone() });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            // Larger reads would only occupy memory until they are written.
            .http1_max_buf_size(128 << 10)
            .build(https);
        Ok(Self { client, proxies, patience })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(login) = self.proxies.login(request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, login);
        }
        let response = timeout(self.patience.stall, self.client.request(request)).await;
        let response = response.map_err(|_| {
            let message = format!("no answer within {} seconds", self.patience.stall.as_secs_f32());
            HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, message))
        })?;
        let response = response.map_err(|error| {
            let is_connect = error.is_connect();
            let kind = if is_connect { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        })?;
        // The caller sends the request again as soon as this returns.
        if let Some(pause) = pause(&response) {
            sleep(pause).await;
        }
        let stall = self.patience.stall;
        let mut response = response;
        if let Some(offered) = OfferedDigest::of(response.headers(), response.status()) {
            response.extensions_mut().insert(offered);
        }
        Ok(response
            .map(|body| HttpResponseBody::new(PacedBody { body, stall, until: Box::pin(sleep(stall)) })))
    }
}

/// How long an overloaded server asks to wait.
fn pause<B>(response: &hyper::Response<B>) -> Option<Duration> {
    let status = response.status();
    if ![StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        return None;
    }
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// A body that fails when no data arrives for some time.
struct PacedBody {
    body: Incoming,
    stall: Duration,
    until: Pin<Box<Sleep>>,
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let end = Instant::now() + self.stall;
            self.until.as_mut().reset(end);
            let interrupted = |error| HttpError::new(HttpErrorKind::Interrupted, error);
            return Poll::Ready(frame.map(|frame| frame.map_err(interrupted)));
        }
        self.until.as_mut().poll(context).map(|()| {
            let message = format!("nothing arrived for {} seconds", self.stall.as_secs_f32());
            let error = io::Error::new(io::ErrorKind::TimedOut, message);
            Some(Err(HttpError::new(HttpErrorKind::Timeout, error)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_server_is_left_alone_for_as_long_as_it_asks() {
        for (status, header, expected) in [
            (503, Some("2"), Some(2)),
            (429, Some(" 5 "), Some(5)),
            (429, Some("86400"), Some(30)),
            (429, Some("Wed, 21 Oct 2015 07:28:00 GMT"), None),
            (503, None, None),
            (500, Some("2"), None),
            (200, Some("2"), None),
        ] {
            let mut response = hyper::Response::builder().status(status);
            if let Some(header) = header {
                response = response.header(RETRY_AFTER, header);
            }
            let expected = expected.map(Duration::from_secs);
            assert_eq!(pause(&response.body(()).unwrap()), expected, "{status} {header:?}");
        }
    }
}

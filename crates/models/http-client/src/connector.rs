//! Sends single requests: hyper with rustls, proxies, and limits on how long a server may be silent.

use std::error::Error;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper::header::{HeaderMap, PROXY_AUTHORIZATION, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::dns::GaiResolver;
use hyper_util::client::legacy::connect::{HttpConnector as TcpConnector, HttpInfo};
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
use tokio::time::{sleep, timeout};

use crate::body::LimitedBody;
use crate::environment::Environment;
use crate::patience::Patience;
use crate::proxies::{Proxies, ProxyConnector};
use crate::reach::Reach;
use crate::replies::DOCUMENT_LIMIT;
use crate::resolver::ReachResolver;

/// Idle connections are closed after this long.
const IDLE: Duration = Duration::from_secs(20);

/// The longest `Retry-After` that is honoured. Longer ones are shortened to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The variable that lets redirects lead to private addresses.
const PRIVATE_REDIRECTS: &str = "NEREID_PRIVATE_REDIRECTS";

type PooledClient = Client<HttpsConnector<ProxyConnector>, HttpRequestBody>;

/// The client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Connector {
    /// By the minimum reach of servers, so that no pooled connection leads elsewhere.
    clients: [PooledClient; 4],
    proxies: Proxies,
    patience: Patience,
    /// Whether redirects may lead to addresses of less reach than those before.
    pub(crate) has_private_redirects: bool,
}

/// The status and the headers of an answer, for callers that see only the results of the library of object stores.
#[derive(Clone, Debug)]
pub struct ResponseHeaders {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
}

impl Connector {
    /// A client with the machine's trust roots, the authorities in the file that `AWS_CA_BUNDLE` names, and the proxies
    /// of the environment.
    ///
    /// # Errors
    /// The file cannot be read, or a proxy's URL is invalid.
    pub fn new(environment: &Environment, patience: Patience) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot set up TLS: {error}"))?
            .with_root_certificates(trust_roots(environment)?)
            .with_no_client_auth();
        let proxies = Proxies::of(environment)?;
        let client = |minimum| {
            let tcp = tcp_with(ReachResolver { minimum, system: GaiResolver::new() }, patience);
            let to_proxies = tcp_with(GaiResolver::new(), patience);
            let https = HttpsConnectorBuilder::new()
                .with_tls_config(config.clone())
                .https_or_http()
                .enable_http1()
                .wrap_connector(ProxyConnector { tcp, to_proxies, proxies: proxies.clone(), minimum });
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                // Larger reads would only occupy memory until they are written.
                .http1_max_buf_size(128 << 10)
                .build(https)
        };
        let clients = [Reach::Machine, Reach::Link, Reach::Private, Reach::Public].map(client);
        let has_private_redirects = environment.is_on(PRIVATE_REDIRECTS);
        Ok(Self { clients, proxies, patience, has_private_redirects })
    }

    /// Sends a request to a server of at least this reach.
    pub(crate) async fn send(
        &self,
        mut request: HttpRequest,
        minimum: Reach,
    ) -> Result<HttpResponse, HttpError> {
        if let Some(login) = self.proxies.login(request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, login);
        }
        let is_document = is_listing(request.uri());
        let response = timeout(self.patience.stall, self.clients[minimum as usize].request(request)).await;
        let response = response.map_err(|_| {
            let message = format!("no answer within {} seconds", self.patience.stall.as_secs_f32());
            HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, message))
        })?;
        let mut response = response.map_err(|error| {
            let is_connect = error.is_connect();
            let kind = if is_connect { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        })?;
        // The caller sends the request again as soon as this returns.
        if let Some(pause) = pause(&response) {
            sleep(pause).await;
        }
        let head = ResponseHeaders { status: response.status(), headers: response.headers().clone() };
        response.extensions_mut().insert(head);
        let limit = if is_document || !response.status().is_success() { DOCUMENT_LIMIT } else { u64::MAX };
        let stall = self.patience.stall;
        Ok(response.map(|body| HttpResponseBody::new(LimitedBody::new(body, stall, limit))))
    }

    /// The reach of the server that sent an answer. A proxy hides the server's address: names then count as public.
    pub(crate) fn reach(&self, uri: &Uri, answer: &HttpResponse) -> Reach {
        let of_host = || uri.host().and_then(Reach::of_host).unwrap_or(Reach::Public);
        if self.proxies.covers(uri) {
            return of_host();
        }
        let connection = answer.extensions().get::<HttpInfo>();
        connection.map_or_else(of_host, |connection| Reach::of(connection.remote_addr().ip()))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.send(request, Reach::Machine).await
    }
}

fn tcp_with<R>(resolver: R, patience: Patience) -> TcpConnector<R> {
    let mut tcp = TcpConnector::new_with_resolver(resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(patience.connect));
    tcp
}

/// The certificate authorities of the machine and of the user.
fn trust_roots(environment: &Environment) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // A machine without authorities may need none.
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
    Ok(roots)
}

/// Whether a request is for a page of a listing, which the library of object stores reads as a whole: of S3 and Google, or
/// of Azure.
fn is_listing(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("list-type=") || pair == "comp=list")
}

/// The pause that an overloaded server requests.
fn pause<B>(response: &hyper::Response<B>) -> Option<Duration> {
    let status = response.status();
    if ![StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        return None;
    }
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overloaded_server_is_left_alone_for_as_long_as_it_asks() {
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

    #[test]
    fn pages_of_listings_are_limited_and_objects_are_not() {
        for (uri, expected) in [
            ("http://h/bucket?list-type=2&prefix=m", true),
            ("http://h/account/container?restype=container&comp=list", true),
            ("http://h/bucket/object", false),
            ("http://h/bucket/list-type=2", false),
            ("http://h/bucket/object?versionId=list-type", false),
        ] {
            assert_eq!(is_listing(&uri.parse().unwrap()), expected, "{uri}");
        }
    }
}

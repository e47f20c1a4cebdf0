//! Requests to a server, and their answers.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::address::Address;
use crate::tls::{self, Identity, Trust};

/// The variable with the API key, so that no list of processes shows it.
const KEY: &str = "NEREID_API_KEY";

/// The most bytes of an answer.
const ANSWER_LIMIT: usize = 2 << 30;

/// How a server is reached, by which rights.
#[derive(Clone, Debug)]
pub struct Access {
    /// The server.
    pub address: Address,
    /// The certificates that are trusted.
    pub trust: Trust,
    /// The client's own certificate.
    pub identity: Option<Identity>,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// The longest wait for an answer to begin, and for each of its parts.
    pub limit: Duration,
}

/// The header with the API key of the environment, if there is one.
///
/// # Errors
/// The variable has no key.
pub fn key() -> Result<Option<(String, String)>, String> {
    let Some(key) = env::var_os(KEY).filter(|key| !key.is_empty()) else { return Ok(None) };
    let key = key.into_string().ok().filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    let key =
        key.ok_or_else(|| format!("{KEY} is not an API key: it has blanks or other characters of no key"))?;
    Ok(Some(("Authorization".to_owned(), format!("Bearer {key}"))))
}

/// A request without a successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server was not reached, or its answer broke off.
    Unreachable(String),
    /// The server answered with an error.
    Status(StatusCode, String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => f.write_str(reason),
            Self::Status(status, reason) if reason.is_empty() => write!(f, "status {}", status.as_u16()),
            Self::Status(status, reason) => write!(f, "{reason} (status {})", status.as_u16()),
        }
    }
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Connections to a server.
pub(crate) struct Connection {
    way: Way,
    access: Access,
}

/// How a server is reached.
enum Way {
    Tcp(Box<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>),
    /// A Unix socket. Each request has a connection of its own, which costs nothing worth keeping one for.
    Socket(PathBuf),
}

impl Way {
    async fn request(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Refusal> {
        match self {
            Self::Tcp(client) => client.request(request).await.map_err(|error| unreachable(&error)),
            Self::Socket(path) => {
                request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
                request_at(path, request).await
            }
        }
    }
}

/// Sends a request to the server at a Unix socket.
async fn request_at(path: &Path, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Refusal> {
    let stream = UnixStream::connect(path).await.map_err(|error| unreachable(&error))?;
    let connected = handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| unreachable(&error))?;
    // The task ends with the answer, which has the error of the connection, too.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| unreachable(&error))
}

impl Connection {
    /// # Errors
    /// A file of certificates cannot be used.
    pub(crate) fn new(access: Access) -> Result<Self, String> {
        if let Some(path) = &access.address.socket {
            return Ok(Self { way: Way::Socket(path.clone()), access });
        }
        let settings = tls::settings(&access.trust, access.identity.as_ref())?;
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(access.limit));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new().with_tls_config(settings).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp));
        Ok(Self { way: Way::Tcp(Box::new(client)), access })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.access.address
    }

    /// The JSON document at a path.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn document(&self, path: &str) -> Result<Value, Refusal> {
        parsed(&self.whole(Method::GET, path, &[], Bytes::new()).await?.body)
    }

    /// The JSON document that answers a post.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        parsed(&self.whole(Method::POST, path, &[], body.to_string().into()).await?.body)
    }

    /// The whole answer to a request.
    ///
    /// # Errors
    /// The answer is an error, or does not arrive in time.
    pub(crate) async fn whole(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Result<Answer, Refusal> {
        let (head, body) = self.send(method, path, headers, body).await?.into_parts();
        let body = self.collect(body).await?;
        if !head.status.is_success() {
            return Err(Refusal::Status(head.status, reason(&body)));
        }
        Ok(Answer { headers: head.headers, body })
    }

    /// The answer to a request as it arrives.
    ///
    /// # Errors
    /// The answer is an error, or does not begin in time.
    pub(crate) async fn stream(&self, path: &str, body: Bytes) -> Result<Stream<'_>, Refusal> {
        let headers = [("Accept", "text/event-stream".to_owned())];
        let (head, body) = self.send(Method::POST, path, &headers, body).await?.into_parts();
        if !head.status.is_success() {
            return Err(Refusal::Status(head.status, reason(&self.collect(body).await?)));
        }
        Ok(Stream { body, connection: self })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Refusal> {
        let invalid = |error: http::Error| Refusal::Unreachable(format!("the request is invalid: {error}"));
        let mut request = Request::builder()
            .method(method)
            .uri(self.target(path))
            .header("Accept", "application/json")
            .header("User-Agent", "nereid");
        let own = self.access.headers.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in own.chain(headers.iter().map(|(name, value)| (*name, value))) {
            if let Some(all) = request.headers_mut().filter(|_| name == "Accept") {
                all.remove(name);
            }
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(invalid)?;
        let answer = timeout(self.access.limit, self.way.request(request)).await;
        answer.map_err(|_| self.late())?
    }

    /// The target of a request: a whole URL, or the path alone at a Unix socket.
    fn target(&self, path: &str) -> String {
        match self.way {
            Way::Tcp(_) => format!("{}{path}", self.access.address),
            Way::Socket(_) => path.to_owned(),
        }
    }

    async fn collect(&self, body: Incoming) -> Result<Bytes, Refusal> {
        let body = timeout(self.access.limit, Limited::new(body, ANSWER_LIMIT).collect()).await;
        let body = body.map_err(|_| self.late())?;
        Ok(body.map_err(|error| unreachable(&*error))?.to_bytes())
    }

    fn late(&self) -> Refusal {
        Refusal::Unreachable(format!("no answer within {} seconds", self.access.limit.as_secs()))
    }
}

/// The body of an answer as it arrives.
pub(crate) struct Stream<'a> {
    body: Incoming,
    connection: &'a Connection,
}

impl Stream<'_> {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The answer broke off, or no more of it came in time.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = timeout(self.connection.access.limit, self.body.frame()).await;
            match frame.map_err(|_| self.connection.late())? {
                None => return Ok(None),
                Some(Err(error)) => return Err(unreachable(&error)),
                // Trailers have nothing for us.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// Reports the innermost cause: the outer errors only name layers of the client.
fn unreachable(error: &(dyn std::error::Error + 'static)) -> Refusal {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Refusal::Unreachable(format!("no answer: {cause}"))
}

fn parsed(body: &[u8]) -> Result<Value, Refusal> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| {
        Refusal::Unreachable(format!("the answer is not of JSON ({error}); is it the port of HTTP?"))
    })
}

/// The message of an answer that is an error.
fn reason(body: &[u8]) -> String {
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    match document.get("error").and_then(Value::as_str) {
        Some(reason) => reason.to_owned(),
        None => String::from_utf8_lossy(&body[..body.len().min(500)]).trim().to_owned(),
    }
}

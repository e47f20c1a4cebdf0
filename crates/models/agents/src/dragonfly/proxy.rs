//! Requests to the proxy of Dragonfly's daemon.
//!
//! A GET with the header `X-Dragonfly-Use-P2P` makes the proxy fetch through its peers with any scheme: the
//! request line has the full URL, even for `https`, and the daemon opens the TLS connection to the bucket.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue, RANGE};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use nereid_repository::{NextPiece, RouteAnswer, RouteBody, RouteError, RoutedObject};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::settings::DragonflySettings;
use super::state::ProxyState;

/// The connect timeout: a proxy is on this machine, or near.
const CONNECT: Duration = Duration::from_secs(5);

/// The read timeout: the proxy may have to read a bucket first.
const STALL: Duration = Duration::from_secs(60);

/// An unreachable proxy is left alone for this long: finding out again costs little.
pub(super) const UNREACHABLE: Duration = Duration::from_secs(10);

/// A silent proxy is left alone for this long: each attempt takes as long as [`STALL`].
pub(super) const SILENT: Duration = Duration::from_secs(300);

/// The proxy of a daemon.
pub(super) struct Proxy {
    /// `host:port`.
    address: String,
    /// Sent with every request.
    headers: HeaderMap,
}

/// Why a fetch failed.
pub(super) struct Failure {
    pub message: String,
    /// The time that the proxy is left alone, if it is unreachable or silent.
    pub pause: Option<Duration>,
}

impl Proxy {
    pub(super) fn new(settings: DragonflySettings) -> Self {
        let DragonflySettings { proxy, headers: given, filter, .. } = settings;
        let uri: Uri = proxy.parse().unwrap_or_default();
        let host = uri.host().unwrap_or_default();
        let mut headers = HeaderMap::new();
        let fixed = [
            ("x-dragonfly-use-p2p", "true".to_owned()),
            // Older and newer daemons use different headers.
            ("x-dragonfly-filter", filter.join("&")),
            ("x-dragonfly-filtered-query-params", filter.join(",")),
        ];
        let given = given.iter().map(|(name, value)| (name.as_str(), value.clone()));
        for (name, value) in fixed.into_iter().chain(given) {
            // The settings were checked.
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(&value)) {
                headers.insert(name, value);
            }
        }
        Self { address: format!("{host}:{}", uri.port_u16().unwrap_or(80)), headers }
    }

    /// Starts to fetch an object, or a range of it.
    pub(super) async fn get(
        &self,
        object: RoutedObject,
        state: &Arc<ProxyState>,
    ) -> Result<RouteAnswer, Failure> {
        let request = self.request(&object)?;
        let away = |message: String| Failure { message, pause: Some(UNREACHABLE) };
        let silent = |message: String| Failure { message, pause: Some(SILENT) };
        let failed = |message: String| Failure { message, pause: None };
        let stream = timeout(CONNECT, TcpStream::connect(&self.address)).await;
        let stream = stream.map_err(|_| away("no connection within 5 seconds".into()))?;
        let stream = stream.map_err(|error| away(error.to_string()))?;
        // Without this, small files have a higher latency, which is not a failure.
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        tokio::spawn(async move {
            // The request reports the connection's error, too.
            let _ = connection.await;
        });
        let answer = timeout(STALL, sender.send_request(request)).await;
        let answer = answer.map_err(|_| silent(format!("no answer within {} seconds", STALL.as_secs())))?;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        read(answer, object.range, state).map_err(failed)
    }

    fn request(&self, object: &RoutedObject) -> Result<Request<Empty<Bytes>>, Failure> {
        let invalid = |what: &str| Failure { message: what.to_owned(), pause: None };
        let url: Uri = object.url.parse().map_err(|_| invalid("the object's address is not one of HTTP"))?;
        let host = url.authority().ok_or_else(|| invalid("the object's address has no host"))?.to_string();
        let mut request = Request::new(Empty::new());
        *request.headers_mut() = self.headers.clone();
        let mut set = |name: HeaderName, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                request.headers_mut().insert(name, value);
            }
        };
        set(HOST, host);
        if let Some(Range { start, end }) = object.range {
            set(RANGE, format!("bytes={start}-{}", end - 1));
        }
        if let Some(etag) = &object.etag {
            // Without this, an overwritten object would be the same task, and the daemon would return the old contents.
            let plain = object.url.split('?').next().unwrap_or_default();
            let name = HeaderName::from_static("x-dragonfly-content-for-calculating-task-id");
            set(name, format!("{plain}#{etag}"));
        }
        *request.uri_mut() = url;
        Ok(request)
    }
}

/// The part of a range that an answer contains.
fn read(
    answer: Response<Incoming>,
    range: Option<Range<u64>>,
    state: &Arc<ProxyState>,
) -> Result<RouteAnswer, String> {
    let (status, headers) = (answer.status(), answer.headers());
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let etag = text(ETAG);
    // `bytes 0-9/100`
    let total = |range: String| range.rsplit_once('/').and_then(|(_, total)| total.parse().ok());
    let (size, skip, length) = match (status, &range) {
        (StatusCode::PARTIAL_CONTENT, Some(Range { start, end })) => {
            let content = text(CONTENT_RANGE).unwrap_or_default();
            if !content.starts_with(&format!("bytes {start}-")) {
                return Err(format!("brings the range '{content}' in place of {start}-{}", end - 1));
            }
            (total(content), 0, end - start)
        }
        // Not every proxy supports ranges.
        (StatusCode::OK, Some(Range { start, end })) => {
            (text(CONTENT_LENGTH).and_then(|length| length.parse().ok()), *start, end - start)
        }
        (StatusCode::OK, None) => (text(CONTENT_LENGTH).and_then(|length| length.parse().ok()), 0, u64::MAX),
        _ => {
            let whose = text(HeaderName::from_static("x-dragonfly-error-type"));
            let whose = whose.map_or_else(String::new, |whose| format!(", an error of the {whose}"));
            return Err(format!("answers with HTTP status {}{whose}", status.as_u16()));
        }
    };
    let body = Piece { body: answer.into_body(), skip, left: length, state: Arc::clone(state) };
    Ok(RouteAnswer { etag, size, body: Box::new(body) })
}

/// A part of a body.
struct Piece {
    body: Incoming,
    /// The number of bytes before it.
    skip: u64,
    /// The number of bytes still expected.
    left: u64,
    state: Arc<ProxyState>,
}

impl RouteBody for Piece {
    fn next(&mut self) -> NextPiece<'_> {
        Box::pin(async {
            while self.left > 0 {
                let frame = match timeout(STALL, self.body.frame()).await {
                    Ok(None) => return None,
                    Ok(Some(Ok(frame))) => {
                        self.state.works();
                        frame
                    }
                    Ok(Some(Err(error))) => return Some(Err(RouteError(error.to_string()))),
                    Err(_) => {
                        let message = format!("nothing arrived for {} seconds", STALL.as_secs());
                        self.state.pause(SILENT, &message);
                        return Some(Err(RouteError(message)));
                    }
                };
                let Ok(mut bytes) = frame.into_data() else { continue };
                let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= skipped as u64;
                bytes = bytes.slice(skipped..);
                bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                if !bytes.is_empty() {
                    // Without a range the length is unknown, and is not counted.
                    if self.left != u64::MAX {
                        self.left -= bytes.len() as u64;
                    }
                    return Some(Ok(bytes));
                }
            }
            None
        })
    }
}

//! A test server that speaks the reading half of S3, and misbehaves on demand. The parts that Google understands, and
//! listings in Azure's form, let it stand for those clouds, too. Paths outside of the bucket are keys, so that it stands
//! for registries as well.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, IF_MATCH, LAST_MODIFIED, RANGE,
    RETRY_AFTER,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use md5::{Digest, Md5};
use percent_encoding::percent_decode_str;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::{Address, CacheOptions, CloudOptions, Clouds, Environment, ListingLimits, Patience};

/// A misbehaviour.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answers with this status, and a `Retry-After` of these seconds.
    Status(u16, Option<u64>),
    /// Closes the connection without an answer.
    Reset,
    /// Closes the connection after these bytes of the body.
    CutAfter(usize),
    /// Sends these bytes of the body and then stalls.
    StallAfter(usize),
    /// Sends wrong bytes.
    Damage,
    /// Refuses the credentials.
    Expired,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub key: Option<String>,
    pub range: Option<String>,
    pub authorization: String,
    pub host: String,
}

type Rule = Box<dyn FnMut(&Seen) -> Option<Fault> + Send>;

/// An object.
#[derive(Default)]
struct Stored {
    contents: Bytes,
    etag: String,
    /// Further headers. S3's are sent only with the complete object.
    headers: Vec<(String, String)>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    seen: Vec<Seen>,
    rule: Option<Rule>,
    page: usize,
}

/// The server. It has one bucket, `bucket`, and stops when it is dropped.
pub(crate) struct Server {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _end: oneshot::Sender<()>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State { page: 3, ..State::default() }));
        let (end, ended) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = serve(listener, shared) => {}
                    _ = ended => {}
                }
            });
        });
        Self { address: address.recv().unwrap(), state, _end: end }
    }

    pub(crate) fn put(&self, key: &str, contents: &[u8]) {
        self.put_as(key, contents, None);
    }

    /// An object with an ETag that is not its MD5.
    pub(crate) fn put_as(&self, key: &str, contents: &[u8], etag: Option<&str>) {
        self.put_with(key, contents, etag, &[]);
    }

    /// An object with headers, such as those of digests.
    pub(crate) fn put_with(&self, key: &str, contents: &[u8], etag: Option<&str>, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let etag = etag.map_or_else(|| digest(contents), str::to_owned);
        let contents = Bytes::copy_from_slice(contents);
        let object = Stored { contents, etag, headers: headers.collect() };
        self.state.lock().unwrap().objects.insert(key.into(), object);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state.lock().unwrap().objects.remove(key);
    }

    /// Misbehaves from now on according to the rule.
    pub(crate) fn misbehave(&self, rule: impl FnMut(&Seen) -> Option<Fault> + Send + 'static) {
        self.state.lock().unwrap().rule = Some(Box::new(rule));
    }

    pub(crate) fn behave(&self) {
        self.state.lock().unwrap().rule = None;
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    pub(crate) fn set_page(&self, page: usize) {
        self.state.lock().unwrap().page = page;
    }

    pub(crate) fn at(&self, path: &str) -> Address {
        Address::parse(&format!("s3://http://{}/bucket/{path}", self.address)).unwrap().unwrap()
    }
}

/// Clouds that wait for servers only briefly, with these variables.
pub(crate) fn clouds_with(cache: CacheOptions, variables: &[(&'static str, &str)]) -> Clouds {
    limited_clouds(cache, variables, ListingLimits::default())
}

/// Clouds with limits of listings.
pub(crate) fn limited_clouds(
    cache: CacheOptions,
    variables: &[(&'static str, &str)],
    listings: ListingLimits,
) -> Clouds {
    let variables: BTreeMap<_, _> =
        variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let patience = Patience {
        connect: Duration::from_secs(5),
        stall: Duration::from_millis(300),
        first_pause: Duration::from_millis(1),
        ..Patience::default()
    };
    let environment = Environment::new(move |name| variables.get(name).cloned());
    Clouds::new(CloudOptions { cache, environment, patience, listings, ..CloudOptions::default() }).unwrap()
}

pub(crate) const KEYS: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "the-id"), ("AWS_SECRET_ACCESS_KEY", "the-secret")];

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { answer(&request, &state) }
            });
            // A cut connection ends with an error.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

type Body = StreamBody<Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>>>;

fn answer(request: &Request<Incoming>, state: &Mutex<State>) -> io::Result<Response<Body>> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = percent_decode_str(request.uri().path()).decode_utf8_lossy().into_owned();
    let path = path.strip_prefix("/account").unwrap_or(&path);
    let key = path.strip_prefix("/bucket").unwrap_or(path).trim_start_matches('/').to_owned();
    let key = Some(key).filter(|key| !key.is_empty());
    let text = |name| header(name).unwrap_or_default();
    let seen = Seen { key, range: header(RANGE), authorization: text(AUTHORIZATION), host: text(HOST) };
    let mut state = state.lock().unwrap();
    let fault = state.rule.as_mut().and_then(|rule| rule(&seen));
    state.seen.push(seen.clone());
    let mut answer = match (&fault, &seen.key) {
        (Some(Fault::Reset), _) => return Err(io::Error::other("a reset")),
        (Some(Fault::Status(status, pause)), _) => {
            let mut answer = failure(*status, "SlowDown");
            if let Some(pause) = pause {
                answer.headers_mut().insert(RETRY_AFTER, (*pause).into());
            }
            return Ok(answer);
        }
        (Some(Fault::Expired), _) => return Ok(failure(400, "ExpiredToken")),
        (_, None) => return Ok(list(request, &state)),
        (_, Some(key)) => match state.objects.get(key) {
            None => return Ok(failure(404, "NoSuchKey")),
            Some(stored) => {
                if header(IF_MATCH).is_some_and(|wanted| wanted != stored.etag) {
                    return Ok(failure(412, "PreconditionFailed"));
                }
                let mut answer = object(&stored.contents, &stored.etag, seen.range.as_deref());
                let is_asked = request.headers().contains_key("x-amz-checksum-mode") && seen.range.is_none();
                for (name, value) in &stored.headers {
                    if is_asked || !name.starts_with("x-amz-") {
                        answer
                            .headers_mut()
                            .append(HeaderName::from_str(name).unwrap(), value.parse().unwrap());
                    }
                }
                answer
            }
        },
    };
    let contents = answer.extensions_mut().remove::<Bytes>().unwrap_or_default();
    let cut = |length: usize| contents.slice(..contents.len().min(length));
    *answer.body_mut() = match fault {
        Some(Fault::CutAfter(length)) if length < contents.len() => {
            // The bytes already sent must leave before the connection ends.
            let end = stream::once(async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Err(io::Error::other("a cut"))
            });
            StreamBody::new(stream::iter([Ok(Frame::data(cut(length)))]).chain(end).boxed())
        }
        Some(Fault::StallAfter(length)) => {
            let rest = stream::pending();
            StreamBody::new(stream::iter([Ok(Frame::data(cut(length)))]).chain(rest).boxed())
        }
        Some(Fault::Damage) => body(contents.iter().map(|byte| byte ^ 1).collect()),
        _ => body(contents),
    };
    Ok(answer)
}

fn body(bytes: Bytes) -> Body {
    StreamBody::new(stream::iter([Ok(Frame::data(bytes))]).boxed())
}

fn digest(contents: &[u8]) -> String {
    let digest = Md5::digest(contents);
    format!("\"{}\"", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn failure(status: u16, code: &str) -> Response<Body> {
    let text = format!("<Error><Code>{code}</Code><Message>what went wrong</Message></Error>");
    let mut answer = Response::new(body(text.into()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

/// An object, or a range of it, as an answer.
fn object(contents: &Bytes, etag: &str, range: Option<&str>) -> Response<Body> {
    let mut answer = Response::new(body(Bytes::new()));
    let mut sent = contents.clone();
    if let Some(range) = range {
        let (from, to) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).unwrap();
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let Some(part) = contents.get(from..(to + 1).min(contents.len())) else {
            return failure(416, "InvalidRange");
        };
        sent = contents.slice_ref(part);
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let value = format!("bytes {from}-{}/{}", from + part.len() - 1, contents.len());
        answer.headers_mut().insert(CONTENT_RANGE, value.parse().unwrap());
    }
    answer.headers_mut().insert(ETAG, etag.parse().unwrap());
    answer.headers_mut().insert(LAST_MODIFIED, "Wed, 21 Oct 2015 07:28:00 GMT".parse().unwrap());
    answer.headers_mut().insert(CONTENT_LENGTH, sent.len().into());
    answer.extensions_mut().insert(sent);
    answer
}

/// A page of the listing.
fn list(request: &Request<Incoming>, state: &State) -> Response<Body> {
    let query: BTreeMap<_, _> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| {
            (name, percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned())
        })
        .collect();
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = query.get("continuation-token").or(query.get("marker")).cloned().unwrap_or_default();
    let matching = state.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let page: Vec<_> = matching.take(state.page + 1).collect();
    let is_azure = query.get("comp").is_some_and(|what| what == "list");
    let last = page.get(state.page).and(page.get(state.page.wrapping_sub(1))).map(|(key, _)| key.as_str());
    let mut text = String::from(if is_azure { "<EnumerationResults><Blobs>" } else { "<ListBucketResult>" });
    for (key, stored) in page.iter().take(state.page) {
        let (size, etag) = (stored.contents.len(), stored.etag.replace('"', "&quot;"));
        let key = key.replace('&', "&amp;").replace('<', "&lt;");
        if is_azure {
            write!(
                text,
                "<Blob><Name>{key}</Name><Properties><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT</Last-Modified>\
                 <Content-Length>{size}</Content-Length><Content-Type>x/y</Content-Type><Etag>{etag}</Etag></Properties></Blob>"
            )
            .unwrap();
        } else {
            write!(
                text,
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{etag}</ETag>\
                 <LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            )
            .unwrap();
        }
    }
    let last = last.unwrap_or_default();
    if is_azure {
        write!(text, "</Blobs><NextMarker>{last}</NextMarker></EnumerationResults>").unwrap();
    } else {
        if !last.is_empty() {
            write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        }
        text.push_str("</ListBucketResult>");
    }
    Response::new(body(text.into()))
}

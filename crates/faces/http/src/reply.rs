//! Replies: status, headers, and a body of pieces that are written without being joined.

use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use nereid_backend_api::Error;
use nereid_protocol::{Denied, Exhausted, http_status};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A reply.
pub type Reply = Response<Contents>;

/// The body of a reply.
pub enum Contents {
    /// Complete.
    Whole(Pieces),
    /// Produced while it is sent.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
    /// A body with a guard that is dropped at its end.
    Guarded(Box<GuardedBody>),
}

/// A body with a guard that is dropped once the body was handed to the connection or dropped.
pub struct GuardedBody {
    contents: Contents,
    _guard: Box<dyn Any + Send>,
}

/// Attaches a guard that is dropped when the reply was sent or dropped.
pub fn guarded(reply: Reply, guard: impl Send + 'static) -> Reply {
    reply.map(|contents| Contents::Guarded(Box::new(GuardedBody { contents, _guard: Box::new(guard) })))
}

impl Default for Contents {
    fn default() -> Self {
        Self::Whole(Pieces::default())
    }
}

impl Body for Contents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(pieces) => Poll::Ready(pieces.next_frame().map(Ok)),
            Self::Stream(stream) => stream.as_mut().poll_frame(context),
            Self::Guarded(guarded) => Pin::new(&mut guarded.contents).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces) => pieces.pieces.is_empty(),
            Self::Stream(stream) => stream.is_end_stream(),
            Self::Guarded(guarded) => guarded.contents.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => SizeHint::with_exact(pieces.left),
            Self::Stream(stream) => stream.size_hint(),
            Self::Guarded(guarded) => guarded.contents.size_hint(),
        }
    }
}

/// A complete body in pieces.
#[derive(Default)]
pub struct Pieces {
    /// In reverse: the next one is last.
    pieces: SmallVec<[Bytes; 2]>,
    left: u64,
}

impl Pieces {
    /// The pieces in order; empty ones are dropped.
    pub fn new(mut pieces: SmallVec<[Bytes; 2]>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        pieces.reverse();
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, left }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// The pieces in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Bytes> {
        self.pieces.iter().rev()
    }

    /// The pieces, the last one first.
    pub(crate) fn into_reversed(self) -> SmallVec<[Bytes; 2]> {
        self.pieces
    }

    fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let piece = self.pieces.pop()?;
        self.left -= piece.len() as u64;
        Some(Frame::data(piece))
    }
}

/// A reply whose body is produced while it is sent.
pub fn stream(
    status: StatusCode,
    content_type: &'static str,
    body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Reply {
    with_type(status, HeaderValue::from_static(content_type), Contents::Stream(Box::pin(body)))
}

/// A reply of bytes.
pub fn bytes(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    with_type(status, HeaderValue::from_static(content_type), whole(body))
}

fn whole(body: impl Into<Bytes>) -> Contents {
    Contents::Whole(Pieces::new(SmallVec::from_iter([body.into()])))
}

fn with_type(status: StatusCode, content_type: HeaderValue, contents: Contents) -> Reply {
    let mut reply = Response::new(contents);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// A reply without a body, with the reference's content type, which some health checks require.
pub fn empty(status: StatusCode) -> Reply {
    with_type(status, HeaderValue::from_static("text/plain"), Contents::default())
}

/// A JSON reply from serialised bytes.
pub fn json_bytes(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    with_type(status, JSON, whole(body))
}

/// A JSON reply.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => error_text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// `{"error": "..."}` with the status of the error's code, and with `Retry-After` if the error has a time to retry.
pub fn error(error: &Error) -> Reply {
    with_retry_after(error_text(status(error), error.message()), error)
}

/// Adds `Retry-After` to the reply to an error that may be over then.
pub fn with_retry_after(mut reply: Reply, error: &Error) -> Reply {
    if let Some(seconds) = error.retry_after() {
        reply.headers_mut().insert(RETRY_AFTER, seconds.get().into());
    }
    reply
}

/// The status of an error's code.
pub fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(http_status(error.code())).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `{"error": "..."}` with any status.
pub fn error_text(status: StatusCode, message: &str) -> Reply {
    json_bytes(status, error_json(message))
}

/// `{"error": "..."}`.
pub fn error_json(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}

/// The reply of a face whose errors have another form. Errors that this crate made are `{"error": "..."}`; others stay as they are.
pub(crate) fn with_error_body(reply: Reply, error_body: fn(StatusCode, &str) -> Vec<u8>) -> Reply {
    #[derive(Deserialize)]
    struct OwnError<'a> {
        #[serde(borrow)]
        error: Cow<'a, str>,
    }
    let status = reply.status();
    let piece = match reply.body() {
        Contents::Whole(pieces) if status.is_client_error() || status.is_server_error() => {
            pieces.iter().next()
        }
        _ => None,
    };
    let own = piece.and_then(|piece| serde_json::from_slice::<OwnError<'_>>(piece).ok());
    match own.map(|own| error_body(status, &own.error)) {
        Some(body) => reply.map(|_| whole(body)),
        None => reply,
    }
}

/// The reply to a refused request.
pub fn denied(denied: &Denied) -> Reply {
    match denied {
        Denied::Restricted { header } => error_text(
            StatusCode::FORBIDDEN,
            &format!("This API is restricted, expecting header '{header}' with the right key"),
        ),
        Denied::Unauthenticated(message) => unauthenticated(message),
        Denied::Forbidden(message) => error_text(StatusCode::FORBIDDEN, message),
        Denied::Exhausted(exhausted) => too_many(exhausted),
    }
}

/// 401, with the scheme by which clients authenticate.
fn unauthenticated(message: &str) -> Reply {
    let mut reply = error_text(StatusCode::UNAUTHORIZED, message);
    reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    reply
}

/// 429, with the limit and the time until another attempt, in the headers that clients know.
fn too_many(exhausted: &Exhausted) -> Reply {
    let mut reply = error_text(StatusCode::TOO_MANY_REQUESTS, &exhausted.message);
    let seconds = HeaderValue::from(exhausted.retry_after.as_secs_f64().ceil() as u64);
    let headers = reply.headers_mut();
    headers.insert(RETRY_AFTER, seconds.clone());
    headers.insert("ratelimit-limit", HeaderValue::from(exhausted.limit));
    headers.insert("ratelimit-remaining", HeaderValue::from(0));
    headers.insert("ratelimit-reset", seconds);
    reply
}

/// 405, with the methods that the path has.
pub(crate) fn wrong_method(allowed: &str) -> Reply {
    let mut reply = error_text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        reply.headers_mut().insert(ALLOW, allowed);
    }
    reply
}

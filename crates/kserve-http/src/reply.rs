//! Answers on their way out: status, headers, and a body of pieces that are written without being joined.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use nereid_core::backend_api::{Error, Trace};
use nereid_protocol::http_status;
use serde::Serialize;
use smallvec::SmallVec;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer.
pub(crate) type Reply = Response<Contents>;

/// What a body is made of.
pub(crate) enum Contents {
    /// It is there as a whole.
    Whole(Pieces),
    /// It comes bit by bit.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
    /// It is traced.
    Traced(Box<Traced>),
}

/// A body whose end is told to a trace: it was handed to the connection to the end, or is not wanted any more.
pub(crate) struct Traced {
    contents: Contents,
    trace: Arc<Trace>,
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.trace.stamp("HTTP_SEND_END", Instant::now());
    }
}

/// An answer that is about to be sent, told to the trace of its request.
pub(crate) fn traced(reply: Reply, trace: Arc<Trace>) -> Reply {
    trace.stamp("HTTP_SEND_START", Instant::now());
    reply.map(|contents| Contents::Traced(Box::new(Traced { contents, trace })))
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
            Self::Traced(traced) => Pin::new(&mut traced.contents).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces) => pieces.pieces.is_empty(),
            Self::Stream(stream) => stream.is_end_stream(),
            Self::Traced(traced) => traced.contents.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => SizeHint::with_exact(pieces.left),
            Self::Stream(stream) => stream.size_hint(),
            Self::Traced(traced) => traced.contents.size_hint(),
        }
    }
}

/// A body that lies in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    /// In reverse, so that the next one is the last.
    pieces: SmallVec<[Bytes; 2]>,
    left: u64,
}

impl Pieces {
    pub(crate) fn new(mut pieces: SmallVec<[Bytes; 2]>) -> Self {
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter().rev()
    }

    fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let piece = self.pieces.pop()?;
        self.left -= piece.len() as u64;
        Some(Frame::data(piece))
    }
}

/// An answer without a body. It has the content type that the reference gives it, which some health checks look at.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Reply::default();
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    reply
}

/// A JSON answer of ready bytes.
pub(crate) fn json_bytes(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Contents::Whole(Pieces::new(SmallVec::from_iter([body.into()]))));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(bytes) => json_bytes(status, bytes),
        Err(error) => error_text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// `{"error": "..."}` with the status its code maps to.
pub(crate) fn error(error: &Error) -> Reply {
    error_text(status(error), error.message())
}

/// The status that an error's code maps to.
pub(crate) fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(http_status(error.code())).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `{"error": "..."}` with a status of HTTP's own.
pub(crate) fn error_text(status: StatusCode, message: &str) -> Reply {
    json_bytes(status, error_json(message))
}

/// `{"error": "..."}`.
pub(crate) fn error_json(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}

/// The answer to a method that the route does not have, with those it has.
pub(crate) fn wrong_method(allowed: &str) -> Reply {
    let mut reply = error_text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        reply.headers_mut().insert(ALLOW, allowed);
    }
    reply
}

//! Server-sent events, as the HTML standard defines them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::StatusCode;

use crate::pace::Busy;
use crate::reply::{self, Reply};

const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// The source of a stream's events. Dropped early if the client disconnects.
pub trait EventSource: Send + Unpin + 'static {
    /// The data of the next event; `None` at the end.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
}

/// A reply that streams events: `first`, if any, then those of the source.
pub fn events(status: StatusCode, first: Option<Vec<u8>>, source: impl EventSource, busy: Busy) -> Reply {
    let first = first.map(|data| event(&data));
    reply::stream(status, EVENT_STREAM, Events { first, source, _busy: busy })
}

struct Events<S> {
    first: Option<Bytes>,
    source: S,
    /// The client is not expected to send anything while the stream lasts.
    _busy: Busy,
}

impl<S: EventSource> Body for Events<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let data = ready!(self.source.poll_event(context));
        Poll::Ready(data.map(|data| Ok(Frame::data(event(&data)))))
    }
}

/// An event on the wire. Each line of the data becomes a field, so that line breaks cannot end the event.
fn event(data: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(data.len() + 8);
    event.extend_from_slice(b"data: ");
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let (line, broken) = rest.split_at(end);
        event.extend_from_slice(line);
        event.extend_from_slice(b"\ndata: ");
        rest = broken.strip_prefix(b"\r\n").or_else(|| broken.get(1..)).unwrap_or_default();
    }
    event.extend_from_slice(rest);
    event.extend_from_slice(b"\n\n");
    event.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_several_lines_stays_one_event() {
        for (data, expected) in [
            ("{}", "data: {}\n\n"),
            ("", "data: \n\n"),
            ("a\nb", "data: a\ndata: b\n\n"),
            ("a\r\nb\n", "data: a\ndata: b\ndata: \n\n"),
            ("a\rb\n\rc", "data: a\ndata: b\ndata: \ndata: c\n\n"),
            ("a\n\nid: 1", "data: a\ndata: \ndata: id: 1\n\n"),
        ] {
            assert_eq!(event(data.as_bytes()), expected, "{data:?}");
        }
    }
}

//! Streams of server-sent events that are written straight into the connection's buffers, with comments while nothing happens.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use nereid_http::{Busy, Reply, reply};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep_until};

/// The longest silence. Proxies end connections that are silent for a minute.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment, which clients skip.
const COMMENT: &[u8] = b": keep-alive\n\n";

/// A frame is sent when it has this length, even if there are more events.
const FRAME: usize = 16 << 10;

/// Has proxies pass events on at once.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The source of a stream's events. Dropped early if the client disconnects.
pub(crate) trait Events: Send + Unpin + 'static {
    /// Appends the next events. `false` at the end; what was appended then is sent.
    fn poll_events(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<bool>;
}

/// A reply that streams events, behind those that are written already.
pub(crate) fn stream(written: Vec<u8>, is_over: bool, source: impl Events, busy: Busy) -> Reply {
    let body = EventBody { written, source, is_over, silence: None, last: Instant::now(), _busy: busy };
    let mut reply = reply::stream(StatusCode::OK, "text/event-stream; charset=utf-8", body);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    reply
}

/// Appends an event without a name.
pub(crate) fn event(output: &mut Vec<u8>, data: &impl Serialize) {
    output.extend_from_slice(b"data: ");
    // JSON has no line breaks here. Serialisation of our own types does not fail.
    let _ = serde_json::to_writer(&mut *output, data);
    output.extend_from_slice(b"\n\n");
}

/// Appends an event with a name.
pub(crate) fn named_event(output: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    output.extend_from_slice(b"event: ");
    output.extend_from_slice(name.as_bytes());
    output.push(b'\n');
    event(output, data);
}

/// Appends an event with the JSON of an error, which clients raise.
pub(crate) fn error_event(output: &mut Vec<u8>, json: &[u8]) {
    output.extend_from_slice(b"data: ");
    output.extend_from_slice(json);
    output.extend_from_slice(b"\n\n");
}

/// Appends the mark at the end of a stream.
pub(crate) fn done(output: &mut Vec<u8>) {
    output.extend_from_slice(b"data: [DONE]\n\n");
}

struct EventBody<S, B> {
    /// Events that are not sent yet.
    written: Vec<u8>,
    source: S,
    is_over: bool,
    /// Ends when the silence has lasted long enough, or later. Made when the source first has nothing.
    silence: Option<Pin<Box<Sleep>>>,
    /// When something was sent last.
    last: Instant,
    /// The client is not expected to send anything while the stream lasts.
    _busy: B,
}

impl<S: Events, B: Send + Unpin> Body for EventBody<S, B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        while !this.is_over && this.written.len() < FRAME {
            match this.source.poll_events(context, &mut this.written) {
                Poll::Ready(goes_on) => this.is_over = !goes_on,
                Poll::Pending => break,
            }
        }
        if this.written.is_empty() {
            if this.is_over {
                return Poll::Ready(None);
            }
            if !this.poll_silence(context) {
                return Poll::Pending;
            }
            this.written.extend_from_slice(COMMENT);
        }
        this.last = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.written).into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over && self.written.is_empty()
    }
}

impl<S, B> EventBody<S, B> {
    /// Whether the silence has lasted too long. The timer is set again only when it is over: a stream that is busy costs no timer.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> bool {
        let end = self.last + KEEP_ALIVE;
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while silence.as_mut().poll(context).is_ready() {
            if Instant::now() >= end {
                return true;
            }
            silence.as_mut().reset(end);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;

    use super::*;

    /// Events at these times in seconds, relative to the last; the end after the last one.
    struct Script {
        pauses: VecDeque<u64>,
        sleep: Option<Pin<Box<Sleep>>>,
    }

    impl Events for Script {
        fn poll_events(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<bool> {
            let Some(pause) = self.pauses.front() else { return Poll::Ready(false) };
            let pause = Duration::from_secs(*pause);
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            std::task::ready!(sleep.as_mut().poll(context));
            self.sleep = None;
            self.pauses.pop_front();
            event(output, &"x");
            Poll::Ready(true)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments_and_each_event_begins_it_anew() {
        let begin = Instant::now();
        let script = Script { pauses: [0, 10, 14, 40, 1].into(), sleep: None };
        let mut body = EventBody {
            written: b"data: first\n\n".to_vec(),
            source: script,
            is_over: false,
            silence: None,
            last: begin,
            _busy: (),
        };
        let mut seen = Vec::new();
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
            seen.push((begin.elapsed().as_secs(), text));
        }
        let (x, comment) = ("data: \"x\"\n\n", ": keep-alive\n\n");
        let expected = [
            (0, "data: first\n\ndata: \"x\"\n\n"),
            (10, x),
            (24, x),
            (39, comment),
            (54, comment),
            (64, x),
            (65, x),
        ];
        assert_eq!(seen, expected.map(|(time, text)| (time, text.to_owned())));
        assert!(body.is_end_stream());
    }
}

//! Bodies of answers, with limits: on the time until more data arrives, and for documents on their length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use object_store::client::{HttpError, HttpErrorKind};
use tokio::time::{Instant, Sleep, sleep};

/// A body that fails when no data arrives for some time, or when it exceeds its limit.
pub(crate) struct LimitedBody {
    body: Incoming,
    stall: Duration,
    until: Pin<Box<Sleep>>,
    limit: u64,
    received: u64,
}

impl LimitedBody {
    /// A body of at most `limit` bytes, and pauses of at most `stall`.
    pub(crate) fn new(body: Incoming, stall: Duration, limit: u64) -> Self {
        Self { body, stall, until: Box::pin(sleep(stall)), limit, received: 0 }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let end = Instant::now() + self.stall;
            self.until.as_mut().reset(end);
            if let Some(Ok(frame)) = &frame {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            if self.received > self.limit {
                let error = io::Error::other(format!("the answer exceeds {} bytes", self.limit));
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, error))));
            }
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

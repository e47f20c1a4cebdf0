//! The bodies of requests, as they arrive.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// Pieces below this size are joined: a client that sends single bytes must not cost a reference for each.
const SMALL: usize = 1024;

/// A request ended before its body: the client took it back, or the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was cancelled by its client")]
pub struct Cancelled;

/// The body of a request.
#[derive(Debug)]
pub struct Incoming(Source);

#[derive(Debug)]
enum Source {
    /// All of it has arrived.
    Whole(Option<Bytes>),
    Arriving(Arc<Arriving>),
}

/// A body that has not arrived as a whole when its request is answered.
#[derive(Debug)]
pub(crate) struct Arriving {
    state: Mutex<State>,
    /// Wakes the connection for the request.
    connection: Waker,
    /// The number of read bytes that wakes the connection, so that the client may send more.
    enough: usize,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// Small pieces behind `pieces`.
    small: BytesMut,
    trailers: Option<HeaderMap>,
    ended: bool,
    cancelled: bool,
    /// The reader dropped the body.
    dropped: bool,
    /// Bytes read since the last [`Arriving::take_read`].
    read: usize,
    reader: Option<Waker>,
}

impl Incoming {
    /// A body that has arrived.
    pub(crate) fn whole(bytes: Option<Bytes>) -> Self {
        Self(Source::Whole(bytes))
    }

    pub(crate) fn arriving(arriving: Arc<Arriving>) -> Self {
        Self(Source::Arriving(arriving))
    }
}

impl Arriving {
    pub(crate) fn new(connection: Waker, enough: usize) -> Self {
        Self { state: Mutex::default(), connection, enough }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece. Returns the waiting reader's waker, and the number of bytes discarded because the body was dropped.
    pub(crate) fn push(&self, piece: Bytes) -> (Option<Waker>, usize) {
        let mut state = self.lock();
        if state.dropped {
            return (None, piece.len());
        }
        if piece.len() < SMALL && !(state.pieces.is_empty() && state.small.is_empty()) {
            state.small.extend_from_slice(&piece);
        } else if !piece.is_empty() {
            state.end_small();
            state.pieces.push_back(piece);
        }
        (state.reader.take(), 0)
    }

    /// The body is complete.
    pub(crate) fn end(&self, trailers: Option<HeaderMap>) -> Option<Waker> {
        let mut state = self.lock();
        state.ended = true;
        state.trailers = trailers;
        state.reader.take()
    }

    /// Ends the body early. Returns the number of its bytes not yet reported as read.
    pub(crate) fn cancel(&self) -> usize {
        let mut state = self.lock();
        state.cancelled = !state.ended;
        let unread: usize = state.pieces.iter().map(Bytes::len).sum();
        let count = state.read + unread + state.small.len();
        if state.cancelled {
            state.pieces.clear();
            state.small = BytesMut::new();
        }
        // Later reads were counted here.
        state.read = 0;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        count
    }

    /// The bytes that were read since the last call.
    pub(crate) fn take_read(&self) -> usize {
        std::mem::take(&mut self.lock().read)
    }
}

impl State {
    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push_back(self.small.split().freeze());
        }
    }

    fn next(&mut self) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.end_small();
        }
        let piece = self.pieces.pop_front()?;
        self.read += piece.len();
        Some(piece)
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Cancelled;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cancelled>>> {
        let arriving = match &mut self.0 {
            Source::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Arriving(arriving) => arriving,
        };
        let mut state = arriving.lock();
        if let Some(piece) = state.next() {
            let is_enough = state.read >= arriving.enough;
            drop(state);
            if is_enough {
                arriving.connection.wake_by_ref();
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if state.ended {
            return Poll::Ready(state.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        if state.cancelled {
            return Poll::Ready(Some(Err(Cancelled)));
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(context.waker()),
            None => state.reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_none(),
            Source::Arriving(arriving) => {
                let state = arriving.lock();
                state.ended && state.pieces.is_empty() && state.small.is_empty() && state.trailers.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Source::Arriving(_) => SizeHint::default(),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let Source::Arriving(arriving) = &self.0 else { return };
        let mut state = arriving.lock();
        let unread: usize = state.pieces.iter().map(Bytes::len).sum();
        state.read += unread + state.small.len();
        state.dropped = true;
        state.pieces.clear();
        state.small = BytesMut::new();
        let is_enough = state.read > 0;
        drop(state);
        if is_enough {
            arriving.connection.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests;

//! Replies over HTTP/2, each of which the client must read in time.
//!
//! A stream's flow control holds its reply back while the client leaves it unread; other streams of the connection
//! continue. The HTTP library sends each reply in its own task: it polls the body for a piece when the previous one was
//! accepted, and then waits with a piece in hand for flow-control window. So a body that returned a piece and is not
//! polled again belongs to a client that does not read: [`TimedBody`] reports that to the task, and [`TimedReplies`]
//! ends the task, which resets the stream.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep};

use crate::slow_clients::TAKING;

/// Largest piece that a body yields: the amount that a client must read within [`TAKING`].
const PIECE: usize = 64 << 10;

/// The library does not report when the client has read the last piece, so a longer reply ends with a short one.
const LAST_PIECE: usize = 1 << 10;

/// Replies up to this size are yielded whole.
const SHORT: usize = 16 << 10;

thread_local! {
    /// Progress of the reply body whose task is being polled.
    static BODY: Cell<BodyProgress> = const { Cell::new(BodyProgress::No) };
}

/// Whether a body was polled for a piece.
#[derive(Clone, Copy, Debug, Default)]
enum BodyProgress {
    #[default]
    No,
    /// The body had no piece, so the client is not at fault.
    Empty,
    /// The body yielded a piece.
    Gave,
}

pin_project! {
    /// The body of a reply, in pieces that are not too long.
    pub struct TimedBody<B> {
        #[pin]
        body: B,
        // Bytes received from the body and not yet yielded.
        rest: Bytes,
    }
}

impl<B> TimedBody<B> {
    /// Wraps the body of a reply whose task was spawned by [`TimedReplies`].
    pub fn new(body: B) -> Self {
        Self { body, rest: Bytes::new() }
    }
}

/// Takes the next piece off what is left.
fn piece(rest: &mut Bytes) -> Bytes {
    let length = match rest.len() {
        length @ ..=SHORT => length,
        length @ ..=PIECE => length - LAST_PIECE,
        _ => PIECE,
    };
    rest.split_to(length)
}

impl<B: Body<Data = Bytes>> Body for TimedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if this.rest.is_empty() {
            BODY.set(BodyProgress::Empty);
            match ready!(this.body.poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => *this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        BODY.set(BodyProgress::Gave);
        Poll::Ready(Some(Ok(Frame::data(piece(this.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if rest > 0 {
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + rest);
            }
            hint.set_lower(hint.lower() + rest);
        }
        hint
    }
}

/// Spawns the tasks of an HTTP/2 connection, one per request. Each ends when its client reads nothing of its reply for
/// [`TAKING`].
#[derive(Clone, Debug)]
pub struct TimedReplies<E> {
    spawner: E,
    requests: Arc<Requests>,
}

/// The requests of an HTTP/2 connection.
#[derive(Debug, Default)]
pub struct Requests {
    open: AtomicU32,
    begun: AtomicU32,
}

impl Requests {
    /// Number of tasks started so far, which may wrap around; `None` while one is in progress.
    pub fn idle_after(&self) -> Option<u32> {
        (self.open.load(Ordering::Relaxed) == 0).then(|| self.begun.load(Ordering::Relaxed))
    }

    /// Counts a request as begun, and as open until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> InProgress {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub struct InProgress(Arc<Requests>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<E> TimedReplies<E> {
    /// Spawns with `spawner` and counts in `requests`.
    pub fn new(spawner: E, requests: Arc<Requests>) -> Self {
        Self { spawner, requests }
    }
}

impl<E, F> Executor<F> for TimedReplies<E>
where
    E: Executor<TakenInTime<F>>,
    F: Future<Output = ()>,
{
    fn execute(&self, task: F) {
        self.spawner.execute(TakenInTime::new(task, self.requests.begin()));
    }
}

pin_project! {
    /// A task of [`TimedReplies`].
    pub struct TakenInTime<F> {
        #[pin]
        task: F,
        // Whether a piece waits for the client.
        is_offered: bool,
        // Whether the client took any since the limit began.
        progressed: bool,
        limit: Option<Pin<Box<Sleep>>>,
        in_progress: InProgress,
    }
}

impl<F> TakenInTime<F> {
    fn new(task: F, in_progress: InProgress) -> Self {
        Self { task, is_offered: false, progressed: false, limit: None, in_progress }
    }
}

impl<F: Future<Output = ()>> Future for TakenInTime<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        BODY.set(BodyProgress::No);
        if this.task.poll(context).is_ready() {
            return Poll::Ready(());
        }
        match BODY.take() {
            BodyProgress::No => {}
            BodyProgress::Empty => (*this.is_offered, *this.limit) = (false, None),
            BodyProgress::Gave => (*this.is_offered, *this.progressed) = (true, true),
        }
        if !*this.is_offered {
            return Poll::Pending;
        }
        let limit = this.limit.get_or_insert_with(|| {
            *this.progressed = false;
            Box::pin(sleep(TAKING))
        });
        // A client that takes some pieces moves no timer: it is looked at when the time is over.
        loop {
            ready!(limit.as_mut().poll(context));
            if !*this.progressed {
                tracing::debug!("ended a reply: its client took nothing of it for {} s", TAKING.as_secs());
                return Poll::Ready(());
            }
            *this.progressed = false;
            limit.as_mut().reset(Instant::now() + TAKING);
        }
    }
}

#[cfg(test)]
mod tests;

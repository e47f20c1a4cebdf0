//! Watches that a client which has begun a request goes on with it. An idle connection may stay open as long as its
//! client likes, since clients keep connections in pools; a request that has begun must bring its next bytes in time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long a request's head may take from its first byte, and how long its body may pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Begins a connection of HTTP/2.
const HTTP2: &[u8] = b"PRI ";

/// How often a connection is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// So much of a head is kept for the spelling of its names.
const HEAD_KEPT: usize = 64 << 10;

/// How a connection's client keeps up with what it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<Mutex<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    state: State,
    /// The head of the request that began last, as it was received, and perhaps some of what follows it; `None` if it is
    /// not wanted.
    head: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No request has begun.
    #[default]
    Idle,
    /// The rest of a request's head is awaited since then.
    Head(Instant),
    /// More of its body is awaited since then.
    Body(Instant),
    /// It is the server's turn: so many answers are being made. `next` says whether bytes of a further request came
    /// already; the client is not held up for them.
    Busy { answers: usize, next: bool },
    /// The connection is one of HTTP/2: requests overlap, and frames of other kinds come at any time. Each body is watched
    /// over by itself, and the connection by pings.
    Off,
}

/// An answer being made. Dropped when it is sent.
#[derive(Debug)]
pub(crate) struct Busy(Pace);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        progress.state = match progress.state {
            State::Busy { answers, next } if answers > 1 => State::Busy { answers: answers - 1, next },
            State::Busy { next: true, .. } => State::Head(Instant::now()),
            State::Busy { .. } => State::Idle,
            other => other,
        };
    }
}

impl Pace {
    /// `keep_heads` says whether [`take_head`](Self::take_head) is going to be asked.
    pub(crate) fn new(keep_heads: bool) -> Self {
        Self(Arc::new(Mutex::new(Progress { state: State::Idle, head: keep_heads.then(Vec::new) })))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes arrived. The first ones begin a request.
    fn arrived(&self, bytes: &[u8]) {
        let mut progress = self.lock();
        match &mut progress.state {
            State::Idle if bytes.starts_with(HTTP2) => {
                *progress = Progress { state: State::Off, head: None };
            }
            State::Idle => progress.state = State::Head(Instant::now()),
            State::Off => return,
            State::Head(_) => {}
            State::Body(_) => return,
            State::Busy { next, .. } => *next = true,
        }
        if let Some(head) = &mut progress.head {
            let room = HEAD_KEPT.saturating_sub(head.len());
            head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// The head of the request at hand as it was received, as far as it is known: nothing of a request that came together
    /// with the end of the one before it.
    pub(crate) fn take_head(&self) -> Vec<u8> {
        self.lock().head.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A part of the request is complete; the next is awaited.
    pub(crate) fn progressed(&self) {
        let mut progress = self.lock();
        if !matches!(progress.state, State::Off) {
            progress.state = State::Body(Instant::now());
        }
    }

    /// The request is complete: nothing is awaited from the client until what is given is dropped.
    pub(crate) fn busy(&self) -> Busy {
        let mut progress = self.lock();
        progress.state = match progress.state {
            State::Busy { answers, next } => State::Busy { answers: answers + 1, next },
            State::Off => State::Off,
            _ => State::Busy { answers: 1, next: false },
        };
        Busy(self.clone())
    }

    /// The request at hand came over HTTP/2: requests of this connection are not watched over here.
    pub(crate) fn turn_off(&self) {
        *self.lock() = Progress { state: State::Off, head: None };
    }

    /// Whether each request has to be watched over by itself.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.lock().state, State::Off)
    }

    /// Returns when the client has kept the server waiting for too long.
    pub(crate) async fn lost(&self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let state = self.lock().state;
            if matches!(state, State::Head(since) | State::Body(since) if since.elapsed() >= PATIENCE) {
                return;
            }
        }
    }
}

/// A connection that tells its [`Pace`] of arriving bytes.
pub(crate) struct Paced<S> {
    stream: S,
    pace: Pace,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, pace: Pace) -> Self {
        Self { stream, pace }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.pace.arrived(bytes);
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

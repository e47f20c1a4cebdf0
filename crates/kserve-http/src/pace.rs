//! Watches that a client which has begun a request goes on with it. An idle connection may stay open as long as its
//! client likes, since clients keep connections in pools; a request that has begun must bring its next bytes in time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{MissedTickBehavior, interval};

/// How long a request's head may take from its first byte, and how long its body may pause.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Begins a connection of HTTP/2.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often a connection is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// A client that did not go on from one look to another so many later has been waited for long enough.
const LOOKS: u32 = (PATIENCE.as_secs() / LOOK.as_secs()) as u32 + 1;

/// So much of a head is kept for the spelling of its names.
const HEAD_KEPT: usize = 64 << 10;

/// How a connection's client keeps up with what it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<Mutex<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    state: State,
    /// How many looks found it as it is. Counted instead of asking for the time at every step of every request.
    looks: u32,
    /// The head of the request that began last, as it was received, and perhaps some of what follows it; `None` if it is
    /// not wanted.
    head: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No request has begun.
    #[default]
    Idle,
    /// The rest of a request's head is awaited.
    Head,
    /// More of its body is awaited.
    Body,
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
        match progress.state {
            State::Busy { answers, next } if answers > 1 => {
                progress.state = State::Busy { answers: answers - 1, next };
            }
            State::Busy { next: true, .. } => progress.enter(State::Head),
            State::Busy { .. } => progress.enter(State::Idle),
            _ => {}
        }
    }
}

impl Progress {
    /// Goes on to a state, which from now on is waited in.
    fn enter(&mut self, state: State) {
        self.state = state;
        self.looks = 0;
    }

    fn turn_off(&mut self) {
        *self = Self { state: State::Off, looks: 0, head: None };
    }
}

impl Pace {
    /// `keep_heads` says whether [`take_head`](Self::take_head) is going to be asked.
    pub(crate) fn new(keep_heads: bool) -> Self {
        let head = keep_heads.then(Vec::new);
        Self(Arc::new(Mutex::new(Progress { head, ..Progress::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes arrived. The first ones begin a request.
    fn arrived(&self, bytes: &[u8]) {
        let mut progress = self.lock();
        match &mut progress.state {
            State::Idle => progress.enter(State::Head),
            State::Off | State::Body => return,
            State::Head => {}
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

    /// A part of the request is complete; the next is awaited. Returns whether somebody watches over that: on a connection
    /// of HTTP/2 each request has to be watched over by itself.
    pub(crate) fn progressed(&self) -> bool {
        let mut progress = self.lock();
        if matches!(progress.state, State::Off) {
            return false;
        }
        progress.enter(State::Body);
        true
    }

    /// The request is complete: nothing is awaited from the client until what is given is dropped.
    pub(crate) fn busy(&self) -> Busy {
        let mut progress = self.lock();
        match progress.state {
            State::Busy { answers, next } => progress.state = State::Busy { answers: answers + 1, next },
            State::Off => {}
            _ => progress.enter(State::Busy { answers: 1, next: false }),
        }
        Busy(self.clone())
    }

    /// Returns when the client has kept the server waiting for too long.
    pub(crate) async fn lost(&self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let mut progress = self.lock();
            if matches!(progress.state, State::Head | State::Body) {
                progress.looks += 1;
                if progress.looks > LOOKS {
                    return;
                }
            }
        }
    }
}

/// A connection that tells its [`Pace`] of arriving bytes.
pub(crate) struct Paced<S> {
    stream: S,
    pace: Pace,
    /// What was read already to find out what is spoken.
    first: Bytes,
}

impl<S: AsyncRead + Unpin> Paced<S> {
    pub(crate) fn new(stream: S, pace: Pace) -> Self {
        Self { stream, pace, first: Bytes::new() }
    }

    /// Waits for the first bytes and tells whether HTTP/2 is spoken. They are read again afterwards.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn speaks_http2(&mut self) -> io::Result<bool> {
        let mut first = [0; HTTP2.len()];
        let mut length = 0;
        while HTTP2.starts_with(&first[..length]) && length < first.len() {
            match self.read(&mut first[length..]).await? {
                0 => break,
                count => length += count,
            }
        }
        self.first = Bytes::copy_from_slice(&first[..length]);
        let http2 = first == HTTP2;
        if http2 {
            self.pace.lock().turn_off();
        }
        Ok(http2)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first.split_to(count));
            return Poll::Ready(Ok(()));
        }
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

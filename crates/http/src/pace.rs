//! Watches that a client which has begun a request goes on with it. An idle connection may stay open as long as its
//! client likes, since clients keep connections in pools; a request that has begun must bring its next bytes in time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long a request's head may take from its first byte, and how long its body may pause.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a connection is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// How a connection's client keeps up with what it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No request has begun.
    #[default]
    Idle,
    /// The rest of a request is awaited since then.
    Awaited(Instant),
    /// It is the server's turn: so many answers are being made. `next` says whether bytes of a further request came
    /// already; the client is not held up for them.
    Busy { answers: usize, next: bool },
}

/// An answer being made. Dropped when it is sent.
#[derive(Debug)]
pub(crate) struct Busy(Pace);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        *state = match *state {
            State::Busy { answers, next } if answers > 1 => State::Busy { answers: answers - 1, next },
            State::Busy { next: true, .. } => State::Awaited(Instant::now()),
            State::Busy { .. } => State::Idle,
            other => other,
        };
    }
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes arrived. The first ones begin a request.
    fn arrived(&self) {
        let mut state = self.lock();
        match &mut *state {
            State::Idle => *state = State::Awaited(Instant::now()),
            State::Awaited(_) => {}
            State::Busy { next, .. } => *next = true,
        }
    }

    /// A part of the request is complete; the next is awaited.
    pub(crate) fn progressed(&self) {
        *self.lock() = State::Awaited(Instant::now());
    }

    /// The request is complete: nothing is awaited from the client until what is given is dropped.
    pub(crate) fn busy(&self) -> Busy {
        let mut state = self.lock();
        *state = match *state {
            State::Busy { answers, next } => State::Busy { answers: answers + 1, next },
            _ => State::Busy { answers: 1, next: false },
        };
        Busy(self.clone())
    }

    /// Returns when the client has kept the server waiting for too long.
    pub(crate) async fn lost(&self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let state = *self.lock();
            if matches!(state, State::Awaited(since) if since.elapsed() >= PATIENCE) {
                return;
            }
        }
    }
}

/// A connection that tells its [`Pace`] of arriving bytes.
pub(crate) struct Paced {
    stream: TcpStream,
    pace: Pace,
}

impl Paced {
    pub(crate) fn new(stream: TcpStream, pace: Pace) -> Self {
        Self { stream, pace }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.pace.arrived();
        }
        outcome
    }
}

impl AsyncWrite for Paced {
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

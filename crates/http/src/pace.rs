//! Watches that a client which has begun a request goes on with it. An idle connection may stay open as long as its
//! client likes, since clients keep connections in pools; a request that has begun must bring its next bytes in time.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long a request's head may take from its first byte, and how long its body may pause.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a connection is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Since when the rest of a request is awaited; `None` while it is not the client's turn, or none has begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Arc<Mutex<Option<Instant>>>);

impl Pace {
    /// Bytes arrived. The first ones begin a request.
    fn arrived(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    /// A part of the request is complete; the next is awaited.
    pub(crate) fn progressed(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The request is complete: nothing is awaited from the client.
    pub(crate) fn complete(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns when the client has kept the server waiting for too long.
    pub(crate) async fn lost(&self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let awaited = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if awaited.is_some_and(|since| since.elapsed() >= PATIENCE) {
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

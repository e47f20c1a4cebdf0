//! A connection whose frames are looked at as they pass: whether the client speaks HTTP/2 at all, and how often it pings.
//!
//! The library that speaks HTTP/2 answers pings by itself and tells nobody of them. So they are seen here, below it. A
//! client that pings too often is told so, in the way that clients of gRPC know, and its connection ends.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::frames::{Frame, Kind, Scanner};
use super::pings::{PingRules, Pings};

/// What clients of gRPC ping less for.
const REASON: &[u8] = b"too_many_pings";

/// The code that goes with it, ENHANCE_YOUR_CALM.
const CALM: u32 = 11;

/// A connection whose frames are looked at.
pub(super) struct Guarded<S> {
    stream: S,
    rules: PingRules,
    received: Scanner,
    sent: Scanner,
    pings: Pings,
    /// The streams on which a call is in progress.
    calls: HashSet<u32>,
    /// The highest stream that the client began.
    highest: u32,
    begun: Arc<AtomicBool>,
    /// The last words to a client that pinged too often, and how much of them was sent.
    farewell: Option<(Vec<u8>, usize)>,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, rules: PingRules) -> Self {
        Self {
            stream,
            rules,
            received: Scanner::of_client(),
            sent: Scanner::of_server(),
            pings: Pings::default(),
            calls: HashSet::new(),
            highest: 0,
            begun: Arc::default(),
            farewell: None,
        }
    }

    /// Turns true when the client's first frame has arrived.
    pub(super) fn begun(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.begun)
    }

    fn received(&mut self, bytes: &[u8]) {
        let Self { received, pings, calls, highest, rules, .. } = self;
        let mut too_many = false;
        received.read(bytes, |frame| match frame.kind {
            Kind::Headers if frame.stream > *highest => {
                *highest = frame.stream;
                calls.insert(frame.stream);
            }
            Kind::Reset => {
                calls.remove(&frame.stream);
            }
            Kind::Ping if !frame.answers() => {
                too_many |= pings.came(rules, Instant::now(), !calls.is_empty());
            }
            _ => {}
        });
        if !self.begun.load(Ordering::Relaxed) && self.received.has_begun() {
            self.begun.store(true, Ordering::Relaxed);
        }
        if too_many && self.farewell.is_none() {
            self.farewell = Some((farewell(self.highest), 0));
        }
    }

    /// `count` of the bytes in `pieces` were sent.
    fn sent<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>, mut count: usize) {
        let Self { sent, pings, calls, .. } = self;
        let mut see = |frame: Frame| {
            if matches!(frame.kind, Kind::Data | Kind::Headers) {
                pings.forgive();
            }
            if frame.ends_stream() {
                calls.remove(&frame.stream);
            }
        };
        for piece in pieces {
            let seen = count.min(piece.len());
            sent.read(&piece[..seen], &mut see);
            count -= seen;
            if count == 0 {
                return;
            }
        }
    }
}

/// The frame that ends a connection.
fn farewell(highest: u32) -> Vec<u8> {
    const GOAWAY: u8 = 7;
    let mut frame = vec![0, 0, 8 + REASON.len() as u8, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend(highest.to_be_bytes());
    frame.extend(CALM.to_be_bytes());
    frame.extend(REASON);
    frame
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    /// Says the last words, if there are any to say and no frame is under way; ready once there is nothing more to say.
    fn part(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((words, said)) = &mut self.farewell else { return Poll::Ready(Ok(())) };
        if !self.sent.between_frames() {
            return Poll::Ready(Ok(()));
        }
        while *said < words.len() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, &words[*said..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *said += count;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "its client pinged too often")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.received(bytes);
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.part(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.sent([bytes], count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.part(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, pieces))?;
        self.sent(pieces.iter().map(|piece| &**piece), count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.part(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

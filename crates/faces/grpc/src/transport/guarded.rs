//! Wraps a connection to detect its HTTP/2 preface and, if pings are limited, to count them.
//!
//! The HTTP/2 library answers pings internally and reports none of them. The scanner below it parses the heads of all
//! frames in both directions to count them. A client that pings too often gets the GOAWAY frame that gRPC clients know,
//! and its connection ends. Without limits nothing is scanned, except at Unix sockets (`authority.rs`).

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use nereid_net::http2::{Frame, HEAD, Kind, PREFACE, Scanner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::authority::LocalAuthority;
use super::pings::{PingRules, Pings};

/// The reason by which gRPC clients know to ping less.
const REASON: &[u8] = b"too_many_pings";

/// Error code of that GOAWAY frame.
const ENHANCE_YOUR_CALM: u32 = 11;

/// A connection.
pub(super) struct GuardedConnection<S> {
    stream: S,
    /// Bytes until the client has sent its preface and the head of a frame.
    until_started: usize,
    has_started: Arc<AtomicBool>,
    guard: Option<PingGuard>,
    /// For a client at a Unix socket.
    authority: Option<LocalAuthority>,
}

/// Counts the pings of a connection.
struct PingGuard {
    rules: PingRules,
    received: Scanner,
    sent: Scanner,
    pings: Pings,
    /// The streams on which a call is in progress.
    calls: HashSet<u32>,
    /// The highest stream that the client opened.
    highest: u32,
    /// The frame for a client that pinged too often, and the number of its bytes sent.
    goaway: Option<(Vec<u8>, usize)>,
}

impl<S> GuardedConnection<S> {
    /// Wraps a connection; `rules` limit its pings. `is_local`: it is at a Unix socket.
    pub(super) fn new(stream: S, rules: Option<PingRules>, is_local: bool) -> Self {
        Self {
            stream,
            until_started: PREFACE + HEAD,
            has_started: Arc::default(),
            guard: rules.map(PingGuard::new),
            authority: is_local.then(LocalAuthority::new),
        }
    }

    /// Turns true when the client's first frame has arrived.
    pub(super) fn has_started(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_started)
    }

    fn received(&mut self, bytes: &[u8]) {
        if self.until_started > 0 {
            self.until_started = self.until_started.saturating_sub(bytes.len());
            self.has_started.store(self.until_started == 0, Ordering::Relaxed);
        }
        if let Some(guard) = &mut self.guard {
            guard.received(bytes);
        }
    }
}

impl PingGuard {
    fn new(rules: PingRules) -> Self {
        Self {
            rules,
            received: Scanner::of_client(),
            sent: Scanner::between_frames(),
            pings: Pings::default(),
            calls: HashSet::new(),
            highest: 0,
            goaway: None,
        }
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
        if too_many && self.goaway.is_none() {
            self.goaway = Some((goaway(self.highest), 0));
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
            sent.read(piece.split_at(seen).0, &mut see);
            count -= seen;
            if count == 0 {
                return;
            }
        }
    }

    /// Sends the GOAWAY frame, if one is due, between other frames. Ready when nothing is left to send.
    fn poll_goaway<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((frame, written)) = &mut self.goaway else { return Poll::Ready(Ok(())) };
        if !self.sent.is_between_frames() {
            return Poll::Ready(Ok(()));
        }
        while let Some(rest) = frame.get(*written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut *stream).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += count;
        }
        ready!(Pin::new(stream).poll_flush(context))?;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client pinged too often")))
    }
}

/// The frame that ends a connection.
fn goaway(highest: u32) -> Vec<u8> {
    const GOAWAY: u8 = 7;
    let mut frame = vec![0, 0, 8 + REASON.len() as u8, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend(highest.to_be_bytes());
    frame.extend(ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend(REASON);
    frame
}

impl<S: AsyncWrite + Unpin> GuardedConnection<S> {
    fn poll_goaway(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.guard {
            Some(guard) => guard.poll_goaway(&mut self.stream, context),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.until_started == 0 && self.guard.is_none() && self.authority.is_none() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(authority) = &mut self.authority {
            authority.read(buffer.filled_mut().split_at_mut(before).1);
        }
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.received(bytes);
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_goaway(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        if let Some(guard) = &mut self.guard {
            guard.sent([bytes], count);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_goaway(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, pieces))?;
        if let Some(guard) = &mut self.guard {
            guard.sent(pieces.iter().map(|piece| &**piece), count);
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_goaway(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

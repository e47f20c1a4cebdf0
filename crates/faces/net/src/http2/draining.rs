//! A connection that drains without losing streams that its client has already opened.
//!
//! The HTTP/2 library announces the end with a GOAWAY frame and a ping. A client that acknowledges the ping has read
//! the GOAWAY frame, so the library ignores streams that arrive later. But a client may write the acknowledgement ahead
//! of streams it was about to send: gRPC's C core does so when busy. So the acknowledgement is passed to the library
//! with a short delay.
//!
//! # The defect in h2
//!
//! Seen with h2 0.4.20 below hyper 1.12.0, and gRPC's C core (grpcio 1.60 and later) as the client.
//!
//! 1. A server calls `graceful_shutdown` while the client opens streams. h2 sends GOAWAY(2^31-1) and a ping.
//! 2. The client sends the acknowledgement, then HEADERS of a stream that it opened before it read the GOAWAY.
//! 3. On the acknowledgement, h2 sends GOAWAY with the last stream accepted so far. `Inner::recv_headers` then ignores the
//!    later HEADERS (`id > max_stream_id`) and does not record that their stream was opened.
//! 4. The client grants the stream window. `Inner::recv_window_update` does not find the stream, and `ensure_not_idle` takes
//!    it for one that was never opened: GOAWAY(PROTOCOL_ERROR), which fails every call of the connection, answered ones
//!    included. `recv_data` and `recv_reset` check `max_stream_id` first; `recv_window_update` does not.
//!
//! Expected: frames of streams above the announced one are ignored (RFC 9113, section 6.8). A check of `max_stream_id` in
//! `recv_window_update` mends step 4; this module could go once the second GOAWAY also waits for streams in flight (step 3),
//! which the RFC recommends at least one round-trip for.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http2::frames::Scanner;

/// Delay of the acknowledgement. Clients send the affected streams with it, or right after it.
const HELD: Duration = Duration::from_millis(250);

/// The acknowledgement of the ping that h2 sends with its first GOAWAY frame.
const ACKNOWLEDGEMENT: &[u8] = b"\x00\x00\x08\x06\x01\x00\x00\x00\x00\x0b\x7b\xa2\xf0\x8b\x9b\xfe\x54";

/// Read size while draining.
const CHUNK: usize = 16 << 10;

/// A connection that can be drained. Costs nothing before that.
#[derive(Debug)]
pub struct Draining<S> {
    stream: S,
    begun: Arc<AtomicBool>,
    acknowledgement: Acknowledgement,
    /// Bytes for the library.
    ready: BytesMut,
}

/// Begins the draining of a connection.
#[derive(Debug)]
pub struct Drain(Arc<AtomicBool>);

/// Progress of the client's acknowledgement.
#[derive(Debug)]
enum Acknowledgement {
    /// Partially read: these bytes may be its beginning.
    Awaited(BytesMut),
    /// Delayed until then, while the frames after it pass.
    Held {
        until: Pin<Box<Sleep>>,
        frames: Scanner,
    },
    /// To be passed on when the current frame is complete.
    Due(Scanner),
    Passed,
}

impl Drain {
    /// Starts draining. Call it right before the library announces the end.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<S> Draining<S> {
    /// Wraps a connection; the second value starts draining.
    pub fn new(stream: S) -> (Self, Drain) {
        let begun = Arc::new(AtomicBool::new(false));
        let drain = Drain(Arc::clone(&begun));
        let acknowledgement = Acknowledgement::Awaited(BytesMut::new());
        (Self { stream, begun, acknowledgement, ready: BytesMut::new() }, drain)
    }

    /// Accepts bytes from the client and queues them in the order in which the library is to read them.
    fn received(&mut self, bytes: &[u8]) {
        match &mut self.acknowledgement {
            Acknowledgement::Awaited(beginning) => {
                beginning.extend_from_slice(bytes);
                let mut windows = beginning.windows(ACKNOWLEDGEMENT.len());
                let Some(at) = windows.position(|bytes| bytes == ACKNOWLEDGEMENT) else {
                    let whole = beginning.len() - possible_beginning(beginning);
                    self.ready.unsplit(beginning.split_to(whole));
                    return;
                };
                let rest = beginning.split_off(at + ACKNOWLEDGEMENT.len());
                self.ready.extend_from_slice(&beginning[..at]);
                let until = Box::pin(sleep(HELD));
                self.acknowledgement = Acknowledgement::Held { until, frames: Scanner::between_frames() };
                self.received(&rest);
            }
            Acknowledgement::Held { frames, .. } => {
                frames.read(bytes);
                self.ready.extend_from_slice(bytes);
            }
            Acknowledgement::Due(frames) => {
                let mut complete = 0;
                while !frames.is_between_frames() && complete < bytes.len() {
                    frames.read(&bytes[complete..=complete]);
                    complete += 1;
                }
                self.ready.extend_from_slice(&bytes[..complete]);
                self.pass_if_due();
                self.ready.extend_from_slice(&bytes[complete..]);
            }
            Acknowledgement::Passed => self.ready.extend_from_slice(bytes),
        }
    }

    fn pass_if_due(&mut self) {
        if matches!(&self.acknowledgement, Acknowledgement::Due(frames) if frames.is_between_frames()) {
            self.ready.extend_from_slice(ACKNOWLEDGEMENT);
            self.acknowledgement = Acknowledgement::Passed;
        }
    }

    /// Looks at the time.
    fn poll_due(&mut self, context: &mut Context<'_>) {
        if let Acknowledgement::Held { until, frames } = &mut self.acknowledgement
            && until.as_mut().poll(context).is_ready()
        {
            self.acknowledgement = Acknowledgement::Due(frames.clone());
            self.pass_if_due();
        }
    }
}

/// Number of trailing bytes that may begin the acknowledgement.
fn possible_beginning(bytes: &[u8]) -> usize {
    let longest = bytes.len().min(ACKNOWLEDGEMENT.len() - 1);
    (1..=longest).rev().find(|&length| bytes.ends_with(&ACKNOWLEDGEMENT[..length])).unwrap_or(0)
}

impl<S: AsyncRead + Unpin> Draining<S> {
    /// Reads until bytes are ready for the library, or the client has closed the connection.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_due(context);
            if !self.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                if let Acknowledgement::Awaited(beginning) = &mut self.acknowledgement {
                    self.ready.unsplit(beginning.split());
                }
                return Poll::Ready(Ok(()));
            }
            self.received(chunk.filled());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Draining<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let has_passed = matches!(self.acknowledgement, Acknowledgement::Passed) && self.ready.is_empty();
        if has_passed || !self.begun.load(Ordering::Relaxed) {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        ready!(self.poll_ready(context))?;
        let count = self.ready.len().min(buffer.remaining());
        buffer.put_slice(&self.ready[..count]);
        self.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Draining<S> {
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
        pieces: &[IoSlice<'_>],
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    /// Frames whose contents resemble the beginning of the acknowledgement, or do not.
    fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let contents = prop_oneof![
            (0..=ACKNOWLEDGEMENT.len() - 1).prop_map(|length| ACKNOWLEDGEMENT[..length].to_vec()),
            prop::collection::vec(any::<u8>(), 0..40),
            Just(vec![0; 20]),
        ];
        let frame = (contents, any::<u8>()).prop_map(|(contents, kind)| {
            let mut frame = vec![0, 0, contents.len() as u8, kind, 0, 0, 0, 0, 1];
            frame.extend(contents);
            frame
        });
        prop::collection::vec(frame, 0..6)
    }

    /// Sends `bytes` in pieces, with the time between them, and returns what the library reads in the end.
    async fn passed(bytes: &[u8], size: usize, pause: Duration, room: usize) -> Vec<u8> {
        let (mut client, server) = duplex(1 << 16);
        let (mut server, drain) = Draining::new(server);
        drain.begin();
        let library = tokio::spawn(async move {
            let (mut read, mut buffer) = (Vec::new(), vec![0; room]);
            while let count @ 1.. = server.read(&mut buffer).await.unwrap() {
                read.extend(&buffer[..count]);
            }
            read
        });
        for piece in bytes.chunks(size) {
            client.write_all(piece).await.unwrap();
            yield_now().await;
            advance(pause).await;
        }
        advance(HELD).await;
        yield_now().await;
        drop(client);
        library.await.unwrap()
    }

    proptest! {
        #[test]
        fn acknowledgement_is_delayed_behind_following_frames(
            before in frames(),
            after in frames(),
            size in 1_usize..60,
            pause in 0_u64..300,
            room in 1_usize..60,
        ) {
            let sent = [&before.concat()[..], ACKNOWLEDGEMENT, &after.concat()].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let read = runtime.unwrap().block_on(passed(&sent, size, Duration::from_millis(pause), room));
            // The acknowledgement moves behind some of the frames sent after it; nothing else changes.
            let orders: Vec<_> = (0..=after.len())
                .map(|count| {
                    let (early, late) = after.split_at(count);
                    [&before.concat()[..], &early.concat(), ACKNOWLEDGEMENT, &late.concat()].concat()
                })
                .collect();
            let found = orders.iter().position(|order| *order == read);
            prop_assert!(found.is_some(), "{read:x?}");
            if pause == 0 {
                prop_assert_eq!(found, Some(after.len()));
            }
        }

        #[test]
        fn bytes_pass_unchanged_without_an_acknowledgement(before in frames(), size in 1_usize..60, cut in 0_usize..17) {
            let sent = [&before.concat()[..], &ACKNOWLEDGEMENT[..cut]].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let read = runtime.unwrap().block_on(passed(&sent, size, Duration::ZERO, 1000));
            prop_assert_eq!(read, sent);
        }
    }
}

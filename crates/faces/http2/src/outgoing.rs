//! The unwritten bytes of a connection: small parts in one buffer, large ones without a copy.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Contents below this size are copied: a separate piece would cost more.
const SMALL: usize = 4096;

/// Most pieces that are written at once.
const PIECES: usize = 64;

/// A longer buffer is not kept for the next replies.
const KEPT: usize = 2048;

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Before `buffer`.
    pieces: VecDeque<Bytes>,
    buffer: Vec<u8>,
    /// Written bytes of `buffer`; 0 while `pieces` has any.
    written: usize,
    /// Bytes in `pieces`.
    length: usize,
    /// Whether bytes were written that the connection may keep until it is flushed.
    is_unflushed: bool,
}

impl Outgoing {
    /// Where frames are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Appends contents.
    pub(crate) fn push(&mut self, contents: Bytes) {
        if contents.len() < SMALL {
            self.buffer.extend_from_slice(&contents);
            return;
        }
        if !self.buffer.is_empty() {
            let mut before = Bytes::from(std::mem::take(&mut self.buffer));
            before.advance(std::mem::take(&mut self.written));
            self.length += before.len();
            self.pieces.push_back(before);
        }
        self.length += contents.len();
        self.pieces.push_back(contents);
    }

    /// Bytes that are not written yet.
    pub(crate) fn len(&self) -> usize {
        self.length + self.buffer.len() - self.written
    }

    /// Writes everything, and flushes it.
    pub(crate) fn poll_write(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.len() > 0 {
            let rest = self.buffer.get(self.written..).unwrap_or_default();
            let count = if self.pieces.is_empty() {
                ready!(stream.as_mut().poll_write(context, rest))?
            } else {
                let mut slices = [IoSlice::new(&[]); PIECES];
                let pieces = self.pieces.iter().map(|piece| &**piece).chain([rest]);
                let mut count = 0;
                for (slice, piece) in slices.iter_mut().zip(pieces) {
                    *slice = IoSlice::new(piece);
                    count += 1;
                }
                let slices = slices.get(..count).unwrap_or_default();
                ready!(stream.as_mut().poll_write_vectored(context, slices))?
            };
            if count == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.is_unflushed = true;
            self.advance(count);
        }
        if self.is_unflushed {
            ready!(stream.poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.pieces.front_mut() {
            let step = count.min(first.len());
            self.length -= step;
            count -= step;
            if step < first.len() {
                first.advance(step);
                return;
            }
            self.pieces.pop_front();
        }
        self.written += count;
        if self.written == self.buffer.len() {
            self.written = 0;
            match self.buffer.capacity() {
                ..=KEPT => self.buffer.clear(),
                _ => self.buffer = Vec::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// Accepts up to `room` bytes in every other call.
    struct Sink {
        taken: Vec<u8>,
        room: usize,
        is_busy: bool,
    }

    impl AsyncWrite for Sink {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.is_busy = !self.is_busy;
            if self.is_busy {
                return Poll::Pending;
            }
            let count = self.room.min(bytes.len());
            self.taken.extend(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let room = self.room;
            let joined: Vec<u8> = slices.iter().flat_map(|slice| slice.iter()).take(room).copied().collect();
            self.poll_write(context, &joined)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn bytes_are_written_in_order(
            parts in prop::collection::vec((any::<bool>(), prop_oneof![4 => 0..100_usize, 1 => 4000..9000_usize]), 0..150),
            room in prop_oneof![50..100_usize, 1000..20_000_usize],
            polls in prop::collection::vec(0..3_u8, 150),
        ) {
            let mut sink = Sink { taken: Vec::new(), room, is_busy: false };
            let (mut outgoing, mut expected) = (Outgoing::default(), Vec::new());
            let mut context = Context::from_waker(Waker::noop());
            for (index, ((is_frame, length), polls)) in parts.into_iter().zip(polls).enumerate() {
                let bytes = vec![index as u8; length];
                expected.extend(&bytes);
                match is_frame {
                    true => outgoing.buffer().extend(&bytes),
                    false => outgoing.push(bytes.into()),
                }
                for _ in 0..polls {
                    let _ = outgoing.poll_write(Pin::new(&mut sink), &mut context);
                    prop_assert_eq!(outgoing.len(), expected.len() - sink.taken.len());
                }
            }
            while outgoing.poll_write(Pin::new(&mut sink), &mut context).is_pending() {}
            prop_assert_eq!(outgoing.len(), 0);
            prop_assert!(sink.taken == expected);
        }
    }
}

//! A request's body: read within a limit, and kept in the pieces in which it arrived.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use hyper::StatusCode;
use hyper::body::Incoming;
use nereid_core::backend_api::{Buffer, Buffers};
use smallvec::SmallVec;
use tokio::time::timeout;

use crate::pace::{PATIENCE, Pace};
use crate::reply::{Reply, error_text};

/// A body in pieces, read from the front.
#[derive(Default)]
pub(crate) struct Pieces {
    /// The next one first.
    pieces: SmallVec<[Bytes; 4]>,
    /// Index of the next piece.
    next: usize,
    len: usize,
    /// Short pieces that arrived last, joined.
    tail: BytesMut,
}

/// Pieces shorter than this are joined, unless they are the first: a body that arrives byte by byte would otherwise
/// take many times its size.
const SHORT: usize = 4096;

impl Pieces {
    /// Reads a whole body.
    ///
    /// # Errors
    /// The answer to a body that is too long or ends early.
    pub(crate) async fn read(mut incoming: Incoming, limit: usize, pace: &Pace) -> Result<Self, Box<Reply>> {
        let too_long = || {
            let message = format!(
                "the request body is over the limit of {limit} bytes; --http-max-body-size raises the limit"
            );
            Box::new(error_text(StatusCode::PAYLOAD_TOO_LARGE, &message))
        };
        let too_slow = || {
            Box::new(error_text(
                StatusCode::REQUEST_TIMEOUT,
                "the rest of the request body did not come in time",
            ))
        };
        // What the client announces is refused before any of it is read.
        if incoming.size_hint().lower() > limit as u64 {
            return Err(too_long());
        }
        let mut body = Self::default();
        let watched = pace.progressed();
        loop {
            let next = poll_fn(|context| Pin::new(&mut incoming).poll_frame(context));
            let next =
                if watched { next.await } else { timeout(PATIENCE, next).await.map_err(|_| too_slow())? };
            let Some(frame) = next else { break };
            pace.progressed();
            let frame = frame.map_err(|error| {
                Box::new(error_text(
                    StatusCode::BAD_REQUEST,
                    &format!("the request body ended early: {error}"),
                ))
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() > limit - body.len {
                return Err(too_long());
            }
            body.push(piece);
        }
        body.end_tail();
        Ok(body)
    }

    fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < SHORT && !self.pieces.is_empty() {
            self.tail.extend_from_slice(&piece);
        } else if !piece.is_empty() {
            self.end_tail();
            self.pieces.push(piece);
        }
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push(std::mem::take(&mut self.tail).freeze());
        }
    }

    /// How many bytes are left.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes `count` bytes off the front, without copying them.
    ///
    /// # Errors
    /// How many bytes are missing.
    pub(crate) fn take(&mut self, count: usize) -> Result<Buffers, usize> {
        let mut taken = Buffers::new();
        self.split(count, |piece| taken.push(Buffer::host(piece)))?;
        Ok(taken)
    }

    /// Takes `count` bytes off the front as one run: copied only if they arrived in several pieces.
    ///
    /// # Errors
    /// How many bytes are missing.
    pub(crate) fn take_joined(&mut self, count: usize) -> Result<Bytes, usize> {
        let mut taken: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.split(count, |piece| taken.push(piece))?;
        Ok(match taken.as_slice() {
            [] => Bytes::new(),
            [_] => taken.remove(0),
            pieces => Bytes::from(pieces.concat()),
        })
    }

    fn split(&mut self, count: usize, mut take: impl FnMut(Bytes)) -> Result<(), usize> {
        if count > self.len {
            return Err(count - self.len);
        }
        self.len -= count;
        let mut missing = count;
        while missing > 0 {
            let piece = &mut self.pieces[self.next];
            if piece.len() > missing {
                take(piece.split_to(missing));
                return Ok(());
            }
            missing -= piece.len();
            take(std::mem::take(piece));
            self.next += 1;
        }
        Ok(())
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        Self::from_iter([bytes])
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut body = Self::default();
        pieces.into_iter().for_each(|piece| body.push(piece));
        body.end_tail();
        body
    }
}

/// Reads from the front.
impl bytes::Buf for Pieces {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.next).map_or(&[], |piece| piece)
    }

    fn advance(&mut self, count: usize) {
        // Its callers advance by no more than there is.
        let _ = self.split(count, drop);
    }
}

/// A path segment with its percent-encoding undone; what is not UTF-8 then becomes replacement characters, which no
/// name holds.
pub(crate) fn decoded(segment: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(segment).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[&'static str]) -> Pieces {
        pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect()
    }

    fn joined(buffers: &Buffers) -> Vec<u8> {
        buffers.iter().flat_map(|buffer| buffer.as_host().unwrap().to_vec()).collect()
    }

    #[test]
    fn it_is_taken_from_the_front_across_pieces_without_copies() {
        static LONG: &str = match std::str::from_utf8(&[b'x'; SHORT]) {
            Ok(long) => long,
            Err(_) => panic!(),
        };
        let mut body = body(&["abc", "", LONG, "defg"]);
        assert_eq!(body.take_joined(2).unwrap(), "ab");
        let taken = body.take(1 + SHORT + 2).unwrap();
        assert_eq!((joined(&taken), taken.len()), (["c", LONG, "de"].concat().into_bytes(), 3));
        assert_eq!(taken[1].as_host().unwrap().as_ptr(), LONG.as_ptr());
        assert_eq!(body.take_joined(2).unwrap(), "fg");
        assert_eq!(body.len(), 0);
        assert!(body.take(0).unwrap().is_empty());
    }

    #[test]
    fn short_pieces_are_joined_but_the_first_is_kept_as_it_is() {
        static FIRST: &str = "abc";
        let mut body = body(&[FIRST, "d", "e", "f"]);
        assert_eq!(body.pieces.len(), 2);
        assert_eq!(body.take_joined(3).unwrap().as_ptr(), FIRST.as_ptr());
        assert_eq!(body.take_joined(3).unwrap(), "def");
    }

    #[test]
    fn taking_too_much_takes_nothing_and_says_how_much_is_missing() {
        let mut body = body(&["ab"]);
        assert_eq!(body.take(5).unwrap_err(), 3);
        assert_eq!(body.take_joined(2).unwrap(), "ab");
    }

    #[test]
    fn it_is_read_like_any_buffer() {
        use bytes::Buf;

        let mut body = body(&["abc", "defg"]);
        let mut read = Vec::new();
        while body.has_remaining() {
            read.push(body.get_u8());
        }
        assert_eq!(read, b"abcdefg");
        assert!(body.chunk().is_empty());
    }

    #[test]
    fn a_segment_is_percent_decoded() {
        assert_eq!(decoded("a%20b%2Fc"), "a b/c");
        assert_eq!(decoded("plain"), "plain");
    }
}

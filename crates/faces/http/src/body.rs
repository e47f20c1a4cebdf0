//! A request's body: read up to a limit, and kept in the pieces it arrived in.

use std::error::Error;
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use hyper::StatusCode;
use hyper::body::Incoming;
use nereid_budgets::{BodyBudget, BodyShare};
use nereid_net::slow_clients::Arrival;
use smallvec::SmallVec;
use tokio::time::{sleep, timeout};

use crate::pace::Pace;
use crate::reply::{self, Reply, error_text};

/// A limit on bytes that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The largest number of bytes allowed.
    pub bytes: usize,
    /// The option that raises the limit, for messages; empty if none does.
    pub option: &'static str,
}

impl Limit {
    /// Accepts no body.
    pub const NOTHING: Self = Self { bytes: 0, option: "" };

    /// The message for `what` that exceeds this limit.
    pub fn exceeded(&self, what: &str) -> String {
        let Self { bytes, option } = self;
        match *option {
            "" => format!("{what} exceeds the limit of {bytes} bytes"),
            option => format!("{what} exceeds the limit of {bytes} bytes; {option} raises it"),
        }
    }
}

/// A body in pieces, read from the front.
///
/// The body is moved several times on a request's way, so it is small; a short body usually arrives in one piece.
#[derive(Default)]
pub struct RequestBody {
    /// The next one first.
    pieces: SmallVec<[Bytes; 1]>,
    /// Index of the next piece.
    next: usize,
    len: usize,
    share: BodyShare,
}

/// A body while it arrives.
#[derive(Default)]
struct IncomingBody {
    body: RequestBody,
    /// The short pieces that arrived last, joined.
    tail: BytesMut,
}

/// A body that its connection delivers.
pub(crate) enum ArrivingBody<'a> {
    /// Arrived with the head.
    Whole(Bytes),
    /// Read from the connection.
    Direct(&'a Mutex<dyn Wire + 'a>),
    /// Read by hyper.
    Pieces(Incoming),
}

/// A connection in the middle of a request.
pub(crate) trait Wire: Send {
    /// How many bytes of the body have not been read.
    fn left(&self) -> usize;

    /// Appends bytes of the body, at least one and no more than fit, and returns how many.
    fn poll_more(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>>;
}

impl ArrivingBody<'_> {
    /// The least number of bytes to expect.
    fn announced(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Direct(wire) => locked(wire).left() as u64,
            Self::Pieces(incoming) => incoming.size_hint().lower(),
        }
    }
}

fn locked<'a, 'w>(wire: &'a Mutex<dyn Wire + 'w>) -> MutexGuard<'a, dyn Wire + 'w> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the first buffer of a body. Later ones are as large as what has arrived.
const FIRST_BUFFER: usize = 2 << 20;

/// Maximum bytes of a refused body to discard, and the time limit.
const MAX_DISCARDED: usize = 8 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Time between the reply to a refused request on HTTP/2 and the reset of its unread body.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// Shorter pieces are joined, except the first: a body that arrives byte by byte would otherwise take many times its
/// size.
const SHORT: usize = 4096;

impl RequestBody {
    /// Reads a whole body.
    ///
    /// # Errors
    /// The reply to a body that is too long, too slow, truncated, or larger than the server's budget permits.
    pub(crate) async fn read(
        arriving: &mut ArrivingBody<'_>,
        limit: Limit,
        budget: &BodyBudget,
        pace: &Pace,
    ) -> Result<Self, Box<Reply>> {
        let refused = |status, message: &str| Box::new(error_text(status, message));
        let too_long = || refused(StatusCode::PAYLOAD_TOO_LARGE, &limit.exceeded("the request body"));
        // A length announced over the limit is refused before any of the body is read.
        let announced = arriving.announced();
        if announced > limit.bytes as u64 {
            return Err(too_long());
        }
        if !budget.could_hold(announced) {
            let message = budget.too_long("the request body", announced);
            return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &message));
        }
        let incoming = match arriving {
            ArrivingBody::Pieces(incoming) => incoming,
            ArrivingBody::Direct(wire) => return Self::read_direct(wire, budget, pace).await,
            ArrivingBody::Whole(bytes) => {
                let mut body = Self::from(std::mem::take(bytes));
                body.share.cover(budget, body.len).map_err(|error| Box::new(reply::error(&error)))?;
                return Ok(body);
            }
        };
        let mut arriving = IncomingBody::default();
        let watched = pace.progressed(0);
        // On HTTP/2 each body has its own time limit.
        let mut time = Arrival::default();
        loop {
            let next = poll_fn(|context| match Pin::new(&mut *incoming).poll_frame(context) {
                Poll::Pending if !watched => time.poll_over(context).map(|()| None),
                next => next.map(Some),
            });
            let Some(next) = next.await else {
                let message = "timed out waiting for the rest of the request body";
                return Err(refused(StatusCode::REQUEST_TIMEOUT, message));
            };
            let Some(frame) = next else { break };
            let frame = frame.map_err(|error| {
                // hyper's message carries no detail; the reason is in its source.
                let cause = error.source().unwrap_or(&error);
                Box::new(unreadable(cause))
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            pace.progressed(piece.len());
            time.arrived(piece.len());
            let IncomingBody { body, .. } = &mut arriving;
            if piece.len() > limit.bytes - body.len {
                return Err(too_long());
            }
            body.share
                .cover(budget, body.len + piece.len())
                .map_err(|error| Box::new(reply::error(&error)))?;
            arriving.push(piece);
        }
        Ok(arriving.whole())
    }

    /// Reads a body whose length is within the limits.
    async fn read_direct(
        wire: &Mutex<dyn Wire + '_>,
        budget: &BodyBudget,
        pace: &Pace,
    ) -> Result<Self, Box<Reply>> {
        let mut body = Self::default();
        let mut buffer = BytesMut::new();
        let mut arrived = 0;
        pace.progressed(0);
        loop {
            let left = locked(wire).left();
            if buffer.len() == buffer.capacity() || left == 0 {
                if !buffer.is_empty() {
                    body.len += buffer.len();
                    body.pieces.push(std::mem::take(&mut buffer).freeze());
                }
                if left == 0 {
                    return Ok(body);
                }
                buffer.reserve(left.min(arrived.max(FIRST_BUFFER)));
            }
            let read = poll_fn(|context| locked(wire).poll_more(&mut buffer, context)).await;
            let count = read.map_err(|error| Box::new(unreadable(&error)))?;
            pace.progressed(count);
            arrived += count;
            body.share.cover(budget, arrived).map_err(|error| Box::new(reply::error(&error)))?;
        }
    }

    /// The body's share of the budget, to be held until the request is over.
    pub fn take_share(&mut self) -> BodyShare {
        std::mem::take(&mut self.share)
    }

    /// Discards the rest of a refused request's body, within limits: clients that are still sending see the end of
    /// their connection, or over HTTP/2 the reset of their stream, instead of the reply before it. Returns a body of
    /// hyper's that did not end.
    pub(crate) async fn discard(mut arriving: ArrivingBody<'_>) -> Option<Incoming> {
        // The end of a body that announces more would not be reached.
        let is_short = arriving.announced() <= MAX_DISCARDED as u64;
        let is_over = is_short && timeout(DISCARD_TIME, discard(&mut arriving)).await.unwrap_or(false);
        match arriving {
            ArrivingBody::Pieces(incoming) if !is_over => Some(incoming),
            _ => None,
        }
    }

    /// Keeps the unread rest of a refused body on HTTP/2 until the client has had time to read the reply and to stop.
    /// Dropping it resets the stream, and some clients report that instead of the reply (curl before 8).
    pub(crate) fn linger(incoming: Incoming) {
        tokio::spawn(async move {
            sleep(LINGER_TIME).await;
            drop(incoming);
        });
    }

    /// The number of bytes left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the body is exhausted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first piece that is not taken yet: all of a small body.
    pub fn front(&self) -> &[u8] {
        self.pieces.get(self.next).map(|piece| &piece[..]).unwrap_or_default()
    }

    /// Takes `count` bytes off the front as one buffer: copied only if they arrived in several pieces.
    ///
    /// # Errors
    /// The number of missing bytes. Then nothing is taken.
    pub fn take_joined(&mut self, count: usize) -> Result<Bytes, usize> {
        let mut taken: SmallVec<[Bytes; 4]> = SmallVec::new();
        self.take_pieces(count, |piece| taken.push(piece))?;
        Ok(match taken.as_slice() {
            [] => Bytes::new(),
            [_] => taken.remove(0),
            pieces => Bytes::from(pieces.concat()),
        })
    }

    /// Takes `count` bytes off the front without copying: calls `take` with each piece.
    ///
    /// # Errors
    /// The number of missing bytes. Then nothing is taken.
    pub fn take_pieces(&mut self, count: usize, mut take: impl FnMut(Bytes)) -> Result<(), usize> {
        if count > self.len {
            return Err(count - self.len);
        }
        self.len -= count;
        let mut missing = count;
        while missing > 0
            && let Some(piece) = self.pieces.get_mut(self.next)
        {
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

/// Reads and drops a body. Returns whether it is over, rather than too long.
async fn discard(arriving: &mut ArrivingBody<'_>) -> bool {
    match arriving {
        ArrivingBody::Whole(_) => true,
        ArrivingBody::Direct(wire) => {
            let mut buffer = BytesMut::with_capacity(SHORT);
            while locked(wire).left() > 0 {
                buffer.clear();
                if poll_fn(|context| locked(wire).poll_more(&mut buffer, context)).await.is_err() {
                    break;
                }
            }
            true
        }
        ArrivingBody::Pieces(incoming) => {
            let mut discarded = 0;
            while discarded <= MAX_DISCARDED && !incoming.is_end_stream() {
                match poll_fn(|context| Pin::new(&mut *incoming).poll_frame(context)).await {
                    Some(Ok(frame)) => discarded += frame.data_ref().map_or(0, Bytes::len),
                    Some(Err(_)) | None => return true,
                }
            }
            incoming.is_end_stream()
        }
    }
}

/// 400 for a body that breaks off.
fn unreadable(cause: &(impl Display + ?Sized)) -> Reply {
    error_text(StatusCode::BAD_REQUEST, &format!("the request body cannot be read: {cause}"))
}

impl IncomingBody {
    fn push(&mut self, piece: Bytes) {
        self.body.len += piece.len();
        if piece.len() < SHORT && !self.body.pieces.is_empty() {
            self.tail.extend_from_slice(&piece);
        } else if !piece.is_empty() {
            self.end_tail();
            self.body.pieces.push(piece);
        }
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.body.pieces.push(std::mem::take(&mut self.tail).freeze());
        }
    }

    /// The body, all of which has arrived.
    fn whole(mut self) -> RequestBody {
        self.end_tail();
        self.body
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::from_iter([bytes])
    }
}

impl FromIterator<Bytes> for RequestBody {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut arriving = IncomingBody::default();
        pieces.into_iter().for_each(|piece| arriving.push(piece));
        arriving.whole()
    }
}

/// Reads from the front.
impl Buf for RequestBody {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.next).map_or(&[], |piece| piece)
    }

    fn advance(&mut self, count: usize) {
        // Callers never advance past the end.
        let _ = self.take_pieces(count, drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[&'static str]) -> RequestBody {
        pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect()
    }

    #[test]
    fn takes_span_pieces_without_copies() {
        static LONG: &str = match std::str::from_utf8(&[b'x'; SHORT]) {
            Ok(long) => long,
            Err(_) => panic!(),
        };
        let mut body = body(&["abc", "", LONG, "defg"]);
        assert_eq!(body.take_joined(2).unwrap(), "ab");
        let mut taken = Vec::new();
        body.take_pieces(1 + SHORT + 2, |piece| taken.push(piece)).unwrap();
        assert_eq!(taken, ["c", LONG, "de"]);
        assert_eq!(taken[1].as_ptr(), LONG.as_ptr());
        assert_eq!(body.take_joined(2).unwrap(), "fg");
        assert_eq!(body.len(), 0);
        assert!(body.take_pieces(0, |_| panic!("nothing is there")).is_ok());
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
    fn taking_too_much_takes_nothing_and_returns_the_shortage() {
        let mut body = body(&["ab"]);
        assert_eq!(body.take_pieces(5, |_| panic!("too little is there")), Err(3));
        assert_eq!(body.take_joined(2).unwrap(), "ab");
    }

    #[test]
    fn body_reads_like_any_buf() {
        let mut body = body(&["abc", "defg"]);
        let mut read = Vec::new();
        while body.has_remaining() {
            read.push(body.get_u8());
        }
        assert_eq!(read, b"abcdefg");
        assert!(body.chunk().is_empty());
    }
}

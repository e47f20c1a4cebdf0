//! HTTP/1.1 without hyper, for plain requests: a short head, and a body of an announced length.
//!
//! Nearly all requests are like that, and most repeat the head of the one before, which is not read again then. The first
//! request of a connection that is not plain goes to hyper, with all that follows. Replies are the same bytes as hyper's.

mod head;
mod reply;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hyper::body::Body as _;
use hyper::header::{CONNECTION, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::consume_budget;
use tokio_util::io::poll_read_buf;

use self::head::{Head, Parsed};
use self::reply::{Framing, Outgoing};
use crate::body::{ArrivingBody, RequestBody, Wire};
use crate::pace::PacedConnection;
use crate::reply::{Contents, Reply};
use crate::serve::Conversation;

/// The longest head.
const LONGEST: usize = 16 << 10;

/// The bytes that are read at once.
const READ: usize = 32 << 10;

/// Streamed data is written when there is this much, or when no more is there yet.
const MAX_BUFFERED: usize = 16 << 10;

thread_local! {
    /// Where a thread reads requests. Connections keep bytes only while the rest of their request has not arrived.
    static SCRATCH: RefCell<Box<[u8; READ]>> = RefCell::new(Box::new([0; READ]));
}

/// Why the loop ended.
pub(super) enum Ended {
    /// The connection is over.
    Closed,
    /// The next request is for hyper. Its bytes are read again.
    Unusual,
}

/// The outcome of waiting for a request.
enum Next {
    /// A plain request, whose head the caller has. With the body, if all of it has arrived.
    Request(Option<Bytes>),
    Unusual(Bytes),
    Closed,
}

/// A connection, and what has arrived on it.
struct Arrivals<'s, S> {
    stream: &'s mut PacedConnection<S>,
    /// Bytes that are not used yet.
    rest: Vec<u8>,
    /// Whether these may contain a whole request.
    is_new: bool,
    /// Bytes of the current request's body that are not used yet.
    left: usize,
}

/// Finds the first request in `received`, with `known` as the head of the request before it. Returns the length of what is used.
fn find(known: &mut Option<Box<Head>>, received: &[u8]) -> (usize, Option<Next>) {
    let unusual = || (received.len(), Some(Next::Unusual(Bytes::copy_from_slice(received))));
    let head = match known.take().filter(|known| known.starts(received)) {
        Some(head) => known.insert(head),
        None => match Head::parse(received) {
            Parsed::Head(head) => known.insert(head),
            Parsed::Partial if received.len() < LONGEST => return (0, None),
            Parsed::Partial | Parsed::Unusual => return unusual(),
        },
    };
    let length = head.bytes.len() + head.body;
    let body = received.get(head.bytes.len()..length).map(Bytes::copy_from_slice);
    (if body.is_some() { length } else { head.bytes.len() }, Some(Next::Request(body)))
}

impl<S: AsyncRead + Unpin> Arrivals<'_, S> {
    /// Reads the next request. Its head is left in `head`, where the one before it is.
    fn poll_next(
        &mut self,
        head: &mut Option<Box<Head>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Next>> {
        if std::mem::take(&mut self.is_new) {
            let rest = std::mem::take(&mut self.rest);
            if let Some(next) = self.next_of(head, &rest) {
                return Poll::Ready(Ok(next));
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                let mut buffer = ReadBuf::new(&mut **scratch);
                let known = self.rest.len();
                buffer.put_slice(&self.rest);
                ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
                let received = buffer.filled();
                if received.len() == known {
                    let rest = Bytes::from(std::mem::take(&mut self.rest));
                    // hyper reports requests that break off.
                    return Poll::Ready(Ok(if known == 0 { Next::Closed } else { Next::Unusual(rest) }));
                }
                if let Some(next) = self.next_of(head, received) {
                    return Poll::Ready(Ok(next));
                }
            }
        })
    }

    /// The request that `received` starts with; keeps the bytes that are not used. `None` if the head is incomplete.
    fn next_of(&mut self, head: &mut Option<Box<Head>>, received: &[u8]) -> Option<Next> {
        let (used, next) = find(head, received);
        // Without a capacity, if nothing is left.
        self.rest = received.get(used..).unwrap_or_default().to_vec();
        self.is_new = next.is_some() && !self.rest.is_empty();
        if let (Some(Next::Request(None)), Some(head)) = (&next, head) {
            self.left = head.body;
        }
        next
    }

    /// Completes when the client closes the connection. Reads ahead until something arrives.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.rest.is_empty() || self.left > 0 {
            return Poll::Pending;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(&mut **scratch);
            match ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer)) {
                Err(error) => Poll::Ready(error),
                Ok(()) if buffer.filled().is_empty() => Poll::Ready(ErrorKind::UnexpectedEof.into()),
                Ok(()) => {
                    self.rest.extend_from_slice(buffer.filled());
                    self.is_new = true;
                    Poll::Pending
                }
            }
        })
    }
}

impl<S: AsyncRead + Unpin + Send> Wire for Arrivals<'_, S> {
    fn left(&self) -> usize {
        self.left
    }

    fn poll_more(&mut self, buffer: &mut BytesMut, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = self.left.min(buffer.capacity() - buffer.len());
        let count = if self.rest.is_empty() {
            let mut limited = (&mut *buffer).limit(room);
            ready!(poll_read_buf(Pin::new(&mut *self.stream), context, &mut limited))?
        } else {
            let count = room.min(self.rest.len());
            let later = self.rest.split_off(count);
            buffer.extend_from_slice(&self.rest);
            self.rest = later;
            count
        };
        self.is_new = !self.rest.is_empty();
        self.left -= count;
        Poll::Ready(match count {
            0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "end of file before message length reached")),
            count => Ok(count),
        })
    }
}

/// Answers the requests of a connection until it ends, `last` completes, or one is not plain.
pub(super) async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send>(
    stream: &mut PacedConnection<S>,
    conversation: &Conversation,
    mut last: Pin<&mut impl Future<Output = ()>>,
) -> io::Result<Ended> {
    let mut head = None;
    let mut shared = Mutex::new(Arrivals { stream, rest: Vec::new(), is_new: false, left: 0 });
    loop {
        let arrivals = unlocked(&mut shared);
        if arrivals.is_new {
            // A client may send any number of requests at once.
            consume_budget().await;
        }
        let next = poll_fn(|context| match arrivals.poll_next(&mut head, context) {
            Poll::Pending => last.as_mut().poll(context).map(|()| Ok(Next::Closed)),
            next => next,
        });
        let whole = match next.await? {
            Next::Request(body) => body,
            Next::Unusual(bytes) => {
                arrivals.stream.unread(bytes);
                return Ok(Ended::Unusual);
            }
            Next::Closed => break,
        };
        let Some(head) = &head else { break };
        conversation.forget_heads();
        let reply = {
            let body = whole.map_or(ArrivingBody::Direct(&shared), ArrivingBody::Whole);
            // Boxed, so that idle connections do not have the space for it.
            let mut answer = Box::pin(conversation.answer(&head.parts, Some(&head.bytes), body));
            poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(reply) => Poll::Ready(Ok(reply)),
                // The request of a client that leaves is cancelled.
                Poll::Pending => {
                    shared.lock().unwrap_or_else(PoisonError::into_inner).poll_closed(context).map(Err)
                }
            })
            .await?
        };
        let arrivals = unlocked(&mut shared);
        let is_last = head.is_last || reply.headers().get(CONNECTION).is_some_and(is_close);
        match Sending::of(reply, is_last) {
            Sending::Whole(mut outgoing) => {
                poll_fn(|context| outgoing.poll_write(Pin::new(&mut *arrivals.stream), context)).await?;
            }
            Sending::Streamed(streaming) => streaming.send(arrivals).await?,
        }
        if is_last {
            break;
        }
        if arrivals.left > 0 {
            // Nobody has read the body.
            RequestBody::discard(ArrivingBody::Direct(&shared)).await;
            if unlocked(&mut shared).left > 0 {
                break;
            }
        }
    }
    unlocked(&mut shared).stream.shutdown().await?;
    Ok(Ended::Closed)
}

fn unlocked<T>(shared: &mut Mutex<T>) -> &mut T {
    shared.get_mut().unwrap_or_else(PoisonError::into_inner)
}

fn is_close(value: &HeaderValue) -> bool {
    value.as_bytes().eq_ignore_ascii_case(b"close")
}

/// A reply on its way to the client.
enum Sending {
    Whole(Outgoing),
    /// Boxed, so that idle connections do not have the space for it.
    Streamed(Box<Streaming>),
}

/// A reply whose body is produced while it is sent.
struct Streaming {
    outgoing: Outgoing,
    framing: Framing,
    contents: Contents,
}

impl Sending {
    fn of(reply: Reply, is_last: bool) -> Self {
        let mut outgoing = Outgoing::new();
        let framing = Framing::of(reply.status(), reply.body().size_hint().exact());
        outgoing.add_head(&reply, framing, is_last);
        match (reply.into_body(), framing) {
            (Contents::Whole(pieces), Framing::Length(length)) => outgoing.add_body(length, pieces),
            (Contents::Whole(_), _) => {}
            (contents, _) => return Self::Streamed(Box::new(Streaming { outgoing, framing, contents })),
        }
        Self::Whole(outgoing)
    }
}

impl Streaming {
    /// Writes the reply.
    async fn send<S: AsyncRead + AsyncWrite + Unpin>(
        mut self: Box<Self>,
        arrivals: &mut Arrivals<'_, S>,
    ) -> io::Result<()> {
        let Self { outgoing, framing, contents } = &mut *self;
        loop {
            let has_ended = poll_fn(|context| {
                while outgoing.remaining() < MAX_BUFFERED {
                    match Pin::new(&mut *contents).poll_frame(context) {
                        Poll::Ready(Some(Ok(frame))) => match (&framing, frame.into_data()) {
                            (_, Ok(data)) if data.is_empty() => {}
                            (Framing::Chunked, Ok(data)) => outgoing.add_chunk(&data),
                            (Framing::Length(_), Ok(data)) => outgoing.add(&data),
                            (Framing::Nothing, _) | (_, Err(_)) => {}
                        },
                        Poll::Ready(None) => return Poll::Ready(Ok(true)),
                        Poll::Pending if !outgoing.has_remaining() => {
                            return arrivals.poll_closed(context).map(Err);
                        }
                        Poll::Pending => break,
                    }
                }
                Poll::Ready(Ok(false))
            });
            let has_ended = has_ended.await?;
            if has_ended && *framing == Framing::Chunked {
                outgoing.add(b"0\r\n\r\n");
            }
            poll_fn(|context| outgoing.poll_write(Pin::new(&mut *arrivals.stream), context)).await?;
            if has_ended {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;

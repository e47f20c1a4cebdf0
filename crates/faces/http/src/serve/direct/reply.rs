//! Writes replies as hyper writes them, in as few pieces as possible.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;
use tokio::io::AsyncWrite;

use crate::reply::Pieces;

/// Bodies up to this size are joined with the head: a short copy is cheaper than one more piece to write.
const MAX_JOINED: usize = 16 << 10;

/// The largest buffer that a thread keeps.
const MAX_SPARE: usize = 64 << 10;

/// How a body's end is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After this many bytes.
    Length(u64),
    /// By a chunk of no bytes.
    Chunked,
    /// The status allows no body.
    Nothing,
}

impl Framing {
    /// The framing of a body of this length; `None`: it is not known.
    pub(super) fn of(status: StatusCode, length: Option<u64>) -> Self {
        match length {
            _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Self::Nothing,
            Some(length) => Self::Length(length),
            None => Self::Chunked,
        }
    }
}

/// The line of the date, which each thread makes once a second.
struct Date {
    line: Vec<u8>,
    /// The second since the epoch that it is for.
    second: u64,
}

fn date(out: &mut Vec<u8>) {
    thread_local! {
        static DATE: RefCell<Date> = const { RefCell::new(Date { line: Vec::new(), second: u64::MAX }) };
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    DATE.with_borrow_mut(|date| {
        if date.second != now {
            date.second = now;
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now));
            date.line = format!("date: {text}\r\n").into_bytes();
        }
        out.extend_from_slice(&date.line);
    });
}

/// Bytes on their way to the client.
pub(super) struct Outgoing {
    /// Bytes that are copied here, such as the head of a reply, and how many of them are written.
    joined: Vec<u8>,
    written: usize,
    /// Follow, in reverse order.
    pieces: SmallVec<[Bytes; 2]>,
}

thread_local! {
    /// A thread's buffer for heads and short replies, so that idle connections have none.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if self.joined.capacity() <= MAX_SPARE {
            self.joined.clear();
            SPARE.set(std::mem::take(&mut self.joined));
        }
    }
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self { joined: SPARE.take(), written: 0, pieces: SmallVec::new() }
    }

    /// Adds the head of a reply.
    pub(super) fn add_head<T>(&mut self, reply: &Response<T>, framing: Framing, is_last: bool) {
        let status = reply.status();
        if status == StatusCode::OK {
            self.add(b"HTTP/1.1 200 OK\r\n");
        } else {
            let reason = status.canonical_reason().unwrap_or("<none>");
            self.add_all([b"HTTP/1.1 ", status.as_str().as_bytes(), b" ", reason.as_bytes(), b"\r\n"]);
        }
        for (name, value) in reply.headers() {
            // The body decides.
            if *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
                self.add_all([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
            }
        }
        if is_last && !reply.headers().contains_key(CONNECTION) {
            self.add(b"connection: close\r\n");
        }
        match framing {
            Framing::Length(length) => {
                self.add_all([b"content-length: ", itoa::Buffer::new().format(length).as_bytes(), b"\r\n"]);
            }
            Framing::Chunked => self.add(b"transfer-encoding: chunked\r\n"),
            Framing::Nothing => {}
        }
        if !reply.headers().contains_key(DATE) {
            date(&mut self.joined);
        }
        self.add(b"\r\n");
    }

    /// Adds bytes. Called before [`add_body`](Self::add_body).
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.joined.extend_from_slice(bytes);
    }

    fn add_all<const N: usize>(&mut self, parts: [&[u8]; N]) {
        self.joined.reserve(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.add(part));
    }

    /// Adds a chunk of a streamed body.
    pub(super) fn add_chunk(&mut self, data: &[u8]) {
        self.add(format!("{:x}\r\n", data.len()).as_bytes());
        self.add_all([data, b"\r\n"]);
    }

    /// Adds a complete body.
    pub(super) fn add_body(&mut self, length: u64, pieces: Pieces) {
        if length <= MAX_JOINED as u64 {
            pieces.iter().for_each(|piece| self.joined.extend_from_slice(piece));
        } else {
            self.pieces = pieces.into_reversed();
        }
    }

    /// Writes what is left.
    pub(super) fn poll_write(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.has_remaining() {
            let wrote = if self.pieces.is_empty() {
                std::task::ready!(stream.as_mut().poll_write(context, self.chunk()))?
            } else {
                let mut slices = [IoSlice::new(&[]); 16];
                let count = self.chunks_vectored(&mut slices);
                let slices = slices.get(..count).unwrap_or_default();
                std::task::ready!(stream.as_mut().poll_write_vectored(context, slices))?
            };
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(wrote);
        }
        self.joined.clear();
        self.written = 0;
        stream.poll_flush(context)
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.joined.len() - self.written + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    fn chunk(&self) -> &[u8] {
        match self.joined.get(self.written..) {
            Some(joined @ [_, ..]) => joined,
            _ => self.pieces.last().map_or(&[], |piece| piece),
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let joined = self.joined.get(self.written..).filter(|joined| !joined.is_empty());
        let parts = joined.into_iter().chain(self.pieces.iter().rev().map(|piece| &**piece));
        slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, count: usize) {
        let joined = count.min(self.joined.len() - self.written);
        self.written += joined;
        let mut left = count - joined;
        while left > 0
            && let Some(piece) = self.pieces.last_mut()
        {
            let taken = left.min(piece.len());
            piece.advance(taken);
            left -= taken;
            if piece.is_empty() {
                self.pieces.pop();
            }
        }
    }
}

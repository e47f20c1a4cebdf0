//! Reads a connection and finds the frames in what arrives.
//!
//! Bytes arrive in memory that the connections of a thread share, so an idle connection has none. Long frames are read into memory
//! of their own, which their contents keep.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::Reason;
use crate::connection::Error;
use crate::frame::{HEAD, Head, PREFACE};

/// Bytes that are read at once.
const SCRATCH: usize = 64 << 10;

/// A frame of this length that has not arrived as a whole is read into memory of its own.
const LONG: usize = 8 << 10;

thread_local! {
    /// Where a thread reads frames; taken while it does.
    static MEMORY: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The contents of a frame.
pub(crate) enum Contents<'a> {
    Short(&'a [u8]),
    Long(Bytes),
}

impl Contents<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }

    /// A part of them, to be kept.
    pub(crate) fn keep(self, from: usize, to: usize) -> Bytes {
        match self {
            Self::Short(bytes) => Bytes::copy_from_slice(bytes.get(from..to).unwrap_or_default()),
            Self::Long(bytes) => bytes.slice(from..to),
        }
    }
}

/// The state of reading.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Bytes of the preface that have not arrived.
    preface: &'static [u8],
    /// The beginning of a frame.
    rest: Vec<u8>,
    /// A long frame, as far as it has arrived.
    long: Option<(Head, BytesMut)>,
    max_frame: usize,
    /// Whether the head of a frame has arrived.
    has_started: bool,
}

impl Reader {
    pub(crate) fn new(max_frame: usize) -> Self {
        Self { preface: PREFACE, rest: Vec::new(), long: None, max_frame, has_started: false }
    }

    /// Whether the client has sent the head of a frame.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Reads once, and passes complete frames to `handle`. Returns the number of bytes read, 0 at the end.
    pub(crate) fn poll_read(
        &mut self,
        stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        mut handle: impl FnMut(Head, Contents<'_>) -> Result<(), Error>,
    ) -> Poll<Result<usize, Error>> {
        if let Some((head, contents)) = &mut self.long {
            let missing = head.length - contents.len();
            let count = ready!(poll_read_buf(stream, context, &mut contents.limit(missing)))?;
            if count == missing
                && let Some((head, contents)) = self.long.take()
            {
                handle(head, Contents::Long(contents.freeze()))?;
            }
            return Poll::Ready(Ok(count));
        }
        let mut memory = MEMORY.take().unwrap_or_else(|| vec![0; SCRATCH].into());
        let read = self.poll_scratch(&mut memory, stream, context);
        let outcome = match read {
            Poll::Ready(Ok((known, filled))) if filled > known => {
                let handled = self.frames(memory.get(..filled).unwrap_or_default(), handle);
                Poll::Ready(handled.map(|()| filled - known))
            }
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(0)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        };
        MEMORY.set(Some(memory));
        outcome
    }

    /// Reads behind the beginning of a frame. Returns how long it is, and how long with what was read.
    fn poll_scratch(
        &self,
        memory: &mut [u8],
        stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(usize, usize)>> {
        let mut buffer = ReadBuf::new(memory);
        buffer.put_slice(&self.rest);
        ready!(stream.poll_read(context, &mut buffer))?;
        Poll::Ready(Ok((self.rest.len(), buffer.filled().len())))
    }

    /// Handles the frames in `bytes`, and keeps what is behind them.
    fn frames(
        &mut self,
        mut bytes: &[u8],
        mut handle: impl FnMut(Head, Contents<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.rest = Vec::new();
        if !self.preface.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.preface.len()));
            self.preface = self.preface.strip_prefix(now).ok_or(Error::NotHttp2)?;
            bytes = later;
        }
        while let Some(head) = Head::read(bytes) {
            self.has_started = true;
            if head.length > self.max_frame {
                return Err(Error::of_protocol(Reason::FRAME_SIZE_ERROR, "a frame is too long"));
            }
            let Some(contents) = bytes.get(HEAD..HEAD + head.length) else {
                if head.length >= LONG {
                    let mut contents = BytesMut::with_capacity(head.length);
                    contents.put_slice(bytes.get(HEAD..).unwrap_or_default());
                    self.long = Some((head, contents));
                    return Ok(());
                }
                break;
            };
            handle(head, Contents::Short(contents))?;
            bytes = bytes.get(HEAD + head.length..).unwrap_or_default();
        }
        self.rest = bytes.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests;

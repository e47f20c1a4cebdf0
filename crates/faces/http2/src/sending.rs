//! The sending side of a connection: replies are queued as far as the client's windows and the connection take them.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::frame::{self, DATA, END_STREAM};
use crate::hpack::Encoder;
use crate::outgoing::Outgoing;

/// Replies are queued until this is waiting to be written.
const ENOUGH: usize = 128 << 10;

/// Frames that answer the client's are queued until this is waiting to be written. No further frames are read then.
const TOO_MUCH: usize = ENOUGH + (64 << 10);

/// The default window of streams and connections.
pub(crate) const WINDOW: i64 = 65_535;

/// The largest window (RFC 9113, section 6.9.1).
pub(crate) const LARGEST_WINDOW: i64 = (1 << 31) - 1;

/// The shortest limit for frames (RFC 9113, section 6.5.2).
const FRAME: usize = 16_384;

/// Queued frames, and the state shared by all replies of a connection.
#[derive(Debug)]
pub(crate) struct Sending {
    pub outgoing: Outgoing,
    pub encoder: Encoder,
    /// The client's window for all replies.
    pub window: i64,
    /// The client's window for a new reply.
    pub initial_window: i64,
    /// The longest frame that the client accepts.
    pub max_frame: usize,
    /// Whether a part of a reply was queued since this was last reset.
    pub has_replied: bool,
    /// Memory for header blocks.
    block: Vec<u8>,
}

/// Why data waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For the window of its stream.
    Stream,
    /// For the window of the connection.
    Connection,
    /// For bytes to be written.
    Room,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            outgoing: Outgoing::default(),
            encoder: Encoder::default(),
            window: WINDOW,
            initial_window: WINDOW,
            max_frame: FRAME,
            has_replied: false,
            block: Vec::new(),
        }
    }
}

impl Sending {
    /// Whether replies have to wait until bytes are written.
    pub(crate) fn is_full(&self) -> bool {
        self.outgoing.len() >= ENOUGH
    }

    /// Whether no further frames of the client may be read.
    pub(crate) fn is_overfull(&self) -> bool {
        self.outgoing.len() >= TOO_MUCH
    }

    /// Queues the head of a reply.
    pub(crate) fn head(&mut self, stream: u32, status: StatusCode, headers: &HeaderMap, is_last: bool) {
        self.block.clear();
        self.encoder.head(status, headers, &mut self.block);
        self.put_block(stream, is_last);
    }

    /// Queues the trailers of a reply, which end it.
    pub(crate) fn trailers(&mut self, stream: u32, trailers: &HeaderMap) {
        self.block.clear();
        self.encoder.trailers(trailers, &mut self.block);
        self.put_block(stream, true);
    }

    fn put_block(&mut self, stream: u32, is_last: bool) {
        let flags = if is_last { END_STREAM } else { 0 };
        frame::put_block(self.outgoing.buffer(), &self.block, flags, stream, self.max_frame);
        self.has_replied = true;
    }

    /// Queues as much of a reply's piece as possible. Returns why the rest waits.
    pub(crate) fn data(&mut self, stream: u32, piece: &mut Bytes, window: &mut i64) -> Option<Wait> {
        while !piece.is_empty() {
            if *window <= 0 {
                return Some(Wait::Stream);
            }
            if self.window <= 0 {
                return Some(Wait::Connection);
            }
            if self.is_full() {
                return Some(Wait::Room);
            }
            let most = usize::try_from(self.window.min(*window)).unwrap_or(0).min(self.max_frame);
            let part = piece.split_to(piece.len().min(most));
            *window -= part.len() as i64;
            self.window -= part.len() as i64;
            frame::put_head(self.outgoing.buffer(), part.len(), DATA, 0, stream);
            self.outgoing.push(part);
            self.has_replied = true;
        }
        None
    }

    /// Queues the end of a reply without trailers.
    pub(crate) fn end(&mut self, stream: u32) {
        frame::put_head(self.outgoing.buffer(), 0, DATA, END_STREAM, stream);
        self.has_replied = true;
    }
}

//! The frames of the client (RFC 9113, section 6).

mod heads;

use std::collections::{BTreeSet, VecDeque};

use super::keepalive::KEEPALIVE;
use super::{Core, DRAIN, Error};
use crate::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Head, PING, PRIORITISED, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, number, put_head, put_number, put_ping, setting,
    unpadded,
};
use crate::reader::Contents;
use crate::sending::{LARGEST_WINDOW, Sending, WINDOW};
use crate::streams::Stream;
use crate::{Options, Reason, Service};

use self::heads::Heads;

/// Most CONTINUATION frames of a header block, and its greatest length: far more than what any client sends below the limit for
/// heads.
const MOST_CONTINUATIONS: u32 = 64;
const LONGEST_BLOCK: usize = 128 << 10;

/// Most streams that were ended by this side and of which more frames may come. Beyond that the oldest are forgotten.
const MOST_ABANDONED: usize = 1 << 14;

/// The state of the receiving side.
pub(super) struct Receiving {
    heads: Heads,
    /// The header block that continues in the next frame.
    block: Option<Block>,
    /// The client's remaining window for all streams.
    window: i64,
    connection_window: i64,
    /// Bytes that were read, and that the client may send again.
    read: usize,
    stream_window: i64,
    /// The highest stream that the client has opened, and those before it.
    highest: u32,
    recent: [u32; 16],
    /// Streams above this one are ignored.
    last: u32,
    abandoned: BTreeSet<u32>,
    /// In the order in which they were abandoned.
    abandoned_order: VecDeque<u32>,
    /// Requests that were reset before the service had them.
    pub(super) pending_resets: usize,
    error_resets: usize,
    has_settings: bool,
    pub(super) keepalive_answered: bool,
    pub(super) drain_answered: bool,
    /// Whether the client announced that it opens no more streams.
    pub(super) has_client_left: bool,
}

/// A header block whose end has not arrived.
struct Block {
    stream: u32,
    ends_stream: bool,
    is_broken: bool,
    bytes: Vec<u8>,
    frames: u32,
}

fn broken<T>(details: &'static str) -> Result<T, Error> {
    Err(Error::of_protocol(Reason::PROTOCOL_ERROR, details))
}

fn wrong_size<T>() -> Result<T, Error> {
    Err(Error::of_protocol(Reason::FRAME_SIZE_ERROR, "a frame has the wrong length"))
}

impl Receiving {
    pub(super) fn new(options: &Options) -> Self {
        let connection_window = i64::from(options.connection_window).max(WINDOW);
        Self {
            heads: Heads::new(options.max_head as usize),
            block: None,
            window: connection_window,
            connection_window,
            read: 0,
            stream_window: i64::from(options.stream_window),
            highest: 0,
            recent: [0; 16],
            last: u32::MAX,
            abandoned: BTreeSet::new(),
            abandoned_order: VecDeque::new(),
            pending_resets: 0,
            error_resets: 0,
            has_settings: false,
            keepalive_answered: false,
            drain_answered: false,
            has_client_left: false,
        }
    }

    /// The highest stream that the client has opened.
    pub(super) fn highest(&self) -> u32 {
        self.highest
    }

    /// The client opens a stream.
    fn open(&mut self, stream: u32) {
        self.highest = stream;
        self.recent.rotate_right(1);
        self.recent[0] = stream;
    }

    /// Whether this was one of the streams that the client opened last.
    fn is_recent(&self, stream: u32) -> bool {
        self.recent.contains(&stream)
    }

    /// Ignores streams that the client opens from now on. Returns the last one that is not ignored.
    pub(super) fn refuse_further(&mut self) -> u32 {
        self.last = self.highest;
        self.last
    }

    /// This side ended a stream, of which frames may still come.
    pub(super) fn abandon(&mut self, stream: u32) {
        if self.abandoned.insert(stream) {
            self.abandoned_order.push_back(stream);
        }
        if self.abandoned_order.len() > MOST_ABANDONED
            && let Some(oldest) = self.abandoned_order.pop_front()
        {
            self.abandoned.remove(&oldest);
        }
    }

    /// The client ended a stream that this side had abandoned.
    fn forget(&mut self, stream: u32) {
        self.abandoned.remove(&stream);
        if self.abandoned.is_empty() {
            self.abandoned_order.clear();
        }
    }

    /// Whether the client has not opened this stream.
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.highest || stream.is_multiple_of(2)
    }

    /// Returns bytes to the client's window for all streams.
    pub(super) fn discarded(&mut self, count: usize, sending: &mut Sending) {
        self.read += count;
        if self.read as i64 >= self.connection_window / 2 {
            self.window += self.read as i64;
            put_number(sending.outgoing.buffer(), WINDOW_UPDATE, 0, self.read as u32);
            self.read = 0;
        }
    }

    /// Returns the bytes read of a stream to both windows, once they are worth a frame.
    pub(super) fn read<V: Service>(&mut self, stream: &mut Stream<V>, sending: &mut Sending) {
        let count = std::mem::take(&mut stream.read);
        self.discarded(count, sending);
        stream.to_grant += count;
        if !stream.has_ended && stream.to_grant as i64 >= self.stream_window / 2 {
            stream.receive_window += stream.to_grant as i64;
            put_number(sending.outgoing.buffer(), WINDOW_UPDATE, stream.id, stream.to_grant as u32);
            stream.to_grant = 0;
        }
    }
}

impl<V: Service> Core<V> {
    /// Handles a frame.
    pub(super) fn receive(&mut self, head: Head, contents: Contents<'_>) -> Result<(), Error> {
        if !self.receiving.has_settings && (head.kind != SETTINGS || head.has(ACK)) {
            return broken("the first frame is not SETTINGS");
        }
        if let Some(block) = &self.receiving.block
            && (head.kind != CONTINUATION || head.stream != block.stream)
        {
            return broken("a header block is interrupted");
        }
        match head.kind {
            DATA => self.data(head, contents),
            HEADERS => self.headers(head, contents.bytes()),
            PRIORITY => priority(head, contents.bytes()),
            RST_STREAM => self.reset_by_client(head),
            SETTINGS => self.settings(head, contents.bytes()),
            PUSH_PROMISE => broken("a client cannot push"),
            PING => self.ping(head, contents.bytes()),
            GOAWAY => {
                if head.stream != 0 {
                    return broken("GOAWAY has a stream");
                }
                if head.length < 8 {
                    return wrong_size();
                }
                self.receiving.has_client_left = true;
                Ok(())
            }
            WINDOW_UPDATE => self.window_update(head, contents.bytes()),
            CONTINUATION => self.continuation(head, contents.bytes()),
            // Unknown frames are ignored.
            _ => Ok(()),
        }
    }

    /// Resets a stream whose frames break the protocol.
    fn reset_broken(&mut self, stream: u32, reason: Reason) -> Result<(), Error> {
        self.receiving.error_resets += 1;
        if self.receiving.error_resets > self.options.max_error_resets {
            return Err(Error::of_protocol(Reason::ENHANCE_YOUR_CALM, "too_many_internal_resets"));
        }
        match self.streams.place(stream) {
            Some(place) => self.reset(place, reason),
            None => put_number(self.sending.outgoing.buffer(), RST_STREAM, stream, reason.0),
        }
        Ok(())
    }

    fn data(&mut self, head: Head, contents: Contents<'_>) -> Result<(), Error> {
        let (id, ends_stream) = (head.stream, head.has(END_STREAM));
        self.receiving.window -= head.length as i64;
        if self.receiving.window < 0 {
            return Err(Error::of_protocol(
                Reason::FLOW_CONTROL_ERROR,
                "more data than the connection's window",
            ));
        }
        let Some((from, to)) = unpadded(&head, contents.bytes()) else {
            return broken("padding is longer than its frame");
        };
        let Some(place) = self.streams.place(id) else { return self.data_of_no_stream(head) };
        let Some((stream, waker)) = self.streams.get(place) else { return Ok(()) };
        if stream.has_ended {
            self.receiving.discarded(head.length, &mut self.sending);
            return self.reset_broken(id, Reason::STREAM_CLOSED);
        }
        stream.receive_window -= head.length as i64;
        if stream.receive_window < 0 {
            self.receiving.discarded(head.length, &mut self.sending);
            return self.reset_broken(id, Reason::FLOW_CONTROL_ERROR);
        }
        let length = to - from;
        stream.read += head.length - length;
        let left = stream.content_left.map(|left| left.checked_sub(length as u64));
        if left.is_some_and(|left| left.is_none_or(|left| ends_stream && left > 0)) {
            self.receiving.discarded(head.length, &mut self.sending);
            return self.reset_broken(id, Reason::PROTOCOL_ERROR);
        }
        stream.content_left = left.flatten();
        stream.has_ended = ends_stream;
        let mut reader = None;
        if length > 0
            && let Some(piece) = stream.add_first(contents.keep(from, to))
        {
            let enough = self.options.stream_window as usize / 2;
            let (waiting, unread) = stream.arriving(waker, enough).push(piece);
            reader = waiting;
            stream.read += unread;
        }
        if ends_stream && let Some(arriving) = &stream.arriving {
            reader = arriving.end(None).or(reader);
        }
        if stream.read > 0 {
            self.receiving.read(stream, &mut self.sending);
        }
        if let Some(reader) = reader {
            self.streams.wake(place, reader);
        }
        Ok(())
    }

    /// Data of a stream that is over, or was never opened.
    fn data_of_no_stream(&mut self, head: Head) -> Result<(), Error> {
        let id = head.stream;
        self.receiving.discarded(head.length, &mut self.sending);
        if id > self.receiving.last && !id.is_multiple_of(2) {
            return Ok(());
        }
        if self.receiving.is_idle(id) {
            return broken("data of a stream that was not opened");
        }
        if !self.receiving.abandoned.contains(&id) {
            return self.reset_broken(id, Reason::STREAM_CLOSED);
        }
        if head.has(END_STREAM) {
            self.receiving.forget(id);
        }
        Ok(())
    }

    fn headers(&mut self, head: Head, contents: &[u8]) -> Result<(), Error> {
        let id = head.stream;
        if id.is_multiple_of(2) {
            return broken("clients open streams with odd numbers");
        }
        let Some((from, to)) = unpadded(&head, contents) else {
            return broken("padding is longer than its frame");
        };
        let mut block = contents.get(from..to).unwrap_or_default();
        let mut is_broken = false;
        if head.has(PRIORITISED) {
            let Some((priority, rest)) = block.split_at_checked(5) else { return wrong_size() };
            is_broken = depends_on_itself(id, priority);
            block = rest;
        }
        let ends_stream = head.has(END_STREAM);
        if head.has(END_HEADERS) {
            return self.header_block(id, ends_stream, is_broken, block);
        }
        let bytes = block.to_vec();
        self.receiving.block = Some(Block { stream: id, ends_stream, is_broken, bytes, frames: 0 });
        Ok(())
    }

    fn continuation(&mut self, head: Head, contents: &[u8]) -> Result<(), Error> {
        let Some(mut block) = self.receiving.block.take() else {
            return broken("CONTINUATION without a header block");
        };
        block.frames += 1;
        if block.frames > MOST_CONTINUATIONS || block.bytes.len() + contents.len() > LONGEST_BLOCK {
            return Err(Error::of_protocol(Reason::ENHANCE_YOUR_CALM, "too_many_continuations"));
        }
        block.bytes.extend_from_slice(contents);
        if head.has(END_HEADERS) {
            return self.header_block(block.stream, block.ends_stream, block.is_broken, &block.bytes);
        }
        self.receiving.block = Some(block);
        Ok(())
    }

    fn reset_by_client(&mut self, head: Head) -> Result<(), Error> {
        if head.length != 4 {
            return wrong_size();
        }
        let id = head.stream;
        if let Some(place) = self.streams.place(id) {
            if self.streams.get(place).is_some_and(|(stream, _)| stream.is_new()) {
                self.receiving.pending_resets += 1;
                if self.receiving.pending_resets > self.options.max_pending_resets {
                    return Err(Error::of_protocol(Reason::ENHANCE_YOUR_CALM, "too_many_resets"));
                }
            }
            self.remove(place);
        } else if id <= self.receiving.last && self.receiving.is_idle(id) {
            return broken("RST_STREAM of a stream that was not opened");
        } else {
            self.receiving.forget(id);
        }
        Ok(())
    }

    fn settings(&mut self, head: Head, contents: &[u8]) -> Result<(), Error> {
        if head.stream != 0 {
            return broken("SETTINGS has a stream");
        }
        if head.has(ACK) {
            return if head.length == 0 { Ok(()) } else { wrong_size() };
        }
        let (settings, []) = contents.as_chunks::<6>() else { return wrong_size() };
        for [a, b, c, d, e, f] in settings {
            let value = u32::from_be_bytes([*c, *d, *e, *f]);
            match u16::from_be_bytes([*a, *b]) {
                setting::HEADER_TABLE_SIZE => self.sending.encoder.limit(value as usize),
                setting::ENABLE_PUSH if value > 1 => return broken("ENABLE_PUSH is neither 0 nor 1"),
                setting::INITIAL_WINDOW_SIZE => self.change_windows(i64::from(value))?,
                setting::MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return broken("MAX_FRAME_SIZE is out of range");
                }
                setting::MAX_FRAME_SIZE => self.sending.max_frame = value as usize,
                _ => {}
            }
        }
        self.receiving.has_settings = true;
        put_head(self.sending.outgoing.buffer(), 0, SETTINGS, ACK, 0);
        Ok(())
    }

    /// The client takes this much of each reply.
    fn change_windows(&mut self, window: i64) -> Result<(), Error> {
        if window > LARGEST_WINDOW {
            return Err(Error::of_protocol(
                Reason::FLOW_CONTROL_ERROR,
                "INITIAL_WINDOW_SIZE is out of range",
            ));
        }
        let change = window - std::mem::replace(&mut self.sending.initial_window, window);
        let mut places = Vec::new();
        for (place, stream) in self.streams.iter_mut() {
            stream.reply.window += change;
            if stream.reply.window > LARGEST_WINDOW {
                return Err(Error::of_protocol(Reason::FLOW_CONTROL_ERROR, "a window is too large"));
            }
            if change > 0 && stream.reply.waits() {
                places.push(place);
            }
        }
        places.into_iter().for_each(|place| self.streams.poll_later(place));
        Ok(())
    }

    fn ping(&mut self, head: Head, contents: &[u8]) -> Result<(), Error> {
        if head.stream != 0 {
            return broken("PING has a stream");
        }
        let Ok(contents) = <[u8; 8]>::try_from(contents) else { return wrong_size() };
        if head.has(ACK) {
            self.receiving.keepalive_answered |= contents == KEEPALIVE;
            self.receiving.drain_answered |= contents == DRAIN;
            return Ok(());
        }
        let has_requests = self.streams.len() > 0;
        if self.pings.as_mut().is_some_and(|pings| pings.arrived(has_requests)) {
            return Err(Error::of_protocol(Reason::ENHANCE_YOUR_CALM, "too_many_pings"));
        }
        put_ping(self.sending.outgoing.buffer(), ACK, contents);
        Ok(())
    }

    fn window_update(&mut self, head: Head, contents: &[u8]) -> Result<(), Error> {
        let Some(more) = number(contents) else { return wrong_size() };
        let (id, more) = (head.stream, i64::from(more & 0x7fff_ffff));
        if id == 0 {
            if more == 0 {
                return broken("WINDOW_UPDATE of nothing");
            }
            self.sending.window += more;
            if self.sending.window > LARGEST_WINDOW {
                return Err(Error::of_protocol(Reason::FLOW_CONTROL_ERROR, "the window is too large"));
            }
            for place in self.without_window.drain(..) {
                self.streams.poll_later(place);
            }
            return Ok(());
        }
        let Some(place) = self.streams.place(id) else {
            let is_idle = id <= self.receiving.last && self.receiving.is_idle(id);
            return if is_idle { broken("WINDOW_UPDATE of a stream that was not opened") } else { Ok(()) };
        };
        let Some((stream, _)) = self.streams.get(place) else { return Ok(()) };
        if more == 0 {
            return self.reset_broken(id, Reason::PROTOCOL_ERROR);
        }
        stream.reply.window += more;
        if stream.reply.window > LARGEST_WINDOW {
            return self.reset_broken(id, Reason::FLOW_CONTROL_ERROR);
        }
        if stream.reply.waits() {
            self.streams.poll_later(place);
        }
        Ok(())
    }
}

/// Priorities are only checked: RFC 9113 has deprecated them.
fn priority(head: Head, contents: &[u8]) -> Result<(), Error> {
    if head.stream == 0 {
        return broken("PRIORITY has no stream");
    }
    if head.length != 5 {
        return wrong_size();
    }
    match depends_on_itself(head.stream, contents) {
        true => broken("a stream depends on itself"),
        false => Ok(()),
    }
}

fn depends_on_itself(stream: u32, priority: &[u8]) -> bool {
    priority.get(..4).and_then(number).is_some_and(|other| other & 0x7fff_ffff == stream)
}

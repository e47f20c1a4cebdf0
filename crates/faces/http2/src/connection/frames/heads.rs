//! Header blocks: the heads of requests, and their trailers.
//!
//! Clients repeat the head of the request before, in the same bytes once its fields are in the table. Such a head is copied instead of
//! decoded.

use http::{HeaderMap, StatusCode};

use super::{Core, Error, RST_STREAM, put_number};
use crate::hpack::Decoder;
use crate::request::{Fields, RequestHead, Unusable};
use crate::streams::Stream;
use crate::{Reason, Service};

/// Longer blocks are not compared with the one before.
const LONGEST_REPEATED: usize = 1024;

/// Decodes the blocks of a connection.
pub(super) struct Heads {
    decoder: Decoder,
    /// The largest head.
    limit: usize,
    /// The last block that did not change the table.
    last: Vec<u8>,
    /// The number of the table's changes then.
    changes: u64,
    /// The head of `last`, kept once the block has come twice.
    head: Option<RequestHead>,
}

impl Heads {
    pub(super) fn new(limit: usize) -> Self {
        Self { decoder: Decoder::default(), limit, last: Vec::new(), changes: 0, head: None }
    }

    /// Decodes the head of a request.
    fn head(&mut self, block: &[u8]) -> Result<Result<RequestHead, Unusable>, Error> {
        let is_repeated = self.changes == self.decoder.changes() && self.last == block;
        if is_repeated && let Some(head) = &self.head {
            return Ok(Ok(head.clone()));
        }
        let changes = self.decoder.changes();
        let head = self.fields(block)?.into_head();
        self.head = if is_repeated { head.as_ref().ok().cloned() } else { None };
        self.last.clear();
        if changes == self.decoder.changes() && block.len() <= LONGEST_REPEATED {
            self.last.extend_from_slice(block);
            self.changes = changes;
        }
        Ok(head)
    }

    fn fields(&mut self, block: &[u8]) -> Result<Fields, Error> {
        let mut fields = Fields::new(self.limit);
        let decoded = self.decoder.decode(block, |field| fields.add(field));
        decoded.map_err(|_| Error::of_protocol(Reason::COMPRESSION_ERROR, "a header block is malformed"))?;
        Ok(fields)
    }
}

impl<V: Service> Core<V> {
    /// Handles a complete header block.
    pub(super) fn header_block(
        &mut self,
        id: u32,
        ends_stream: bool,
        is_broken: bool,
        block: &[u8],
    ) -> Result<(), Error> {
        if let Some(place) = self.streams.place(id) {
            return self.trailers((place, id), ends_stream, block);
        }
        if id > self.receiving.last {
            return self.receiving.heads.fields(block).map(drop);
        }
        if id <= self.receiving.highest {
            if !self.receiving.abandoned.contains(&id) {
                let reason =
                    if self.receiving.is_recent(id) { Reason::STREAM_CLOSED } else { Reason::PROTOCOL_ERROR };
                return Err(Error::of_protocol(reason, "a stream is opened again"));
            }
            if ends_stream {
                self.receiving.forget(id);
            }
            return self.receiving.heads.fields(block).map(drop);
        }
        self.receiving.open(id);
        let head = self.receiving.heads.head(block)?;
        if is_broken {
            return self.reset_new(id, ends_stream, Reason::PROTOCOL_ERROR);
        }
        if self.streams.len() >= self.options.max_streams as usize {
            return self.reset_new(id, ends_stream, Reason::REFUSED_STREAM);
        }
        let head = match head {
            Ok(head) => head,
            Err(Unusable::Malformed) => return self.reset_new(id, ends_stream, Reason::PROTOCOL_ERROR),
            Err(Unusable::TooLarge) => {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                self.sending.head(id, status, &HeaderMap::new(), true);
                return self.reset_new(id, ends_stream, Reason::NO_ERROR);
            }
        };
        if ends_stream && head.content_length.is_some_and(|length| length > 0) {
            return self.reset_new(id, ends_stream, Reason::PROTOCOL_ERROR);
        }
        let windows = (self.receiving.stream_window, self.sending.initial_window);
        let in_progress = self.requests.begin();
        let mut stream = Stream::new(id, Box::new(head.parts), head.content_length, windows, in_progress);
        stream.has_ended = ends_stream;
        self.streams.insert(stream);
        Ok(())
    }

    /// Resets a stream that was just opened.
    fn reset_new(&mut self, id: u32, ends_stream: bool, reason: Reason) -> Result<(), Error> {
        if !ends_stream {
            self.receiving.abandon(id);
        }
        if reason == Reason::NO_ERROR {
            put_number(self.sending.outgoing.buffer(), RST_STREAM, id, reason.0);
            return Ok(());
        }
        self.reset_broken(id, reason)
    }

    fn trailers(&mut self, (place, id): (u32, u32), ends_stream: bool, block: &[u8]) -> Result<(), Error> {
        let trailers = self.receiving.heads.fields(block)?.into_trailers();
        let Some((stream, waker)) = self.streams.get(place) else { return Ok(()) };
        if stream.has_ended {
            return self.reset_broken(id, Reason::STREAM_CLOSED);
        }
        let is_short = stream.content_left.is_some_and(|left| left > 0);
        let (Some(trailers), true, false) = (trailers, ends_stream, is_short) else {
            return self.reset_broken(id, Reason::PROTOCOL_ERROR);
        };
        stream.has_ended = true;
        let enough = self.options.stream_window as usize / 2;
        if let Some(reader) = stream.arriving(waker, enough).end(Some(trailers)) {
            self.streams.wake(place, reader);
        }
        Ok(())
    }
}

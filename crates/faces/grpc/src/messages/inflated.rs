//! Decompresses messages before any other code reads them.
//!
//! tonic decompresses on the connection's thread, up to the longest message allowed, for every message at once. Here,
//! decompression runs on other threads and within the server's budget.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame};
use nereid_budgets::{BodyBudget, DecompressionError};
use nereid_net::slow_clients::Arrival;
use nereid_tasks::long_work;
use tonic::Status;
use tonic::codegen::{BoxFuture, StdError};

use super::{HEAD, MAX_MESSAGE_SIZE, late, poll_late};
use crate::codec::{Pieces, Splitter};
use crate::status;

/// Compressed messages up to this size are decompressed inline. They expand a thousandfold at most, which takes a few
/// milliseconds.
const SHORT: usize = 4 << 10;

/// Header with the format of a call's messages.
pub(crate) static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The format of compressed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Gzip,
    /// The zlib format.
    Deflate,
}

impl Format {
    /// The format with this name in headers.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|format| format.name().as_bytes() == name)
    }

    /// The name in headers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }
}

/// Removes the message encoding from the headers of a call and returns its format; `None` if the messages are not
/// compressed or the format is unknown.
pub(crate) fn compression(headers: &mut HeaderMap) -> Option<Format> {
    let format = Format::named(headers.get(&ENCODING)?.as_bytes())?;
    headers.remove(&ENCODING);
    Some(format)
}

/// The body of a call with possibly compressed messages. Yields decompressed messages and holds their share of the
/// budget.
pub(crate) struct InflatedBody<B> {
    body: B,
    format: Format,
    budget: BodyBudget,
    splitter: Splitter,
    task: Option<BoxFuture<Bytes, Status>>,
    /// Pieces ready to be read.
    ready: VecDeque<Bytes>,
    /// Deadline for the rest of a partially received message.
    arrival: Arrival,
}

impl<B> InflatedBody<B> {
    /// The body of a call whose compressed messages have this format.
    pub(crate) fn new(body: B, format: Format, budget: BodyBudget) -> Self {
        let (splitter, arrival) = (Splitter::default(), Arrival::default());
        Self { body, format, budget, splitter, task: None, ready: VecDeque::new(), arrival }
    }

    /// Takes a complete message.
    fn take(&mut self, flag: u8, mut pieces: Pieces) -> Result<(), Status> {
        let (format, budget) = (self.format, self.budget.clone());
        match flag {
            1 if pieces.remaining() <= SHORT => {
                let plain = decompressed(format, pieces, &budget)?;
                self.put(0, plain);
            }
            1 => self.task = Some(Box::pin(elsewhere(format, pieces, budget))),
            // A flag that does not exist is for the reader to refuse.
            other => {
                let share = std::mem::take(&mut pieces.share);
                self.put(other, share.attached_to(pieces.copy_to_bytes(pieces.remaining())));
            }
        }
        Ok(())
    }

    fn put(&mut self, flag: u8, message: Bytes) {
        self.ready.extend([head(flag, message.len()), message]);
    }
}

/// The head of a message. Its length was checked.
fn head(flag: u8, length: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(HEAD);
    head.put_u8(flag);
    head.put_u32(length as u32);
    head.freeze()
}

/// Decompresses a long message on another thread.
async fn elsewhere(format: Format, pieces: Pieces, budget: BodyBudget) -> Result<Bytes, Status> {
    long_work::run(move || decompressed(format, pieces, &budget)).await.map_err(|error| status::of(&error))?
}

fn decompressed(format: Format, mut pieces: Pieces, budget: &BodyBudget) -> Result<Bytes, Status> {
    let (length, mut share) = (pieces.remaining(), std::mem::take(&mut pieces.share));
    let compressed = pieces.reader();
    let plain = match format {
        Format::Gzip => share.decompress(budget, length, MAX_MESSAGE_SIZE, GzDecoder::new(compressed)),
        Format::Deflate => share.decompress(budget, length, MAX_MESSAGE_SIZE, ZlibDecoder::new(compressed)),
    };
    match plain {
        Ok(plain) => Ok(share.attached_to(plain)),
        Err(DecompressionError::Invalid(error)) => {
            Err(Status::internal(format!("a compressed message cannot be decompressed: {error}")))
        }
        Err(DecompressionError::TooLong) => Err(Status::resource_exhausted(format!(
            "a compressed message exceeds the limit of {MAX_MESSAGE_SIZE} bytes when it is decompressed"
        ))),
        Err(DecompressionError::NoRoom(error)) => Err(status::of(&error)),
    }
}

impl<B> Body for InflatedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = self.get_mut();
        loop {
            if let Some(task) = &mut this.task {
                let outcome = ready!(task.as_mut().poll(context));
                this.task = None;
                this.put(0, outcome?);
            }
            if let Some(bytes) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some((flag, pieces)) = this.splitter.read(&this.budget)? {
                this.take(flag, pieces)?;
                continue;
            }
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(poll_late(&mut this.arrival, this.splitter.is_within(), context));
                    return Poll::Ready(Some(Err(late().into())));
                }
            };
            let frame = match frame {
                Some(frame) => frame.map_err(Into::into)?,
                None => return Poll::Ready(this.splitter.cut_off().map(|status| Err(status.into()))),
            };
            match frame.into_data() {
                Ok(bytes) => {
                    this.arrival.arrived(bytes.len());
                    this.splitter.arrived(bytes);
                }
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
    }
}

#[cfg(test)]
mod tests;

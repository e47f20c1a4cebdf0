//! Incoming messages. A length prefix is trusted only once nearly all of its message has arrived.
//!
//! A message begins with five bytes that announce its length, up to 4 GiB, and tonic's decoder reserves all of that at
//! once. A client that announces a long message and sends nothing must not cause that allocation: the pieces of a long
//! message wait here until nearly all have arrived.

mod inflated;

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use nereid_budgets::{BodyBudget, BodyShare};
use nereid_net::slow_clients::Arrival;
use tonic::Status;
use tonic::codegen::StdError;

pub(crate) use self::inflated::{ENCODING, Format, InflatedBody, compression};
use crate::status;

/// The longest message in either direction, in bytes, as in the reference.
pub(crate) const MAX_MESSAGE_SIZE: usize = i32::MAX as usize;

/// Length of the prefix: the compression flag and the message's length.
pub(crate) const HEAD: usize = 5;

/// Largest length prefix trusted before the data arrives.
const MAX_UNVERIFIED_LEN: usize = 1 << 20;

/// The body of a call.
pub(crate) struct Messages<B> {
    body: B,
    /// The head of the next message, and the number of its bytes received.
    head: [u8; HEAD],
    head_length: usize,
    /// Bytes of the message still missing after its head.
    missing: usize,
    /// Bytes of the message received so far.
    arrived: usize,
    budget: BodyBudget,
    share: BodyShare,
    /// The pieces of a message of which too much is missing.
    held: VecDeque<Bytes>,
    /// Pieces that may be decoded.
    ready: VecDeque<Bytes>,
    /// Deadline for the rest of a partially received message.
    arrival: Arrival,
}

impl<B> Messages<B> {
    pub(crate) fn new(body: B, budget: BodyBudget) -> Self {
        Self {
            body,
            head: [0; HEAD],
            head_length: 0,
            missing: 0,
            arrived: 0,
            budget,
            share: BodyShare::default(),
            held: VecDeque::new(),
            ready: VecDeque::new(),
            arrival: Arrival::default(),
        }
    }

    /// Tracks message boundaries through a piece and returns the offset of the message that is incomplete at its end.
    ///
    /// # Errors
    /// `ResourceExhausted` for a message above the limit, `Unavailable` if the budget cannot hold it.
    fn follow(&mut self, piece: &[u8]) -> Result<usize, Status> {
        let mut begin = 0;
        let mut rest = piece;
        while !rest.is_empty() {
            if self.missing > 0 {
                let some = rest.len().min(self.missing);
                self.missing -= some;
                self.arrived += some;
                rest.advance(some);
            } else {
                if self.head_length == 0 {
                    begin = piece.len() - rest.len();
                }
                let room = self.head.get_mut(self.head_length..).unwrap_or_default();
                let some = rest.len().min(room.len());
                rest.copy_to_slice(room.split_at_mut(some).0);
                self.head_length += some;
                if self.head_length == HEAD {
                    self.head_length = 0;
                    self.missing = announced_length(self.head, &self.budget)?;
                    self.arrived = 0;
                    self.share = BodyShare::default();
                }
            }
        }
        self.share.cover(&self.budget, self.arrived).map_err(|error| status::of(&error))?;
        Ok(begin)
    }

    /// Takes a piece and returns what may be decoded now.
    fn take(&mut self, mut piece: Bytes) -> Result<Option<Bytes>, Status> {
        let begin = self.follow(&piece)?;
        let unverified =
            if self.missing > MAX_UNVERIFIED_LEN { piece.split_off(begin) } else { Bytes::new() };
        let mut decodable = None;
        if !piece.is_empty() {
            // The message that was held is complete, or nearly so.
            self.ready.append(&mut self.held);
            decodable = match self.ready.pop_front() {
                Some(first) => {
                    self.ready.push_back(piece);
                    Some(first)
                }
                None => Some(piece),
            };
        }
        if !unverified.is_empty() {
            self.held.push_back(unverified);
        }
        Ok(decodable)
    }
}

/// Called while a call has no bytes to read. Ready when the rest of a message is late; a call may pause between
/// messages for any time.
pub(crate) fn poll_late(arrival: &mut Arrival, is_within: bool, context: &mut Context<'_>) -> Poll<()> {
    if is_within {
        return arrival.poll_over(context);
    }
    arrival.end();
    Poll::Pending
}

/// The status of a call whose message came too slowly.
pub(crate) fn late() -> Status {
    Status::deadline_exceeded("timed out waiting for the rest of a message")
}

/// The length announced in a message's head.
///
/// # Errors
/// `ResourceExhausted` for a message above the limit or larger than the whole budget.
pub(crate) fn announced_length(head: [u8; HEAD], budget: &BodyBudget) -> Result<usize, Status> {
    let [_, length @ ..] = head;
    // Saturates only for lengths that exceed the address space.
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_SIZE {
        return Err(Status::resource_exhausted(format!(
            "message of {length} bytes exceeds the limit of {MAX_MESSAGE_SIZE} bytes"
        )));
    }
    if !budget.could_hold(length as u64) {
        return Err(Status::resource_exhausted(budget.too_long("message", length as u64)));
    }
    Ok(length)
}

impl<B> Body for Messages<B>
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
        if let Some(piece) = this.ready.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        loop {
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    let is_within = this.missing > 0 || this.head_length > 0;
                    ready!(poll_late(&mut this.arrival, is_within, context));
                    return Poll::Ready(Some(Err(late().into())));
                }
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if this.held.is_empty() => return Poll::Ready(None),
                None => {
                    this.held.clear();
                    let missing = this.missing;
                    let error = Status::internal(format!("the last message ends {missing} bytes too early"));
                    return Poll::Ready(Some(Err(error.into())));
                }
            };
            match frame.into_data() {
                Ok(piece) => {
                    this.arrival.arrived(piece.len());
                    match this.take(piece) {
                        Ok(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                        Ok(None) => {}
                        Err(status) => return Poll::Ready(Some(Err(status.into()))),
                    }
                }
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.held.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests;

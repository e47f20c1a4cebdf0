//! The messages of a call of inference.

use std::borrow::Borrow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use http::HeaderMap;
use http_body::Body;
use nereid_budgets::BodyBudget;
use nereid_net::slow_clients::Arrival;
use nereid_tasks::long_work;
use tonic::codegen::{BoxFuture, StdError};
use tonic::{Code, Status};

use super::{InferMessage, Pieces, Splitter};
use crate::infer::joined_contents;
use crate::messages::{late, poll_late};
use crate::status;

/// The messages of a call.
pub(crate) struct Incoming<B, L = BodyBudget> {
    body: B,
    /// Memory limit of the messages.
    budget: L,
    splitter: Splitter,
    trailers: Option<HeaderMap>,
    ended: bool,
    /// Deadline for the rest of a partially received message.
    arrival: Arrival,
    /// The message received last, while it is decoded on another thread.
    decoding: Option<BoxFuture<InferMessage, Status>>,
}

impl<B, L> Incoming<B, L>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
    L: Borrow<BodyBudget>,
{
    pub(crate) fn new(body: B, budget: L) -> Self {
        Self {
            body,
            budget,
            splitter: Splitter::default(),
            trailers: None,
            ended: false,
            arrival: Arrival::default(),
            decoding: None,
        }
    }

    /// The trailers of the call, once its messages have ended.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    fn poll_pieces(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Pieces, Status>>> {
        loop {
            if let Some((flag, pieces)) = self.splitter.read(self.budget.borrow())? {
                return Poll::Ready(Some(check_flag(flag).map(|()| pieces)));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(poll_late(&mut self.arrival, self.splitter.is_within(), context));
                    return Poll::Ready(Some(Err(late())));
                }
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let status = Status::from_error(error.into());
                    // The client takes its call back.
                    return Poll::Ready((status.code() != Code::Cancelled).then_some(Err(status)));
                }
                None => return Poll::Ready(self.splitter.cut_off().map(Err)),
            };
            match frame.into_data() {
                Ok(data) => {
                    self.arrival.arrived(data.len());
                    self.splitter.arrived(data);
                }
                Err(frame) => self.trailers = frame.into_trailers().ok().or(self.trailers.take()),
            }
        }
    }
}

fn check_flag(flag: u8) -> Result<(), Status> {
    match flag {
        0 => Ok(()),
        1 => Err(Status::internal("a message is compressed, but the call has no grpc-encoding")),
        other => {
            Err(Status::internal(format!("a message has the compression flag {other}; it must be 0 or 1")))
        }
    }
}

impl<B, L> Stream for Incoming<B, L>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
    L: Borrow<BodyBudget> + Unpin,
{
    type Item = Result<InferMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.decoding.is_none() {
            let pieces = ready!(self.poll_pieces(context));
            match pieces {
                Some(Ok(pieces)) if is_long(&pieces) => {
                    self.decoding = Some(Box::pin(decoded_elsewhere(pieces, self.budget.borrow().clone())));
                }
                other => {
                    let message =
                        other.map(|pieces| pieces.and_then(|pieces| pieces.decode(self.budget.borrow())));
                    self.ended = !matches!(message, Some(Ok(_)));
                    return Poll::Ready(message);
                }
            }
        }
        let Some(decoding) = &mut self.decoding else { return Poll::Ready(None) };
        let message = ready!(decoding.as_mut().poll(context));
        self.decoding = None;
        self.ended = message.is_err();
        Poll::Ready(Some(message))
    }
}

/// Whether decoding a message takes long.
fn is_long(pieces: &Pieces) -> bool {
    long_work::is_long(pieces.remaining()) && long_work::is_long(pieces.decoded_size())
}

/// Decodes a message and joins its typed contents on another thread.
async fn decoded_elsewhere(pieces: Pieces, budget: BodyBudget) -> Result<InferMessage, Status> {
    let work = long_work::run(move || {
        let mut message = pieces.decode(&budget)?;
        message.joined = joined_contents(&mut message.message.inputs);
        Ok(message)
    });
    work.await.map_err(|error| status::of(&error))?
}

//! Splits the body of a call into its messages (gRPC over HTTP/2: a flag, a length of four bytes, the message).
//!
//! No memory is reserved for a length that is announced: a message takes what arrived of it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use http::HeaderMap;
use http_body::Body;
use tonic::codegen::StdError;
use tonic::{Code, Status};

use super::{InferMessage, Pieces};
use crate::messages::{HEAD, announced_length};

/// The messages of a call.
pub(crate) struct Incoming<B> {
    body: B,
    /// The unread rest of the frame that arrived last.
    frame: Bytes,
    head: [u8; HEAD],
    head_length: usize,
    /// The message that is arriving, and how many bytes of it are missing.
    message: Option<(Pieces, usize)>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl<B> Incoming<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    pub(crate) fn new(body: B) -> Self {
        let frame = Bytes::new();
        Self { body, frame, head: [0; HEAD], head_length: 0, message: None, trailers: None, ended: false }
    }

    /// The trailers of the call, once its messages have ended.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    /// Reads on in the frame that arrived; a message, if that completes one.
    fn read(&mut self) -> Result<Option<Pieces>, Status> {
        loop {
            if let Some((pieces, missing)) = &mut self.message {
                let arrived = self.frame.split_to(self.frame.len().min(*missing));
                *missing -= arrived.len();
                if !arrived.is_empty() {
                    pieces.push(arrived);
                }
                if *missing > 0 {
                    return Ok(None);
                }
                return Ok(self.message.take().map(|(pieces, _)| pieces));
            }
            let length = self.frame.len().min(HEAD - self.head_length);
            self.frame.copy_to_slice(&mut self.head[self.head_length..][..length]);
            self.head_length += length;
            if self.head_length < HEAD {
                return Ok(None);
            }
            self.head_length = 0;
            check_flag(self.head[0])?;
            self.message = Some((Pieces::default(), announced_length(self.head)?));
        }
    }

    fn poll_pieces(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Pieces, Status>>> {
        loop {
            if let Some(outcome) = self.read().transpose() {
                return Poll::Ready(Some(outcome));
            }
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let status = Status::from_error(error.into());
                    // The client takes its call back.
                    return Poll::Ready((status.code() != Code::Cancelled).then_some(Err(status)));
                }
                None => return Poll::Ready(self.cut_off().map(Err)),
            };
            match frame.into_data() {
                Ok(data) => self.frame = data,
                Err(frame) => self.trailers = frame.into_trailers().ok().or(self.trailers.take()),
            }
        }
    }

    /// The error of a body that ends within a message.
    fn cut_off(&self) -> Option<Status> {
        let missing = match &self.message {
            Some((_, missing)) => *missing,
            None if self.head_length > 0 => HEAD - self.head_length,
            None => return None,
        };
        Some(Status::internal(format!("the last message ends {missing} bytes too early")))
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

impl<B> Stream for Incoming<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Item = Result<InferMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let message = ready!(self.poll_pieces(context)).map(|pieces| pieces.and_then(Pieces::decode));
        self.ended = !matches!(message, Some(Ok(_)));
        Poll::Ready(message)
    }
}

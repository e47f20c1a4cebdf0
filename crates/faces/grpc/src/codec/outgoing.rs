//! The body of a call's answer: its messages as they come, compressed if the client accepts that, then the trailers with
//! the status.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;

use super::compressor::Compressor;
use super::reply::{Encode, Frames};
use crate::messages::ENCODING;

/// Available messages are sent together until they fill this.
const ENOUGH: usize = 32 << 10;

/// The trailer with a call's status.
static STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The status of a call that succeeded.
const SUCCESS: HeaderValue = HeaderValue::from_static("0");

/// The body of an answer.
pub(crate) struct Outgoing<S> {
    messages: S,
    frames: Frames,
    compressor: Option<Compressor>,
    /// The message received last, while it is compressed on another thread.
    compressing: Option<BoxFuture<Bytes, Status>>,
    /// The call's final status, set after the last message.
    status: Option<Result<(), Status>>,
    ended: bool,
}

impl<S, M> Outgoing<S>
where
    S: Stream<Item = Result<M, Status>> + Send + Unpin + 'static,
    M: Encode + 'static,
{
    /// The response to a call that has these messages.
    pub(crate) fn response(messages: S, compressor: Option<Compressor>) -> Response<Body> {
        let encoding = compressor.as_ref().map(Compressor::encoding);
        let frames = Frames::default();
        let body = Self { messages, frames, compressor, compressing: None, status: None, ended: false };
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(encoding) = encoding {
            headers.insert(ENCODING.clone(), HeaderValue::from_static(encoding));
        }
        response
    }

    /// Encodes a message, or begins to compress it.
    fn encode(&mut self, message: &M) -> Result<(), Status> {
        let Some(compressor) = &self.compressor else { return self.frames.encode(message) };
        let pieces = Frames::pieces(message)?;
        if Compressor::is_short(pieces.iter().map(Bytes::len).sum()) {
            self.frames.append(&compressor.compress(&pieces)?);
        } else {
            self.compressing = Some(compressor.compress_elsewhere(pieces));
        }
        Ok(())
    }

    /// Polls the message that is being compressed, if there is one.
    fn poll_compressed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(task) = &mut self.compressing {
            match ready!(task.as_mut().poll(context)) {
                Ok(message) => self.frames.append(&message),
                Err(status) => self.status = Some(Err(status)),
            }
            self.compressing = None;
        }
        Poll::Ready(())
    }

    /// Polls the next piece of the messages; `None` after the last one, when `status` is set.
    fn poll_messages(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(frame) = self.frames.next_complete() {
                return Poll::Ready(Some(frame));
            }
            if self.poll_compressed(context).is_pending() {
                return self.frames.next().map_or(Poll::Pending, |frame| Poll::Ready(Some(frame)));
            }
            if self.status.is_some() || self.frames.buffered() >= ENOUGH {
                return Poll::Ready(self.frames.next());
            }
            match self.messages.poll_next_unpin(context) {
                Poll::Ready(Some(message)) => {
                    let encoded = message.and_then(|message| self.encode(&message));
                    self.status = encoded.err().map(Err);
                }
                Poll::Ready(None) => self.status = Some(Ok(())),
                Poll::Pending => match self.frames.next() {
                    Some(frame) => return Poll::Ready(Some(frame)),
                    None => return Poll::Pending,
                },
            }
        }
    }
}

impl<S, M> HttpBody for Outgoing<S>
where
    S: Stream<Item = Result<M, Status>> + Send + Unpin + 'static,
    M: Encode + 'static,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.poll_messages(context).map(|frame| {
            if let Some(frame) = frame {
                return Some(Ok(Frame::data(frame)));
            }
            self.ended = true;
            let mut trailers = HeaderMap::new();
            let added = match self.status.take() {
                Some(Err(status)) => status.add_header(&mut trailers),
                _ => {
                    trailers.insert(STATUS.clone(), SUCCESS);
                    Ok(())
                }
            };
            Some(added.map(|()| Frame::trailers(trailers)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

//! Entry points of the service's parsers without a connection, for the fuzz targets and the test that replays their
//! corpus. Not meant for any other use.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Ready;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use nereid_budgets::BodyBudget;
use nereid_core::backend_api::{Error, InferRequest, Result};
use nereid_http2::{Connection, Incoming, Service};
use nereid_shared_memory::Regions;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Builder;
use tonic::Code;

use crate::codec::Pieces;
use crate::infer;
use crate::messages::Messages;
use crate::proto::ModelInferRequest;
use crate::transport::{TransportOptions, limits};

/// Decodes a ModelInfer message that arrives in these pieces.
///
/// # Errors
/// The message is not a valid request.
pub fn infer(pieces: &[&[u8]]) -> Result<InferRequest> {
    let mut arrived = Pieces::default();
    pieces.iter().for_each(|piece| arrived.push(Bytes::copy_from_slice(piece)));
    let message = arrived
        .decode(&BodyBudget::UNLIMITED)
        .map_err(|status| Error::invalid_arg(status.message().to_owned()))?;
    infer::decoded(message, &Regions::default())
}

/// Decodes a ModelInfer message with prost, to compare with [`infer`].
///
/// # Errors
/// The message is not a valid request.
pub fn infer_by_prost(message: &[u8]) -> Result<InferRequest> {
    let message = ModelInferRequest::decode(Bytes::copy_from_slice(message))
        .map_err(|error| Error::invalid_arg(error.to_string()))?;
    infer::decoded(message.into(), &Regions::default())
}

/// The bytes passed on to the decoder from a body that arrives in these pieces and then ends.
///
/// # Errors
/// The code of the status that ends the call.
pub fn messages(pieces: &[&[u8]]) -> std::result::Result<Vec<u8>, Code> {
    let mut body = pin!(Messages::new(PiecewiseBody::of(pieces), BodyBudget::UNLIMITED));
    let mut context = Context::from_waker(Waker::noop());
    let mut decodable = Vec::new();
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
        match frame {
            Ok(frame) => decodable.extend(frame.into_data().unwrap_or_default()),
            Err(error) => return Err(tonic::Status::from_error(error).code()),
        }
    }
    Ok(decodable)
}

/// The bytes written to a connection on which these pieces arrive. Each call is answered with its own body.
pub fn connection(pieces: &[&[u8]]) -> Vec<u8> {
    let arriving = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| piece.to_vec()).collect();
    let mut written = Vec::new();
    let wire = Wire { arriving, written: &mut written };
    let options = limits(&TransportOptions { keepalive_time: None, ..TransportOptions::default() });
    let connection = Connection::new(wire, Echo, options, None, Arc::default());
    // Replies that the client does not take have timers.
    if let Ok(runtime) = Builder::new_current_thread().enable_time().build() {
        let _ = runtime.block_on(connection);
    }
    written
}

/// Answers with the body of the request.
struct Echo;

impl Service for Echo {
    type Body = Incoming;
    type Future = Ready<Response<Incoming>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        std::future::ready(Response::new(request.into_body()))
    }
}

/// The server's side of a connection.
struct Wire<'w> {
    arriving: VecDeque<Vec<u8>>,
    written: &'w mut Vec<u8>,
}

impl AsyncRead for Wire<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.arriving.pop_front() {
            let rest = piece.split_off(piece.len().min(buffer.remaining()));
            buffer.put_slice(&piece);
            if !rest.is_empty() {
                self.arriving.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes in the pieces in which they arrived.
struct PiecewiseBody(VecDeque<Bytes>);

impl PiecewiseBody {
    fn of(pieces: &[&[u8]]) -> Self {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        Self(pieces.map(|piece| Bytes::copy_from_slice(piece)).collect())
    }
}

impl Body for PiecewiseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

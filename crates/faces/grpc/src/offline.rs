//! Entry points of the service's parsers without a connection, for the fuzz targets and the test that replays their
//! corpus. Not meant for any other use.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use nereid_budgets::BodyBudget;
use nereid_core::backend_api::{Error, InferRequest, Result};
use nereid_net::http2::Scanner;
use nereid_shared_memory::Regions;
use prost::Message as _;
use tonic::Code;

use crate::codec::Pieces;
use crate::infer;
use crate::messages::Messages;
use crate::proto::ModelInferRequest;

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

/// The HTTP/2 frames that a client sent in these pieces: the number of the stream of each, and whether it ends it.
pub fn frames(pieces: &[&[u8]]) -> Vec<(u32, bool)> {
    let mut scanner = Scanner::of_client();
    let mut found = Vec::new();
    for piece in pieces {
        scanner.read(piece, |frame| found.push((frame.stream, frame.ends_stream())));
    }
    found
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

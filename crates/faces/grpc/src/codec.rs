//! The messages of inference, without a copy: the calls ModelInfer and ModelStreamInfer.
//!
//! tonic's codec joins the received pieces of a message in one buffer and encodes an answer into another. Here, raw
//! input contents are slices of the received frames ([`Incoming`], [`Pieces`]), and raw output contents are sent from
//! the backend's buffers ([`Outgoing`]). prost decodes and encodes all other fields.
//!
//! Compressed requests are decompressed first ([`Inflated`](crate::messages::Inflated)). Compressed answers have to be
//! joined and copied anyway, so tonic encodes them: [`applies`] decides.

mod incoming;
mod outgoing;
mod pieces;
mod reply;
mod splitter;

use std::ops::Deref;

use bytes::Bytes;
use http::HeaderMap;
use nereid_core::backend_api::{Buffer, Buffers, Error};
use nereid_core::{BodyBudget, BodyShare};
use prost::Message as _;
use tonic::Status;

pub(crate) use self::incoming::Incoming;
pub(crate) use self::outgoing::Outgoing;
pub(crate) use self::pieces::Pieces;
pub(crate) use self::reply::{Reply, StreamReply};
pub(crate) use self::splitter::Splitter;
use crate::proto::ModelInferRequest;
use crate::{Compression, status};

/// A request's message.
#[derive(Default)]
pub(crate) struct InferMessage {
    /// All fields but the raw contents.
    pub message: ModelInferRequest,
    /// The raw contents of inputs, in order.
    pub raw: Vec<Buffers>,
    /// The typed contents of inputs, in order, if they were joined when the message was decoded.
    pub joined: Vec<Option<Result<Bytes, Error>>>,
    /// The message's share of the server's budget.
    pub share: BodyShare,
}

impl InferMessage {
    /// A message decoded by tonic, charged to the budget.
    ///
    /// # Errors
    /// The budget has no room for it.
    pub(crate) fn counted(message: ModelInferRequest, budget: &BodyBudget) -> Result<Self, Status> {
        let mut share = BodyShare::default();
        share.cover(budget, message.encoded_len()).map_err(|error| status::of(&error))?;
        Ok(Self { share, ..Self::from(message) })
    }
}

impl From<ModelInferRequest> for InferMessage {
    fn from(mut message: ModelInferRequest) -> Self {
        let raw = std::mem::take(&mut message.raw_input_contents);
        let raw = raw.into_iter().map(|bytes| Buffers::from_buf([Buffer::host(bytes)])).collect();
        Self { message, raw, ..Self::default() }
    }
}

impl Deref for InferMessage {
    type Target = ModelInferRequest;

    fn deref(&self) -> &ModelInferRequest {
        &self.message
    }
}

/// Whether this codec can serve a call with these headers: neither side compresses.
pub(crate) fn applies(headers: &HeaderMap, compression: Compression) -> bool {
    let compresses = compression != Compression::None && headers.contains_key("grpc-accept-encoding");
    !compresses && headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity")
}

#[cfg(test)]
mod tests;

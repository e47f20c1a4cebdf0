//! The messages of inference, without a copy: the calls ModelInfer and ModelStreamInfer.
//!
//! tonic's codec joins the received pieces of a message in one buffer and encodes an answer into another. Here, raw
//! input contents are slices of the received frames ([`Incoming`], [`Pieces`]), and raw output contents are sent from
//! the backend's buffers ([`Outgoing`]). prost decodes all other fields; [`ResponseFields`] encodes the fields of answers.
//!
//! Compressed requests are decompressed first ([`InflatedBody`](crate::messages::InflatedBody)); answers are compressed by
//! a [`Compressor`].

mod compressor;
mod fields;
mod incoming;
mod outgoing;
mod pieces;
mod reply;
mod splitter;

use std::ops::Deref;

use bytes::Bytes;
use http::HeaderMap;
use nereid_budgets::BodyShare;
use nereid_core::Admission;
use nereid_core::backend_api::{Buffer, Buffers, Error};

pub(crate) use self::compressor::Compressor;
pub(crate) use self::fields::ResponseFields;
pub(crate) use self::incoming::Incoming;
pub(crate) use self::outgoing::Outgoing;
pub(crate) use self::pieces::Pieces;
pub(crate) use self::reply::{Reply, StreamReply};
pub(crate) use self::splitter::Splitter;
use crate::messages::ENCODING;
use crate::proto::ModelInferRequest;

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
    /// The request's admission by the limits of its sender.
    pub admission: Option<Admission>,
}

impl InferMessage {
    /// The bytes of the contents.
    pub fn byte_size(&self) -> usize {
        let raw: usize = self.raw.iter().flatten().map(Buffer::len).sum();
        raw + prost::Message::encoded_len(&self.message)
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

/// Whether this codec can read the messages of a call with these headers: they are not compressed, or no longer.
pub(crate) fn applies(headers: &HeaderMap) -> bool {
    headers.get(&ENCODING).is_none_or(|encoding| encoding == "identity")
}

#[cfg(test)]
mod tests;

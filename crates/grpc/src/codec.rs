//! The messages of inference, without a copy: the calls ModelInfer and ModelStreamInfer.
//!
//! tonic's codec joins what arrives of a message in one buffer and encodes an answer into another. Here, raw contents of
//! inputs are slices of the frames that arrived ([`Incoming`], [`Pieces`]), and those of outputs leave from where the
//! backend put them ([`Outgoing`]). All other fields are prost's to decode and encode.
//!
//! Compressed calls are joined and copied anyway and go through tonic: [`applies`] decides.

mod incoming;
mod outgoing;
mod pieces;
mod reply;

use std::ops::Deref;

use http::HeaderMap;
use nereid_core::backend_api::{Buffer, Buffers};

pub(crate) use self::incoming::Incoming;
pub(crate) use self::outgoing::Outgoing;
pub(crate) use self::pieces::Pieces;
pub(crate) use self::reply::{Reply, StreamReply};
use crate::Compression;
use crate::proto::ModelInferRequest;

/// A request's message.
pub(crate) struct InferMessage {
    /// All of it but the raw contents.
    pub message: ModelInferRequest,
    /// The raw contents of inputs, in order.
    pub raw: Vec<Buffers>,
}

impl From<ModelInferRequest> for InferMessage {
    fn from(mut message: ModelInferRequest) -> Self {
        let raw = std::mem::take(&mut message.raw_input_contents);
        Self { message, raw: raw.into_iter().map(|bytes| Buffers::from_buf([Buffer::host(bytes)])).collect() }
    }
}

impl Deref for InferMessage {
    type Target = ModelInferRequest;

    fn deref(&self) -> &ModelInferRequest {
        &self.message
    }
}

/// Whether this codec can answer a call with these headers: neither side compresses.
pub(crate) fn applies(headers: &HeaderMap, compression: Compression) -> bool {
    let compresses = compression != Compression::None && headers.contains_key("grpc-accept-encoding");
    !compresses && headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity")
}

#[cfg(test)]
mod tests;

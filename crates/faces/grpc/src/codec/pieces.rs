//! The bytes of one message in the pieces in which they arrived, and how its raw contents are cut from them.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use nereid_budgets::{BodyBudget, BodyShare};
use nereid_core::backend_api::{Buffer, Buffers};
use prost::DecodeError;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};
use tonic::Status;

use super::InferMessage;
use crate::status;

/// The tag of `raw_input_contents` in `ModelInferRequest`.
const RAW_INPUT_CONTENTS: u32 = 7;

/// A message with up to this many tensors is not charged for them.
const UNCOUNTED_TENSORS: usize = 64;

/// Upper bound of a decoded tensor's size in memory, without its contents.
const TENSOR: usize = 320;

/// Pieces below this size are joined: a client that sends single bytes must not cost a reference for each.
const SMALL: usize = 1024;

/// The bytes of a message.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Non-empty while bytes remain.
    first: Bytes,
    rest: VecDeque<Bytes>,
    /// Small pieces behind `rest` that are being joined.
    small: BytesMut,
    remaining: usize,
    /// The pieces' share of the server's budget.
    pub(crate) share: BodyShare,
}

impl Pieces {
    /// Appends what arrived.
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.remaining += piece.len();
        if self.first.is_empty() {
            self.first = piece;
        } else if piece.len() < SMALL {
            self.small.extend_from_slice(&piece);
        } else {
            self.end_small();
            self.rest.push_back(piece);
        }
    }

    /// Makes everything that was pushed readable.
    pub(crate) fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.rest.push_back(self.small.split().freeze());
        }
    }

    /// Decodes the message. A decoded tensor takes far more memory than the two bytes of an empty one on the wire, so
    /// tensors are charged to the budget.
    ///
    /// # Errors
    /// The bytes are not a `ModelInferRequest`, or its tensors exceed the budget.
    pub(crate) fn decode(mut self, budget: &BodyBudget) -> Result<InferMessage, Status> {
        self.end_small();
        let length = self.remaining;
        let mut uncounted = UNCOUNTED_TENSORS;
        let malformed = |error: DecodeError| Status::internal(error.to_string());
        let share = std::mem::take(&mut self.share);
        let mut decoded = InferMessage { share, ..InferMessage::default() };
        while self.has_remaining() {
            let tensors = decoded.message.inputs.len() + decoded.message.outputs.len() + decoded.raw.len();
            if tensors >= uncounted {
                // Room for those that fit until the next look.
                uncounted = tensors.saturating_mul(2);
                let needed = length.saturating_add(uncounted.saturating_mul(TENSOR));
                decoded.share.cover(budget, needed).map_err(|error| status::of(&error))?;
            }
            let (tag, wire_type) = decode_key(&mut self).map_err(malformed)?;
            if tag == RAW_INPUT_CONTENTS {
                check_wire_type(WireType::LengthDelimited, wire_type).map_err(malformed)?;
                let length = decode_varint(&mut self).map_err(malformed)?;
                let contents = usize::try_from(length).ok().and_then(|length| self.slice_off(length));
                if decoded.raw.is_empty() {
                    // The inputs stand before their contents, as a rule.
                    decoded.raw.reserve_exact(decoded.message.inputs.len());
                }
                decoded.raw.push(contents.ok_or_else(|| {
                    Status::internal(format!("raw_input_contents of {length} bytes exceed their message"))
                })?);
            } else {
                let merged = decoded.message.merge_field(tag, wire_type, &mut self, DecodeContext::default());
                merged.map_err(malformed)?;
            }
        }
        Ok(decoded)
    }

    /// Bytes of the message that are decoded rather than sliced off: all but raw contents, as far as they are well-formed.
    pub(crate) fn decoded_size(&self) -> usize {
        let (first, rest) = (self.first.clone(), self.rest.clone());
        let mut left = Self { first, rest, remaining: self.remaining, ..Self::default() };
        let mut size = 0;
        while let Ok((tag, wire_type)) = decode_key(&mut left) {
            if wire_type == WireType::LengthDelimited {
                let Ok(length) = decode_varint(&mut left) else { break };
                let length = usize::try_from(length).unwrap_or(usize::MAX).min(left.remaining);
                left.advance(length);
                size += if tag == RAW_INPUT_CONTENTS { 0 } else { length };
            } else if skip_field(wire_type, tag, &mut left, DecodeContext::default()).is_err() {
                break;
            }
        }
        size
    }

    /// Slices off the next `count` bytes without copying; `None` if fewer are left.
    fn slice_off(&mut self, mut count: usize) -> Option<Buffers> {
        if count > self.remaining {
            return None;
        }
        let mut taken = Buffers::new();
        loop {
            let length = count.min(self.first.len());
            taken.push(Buffer::host(self.first.slice(..length)));
            self.advance(length);
            count -= length;
            if count == 0 {
                return Some(taken);
            }
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "advanced beyond the end of a message");
        self.remaining -= count;
        loop {
            let step = count.min(self.first.len());
            self.first.advance(step);
            count -= step;
            if !self.first.is_empty() {
                return;
            }
            match self.rest.pop_front() {
                Some(next) => self.first = next,
                None => return,
            }
        }
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        assert!(length <= self.remaining, "read beyond the end of a message");
        if length <= self.first.len() {
            let bytes = self.first.slice(..length);
            self.advance(length);
            return bytes;
        }
        let mut joined = vec![0; length];
        self.copy_to_slice(&mut joined);
        joined.into()
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::backend_api::Buffers;
    use tonic::Code;

    use super::*;
    use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use crate::proto::{InferTensorContents, ModelInferRequest};

    fn pieces(message: &ModelInferRequest) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.push(message.encode_to_vec().into());
        pieces
    }

    #[test]
    fn tensors_are_charged_at_their_memory_size() {
        for (inputs, outputs, raw) in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)] {
            for (count, fits) in
                [(10, true), (UNCOUNTED_TENSORS, true), (500, true), (20_000, false), (1 << 20, false)]
            {
                let message = ModelInferRequest {
                    inputs: vec![InferInputTensor::default(); inputs * count],
                    outputs: vec![InferRequestedOutputTensor::default(); outputs * count],
                    raw_input_contents: vec![Bytes::new(); raw * count],
                    ..ModelInferRequest::default()
                };
                let outcome = pieces(&message).decode(&BodyBudget::new(4 << 20));
                let refusal = outcome.as_ref().err().map(Status::code);
                assert_eq!(
                    refusal,
                    (!fits).then_some(Code::Unavailable),
                    "{count} of {inputs}, {outputs}, {raw}"
                );
                assert!(pieces(&message).decode(&BodyBudget::UNLIMITED).is_ok());
            }
        }
    }

    #[test]
    fn decoded_size_excludes_raw_contents_and_survives_malformed_messages() {
        for (typed, raw) in [(0, 0), (0, 100_000), (100_000, 0), (70_000, 200_000)] {
            let contents = InferTensorContents { fp32_contents: vec![0.5; typed], ..Default::default() };
            let message = ModelInferRequest {
                inputs: vec![InferInputTensor { contents: Some(contents), ..Default::default() }],
                raw_input_contents: vec![vec![7; raw].into(); 3],
                ..ModelInferRequest::default()
            };
            let encoded = message.encode_to_vec();
            for split in [1, 1000, encoded.len()] {
                let mut pieces = Pieces::default();
                encoded.chunks(split).for_each(|piece| pieces.push(Bytes::copy_from_slice(piece)));
                pieces.end_small();
                let size = pieces.decoded_size();
                assert!((typed * 4..typed * 4 + 64).contains(&size), "{typed}, {raw}: {size}");
            }
            for length in 0..encoded.len().min(40) {
                let mut pieces = Pieces::default();
                pieces.push(Bytes::copy_from_slice(&encoded[..length]));
                assert!(pieces.decoded_size() <= length);
            }
        }
    }

    #[test]
    fn tensor_memory_stays_within_its_charge() {
        let sizes =
            [size_of::<InferInputTensor>(), size_of::<InferRequestedOutputTensor>(), size_of::<Buffers>()];
        assert!(sizes.iter().all(|size| *size <= TENSOR), "{sizes:?}");
    }
}

//! Answers and their encoding: one buffer of fields and small contents, and large contents without copies.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes};
use nereid_core::backend_api::{Buffer, Buffers};
use prost::encoding::{encoded_len_varint, key_len};
use tonic::Status;

use super::fields::{ResponseFields, put_head};
use crate::messages::{HEAD, MAX_MESSAGE_SIZE};

/// The tag of `raw_output_contents` in `ModelInferResponse`.
const RAW_OUTPUT_CONTENTS: u32 = 6;

/// The tags of `ModelStreamInferResponse`.
const ERROR_MESSAGE: u32 = 1;
const INFER_RESPONSE: u32 = 2;

/// Contents below this size are copied: a separate frame would cost more.
const SMALL: usize = 4096;

/// A message that can be encoded into a call's body.
pub(crate) trait Encode {
    /// Length of the message in bytes.
    fn length(&self) -> usize;

    /// Writes the message.
    fn write(&self, frames: &mut Frames);
}

/// The answer to a unary call.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// All of the message but the raw contents.
    pub fields: ResponseFields,
    /// The raw contents of outputs, in order, all in host memory.
    pub raw: Vec<Buffers>,
}

/// An answer in a stream.
#[derive(Debug)]
pub(crate) struct StreamReply {
    /// Empty for an answer without an error.
    pub error_message: String,
    pub reply: Reply,
}

impl Encode for Reply {
    fn length(&self) -> usize {
        let field = |contents: &Buffers| {
            let length = contents.iter().map(Buffer::len).sum::<usize>();
            key_len(RAW_OUTPUT_CONTENTS) + encoded_len_varint(length as u64) + length
        };
        self.fields.bytes().len() + self.raw.iter().map(field).sum::<usize>()
    }

    fn write(&self, frames: &mut Frames) {
        frames.buffer.extend_from_slice(self.fields.bytes());
        for contents in &self.raw {
            put_head(RAW_OUTPUT_CONTENTS, contents.iter().map(Buffer::len).sum(), &mut frames.buffer);
            contents.iter().filter_map(Buffer::as_host).for_each(|piece| frames.append(piece));
        }
    }
}

impl Encode for StreamReply {
    fn length(&self) -> usize {
        let field = |tag, length: usize| key_len(tag) + encoded_len_varint(length as u64) + length;
        let error = match self.error_message.len() {
            0 => 0,
            length => field(ERROR_MESSAGE, length),
        };
        error + field(INFER_RESPONSE, self.reply.length())
    }

    fn write(&self, frames: &mut Frames) {
        if !self.error_message.is_empty() {
            put_head(ERROR_MESSAGE, self.error_message.len(), &mut frames.buffer);
            frames.buffer.extend_from_slice(self.error_message.as_bytes());
        }
        put_head(INFER_RESPONSE, self.reply.length(), &mut frames.buffer);
        self.reply.write(frames);
    }
}

/// Encoded messages, as the frames of a body.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    complete: VecDeque<Bytes>,
    /// Fields and small contents behind `complete`.
    buffer: Vec<u8>,
}

impl Frames {
    /// Appends a message with its head.
    ///
    /// # Errors
    /// The message is too long.
    pub(crate) fn encode(&mut self, message: &impl Encode) -> Result<(), Status> {
        let length = checked_length(message)?;
        self.buffer.reserve(HEAD + length.min(SMALL));
        self.buffer.put_u8(0);
        self.buffer.put_u32(length as u32);
        message.write(self);
        Ok(())
    }

    /// The pieces of a message, without its head.
    ///
    /// # Errors
    /// The message is too long.
    pub(crate) fn pieces(message: &impl Encode) -> Result<Vec<Bytes>, Status> {
        let mut frames = Self::default();
        frames.buffer.reserve(checked_length(message)?.min(SMALL));
        message.write(&mut frames);
        frames.end_buffer();
        Ok(frames.complete.into())
    }

    /// Appends bytes; large ones are not copied.
    pub(crate) fn append(&mut self, contents: &Bytes) {
        if contents.len() < SMALL {
            self.buffer.extend_from_slice(contents);
        } else {
            self.end_buffer();
            self.complete.push_back(contents.clone());
        }
    }

    fn end_buffer(&mut self) {
        if !self.buffer.is_empty() {
            self.complete.push_back(std::mem::take(&mut self.buffer).into());
        }
    }

    /// The next frame that is complete.
    pub(crate) fn next_complete(&mut self) -> Option<Bytes> {
        self.complete.pop_front()
    }

    /// The next frame, as far as it was written.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        self.end_buffer();
        self.complete.pop_front()
    }

    /// Bytes that were written to the last frame.
    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

/// The length of a message.
///
/// # Errors
/// `OutOfRange` if the message is too long.
fn checked_length(message: &impl Encode) -> Result<usize, Status> {
    let length = message.length();
    if length > MAX_MESSAGE_SIZE {
        return Err(Status::out_of_range(format!(
            "response of {length} bytes exceeds the limit of {MAX_MESSAGE_SIZE} bytes"
        )));
    }
    Ok(length)
}

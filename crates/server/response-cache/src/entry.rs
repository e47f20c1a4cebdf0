//! Entries of the cache.

use std::borrow::Cow;
use std::sync::Arc;

use nereid_core::backend_api::{Buffer, ParameterValue, RequestedOutput, Response, Result, Tensor};

use crate::encoding::{read_response, write_response};

/// Approximate overhead of an allocation, in bytes.
const ALLOCATION: usize = 16;

/// The largest packed answer, in bytes. Up to this size, a copy is cheaper than the allocations it saves.
const PACKED: usize = 1024;

/// A stored answer. Clones share its contents.
#[derive(Clone, Debug)]
pub struct CacheEntry(StoredAnswer);

#[derive(Clone, Debug)]
enum StoredAnswer {
    /// A small answer in one allocation, written by [`write_response`].
    Packed(Arc<[u8]>),
    Whole(Arc<Whole>),
}

#[derive(Debug)]
struct Whole {
    response: Response,
    byte_size: usize,
}

impl CacheEntry {
    /// An entry with this response. Small responses are copied as a whole. Larger ones keep outputs that own their host memory,
    /// and copy outputs in regions of clients, on devices, or within a larger buffer, which they would pin.
    ///
    /// # Errors
    /// A device's driver failed.
    pub fn of(response: &Response) -> Result<Self> {
        if let Some(packed) = packed(response) {
            return Ok(Self(StoredAnswer::Packed(packed)));
        }
        let mut kept = response.clone();
        for buffer in kept.outputs.iter_mut().flat_map(|output| &mut output.buffers) {
            *buffer = buffer.to_retained()?;
        }
        kept.outputs.shrink_to_fit();
        Ok(Self::of_parts(kept))
    }

    /// An entry with a response whose outputs may be retained without a copy.
    pub(crate) fn of_parts(response: Response) -> Self {
        Self(StoredAnswer::Whole(Arc::new(Whole { byte_size: size_of_response(&response), response })))
    }

    /// The answer.
    pub fn response(&self) -> Cow<'_, Response> {
        match &self.0 {
            StoredAnswer::Packed(packed) => Cow::Owned(unpacked(packed)),
            StoredAnswer::Whole(whole) => Cow::Borrowed(&whole.response),
        }
    }

    /// Memory in use, in bytes: contents and metadata.
    pub fn byte_size(&self) -> usize {
        match &self.0 {
            StoredAnswer::Packed(packed) => packed.len() + 2 * ALLOCATION,
            StoredAnswer::Whole(whole) => whole.byte_size,
        }
    }

    /// The answer with these outputs, or with all if the list is empty.
    pub(crate) fn answer(&self, outputs: &[RequestedOutput]) -> Response {
        let is_wanted =
            |output: &Tensor| outputs.is_empty() || outputs.iter().any(|wanted| wanted.name == output.name);
        match &self.0 {
            StoredAnswer::Packed(packed) => {
                let mut response = unpacked(packed);
                response.outputs.retain(is_wanted);
                response
            }
            StoredAnswer::Whole(whole) => {
                let outputs = whole.response.outputs.iter().filter(|output| is_wanted(output));
                Response {
                    outputs: outputs.cloned().collect(),
                    parameters: whole.response.parameters.clone(),
                }
            }
        }
    }
}

/// Whether the contents of a response are small enough to be packed.
pub(crate) fn is_small(response: &Response) -> bool {
    contents_of(response) <= PACKED
}

fn contents_of(response: &Response) -> usize {
    response.outputs.iter().map(Tensor::byte_size).sum()
}

/// Packs a response, if it is small and in host memory.
fn packed(response: &Response) -> Option<Arc<[u8]>> {
    if response.outputs.iter().any(Tensor::is_on_device) {
        return None;
    }
    match contents_of(response) {
        // Clearing a larger buffer would take longer than the copy.
        0..=128 => packed_within::<192>(response).or_else(|| packed_within::<PACKED>(response)),
        129..=PACKED => packed_within::<PACKED>(response),
        _ => None,
    }
}

fn packed_within<const SPACE: usize>(response: &Response) -> Option<Arc<[u8]>> {
    let mut space = [0; SPACE];
    let mut rest = &mut space[..];
    write_response(&mut rest, response).ok()?;
    let length = SPACE - rest.len();
    Some(Arc::from(&space[..length]))
}

#[expect(clippy::expect_used, reason = "written in this process, by the same code")]
fn unpacked(packed: &[u8]) -> Response {
    read_response(packed).expect("it was written in this process")
}

/// Memory used by a response. Buffers count in full.
pub(crate) fn size_of_response(response: &Response) -> usize {
    let tensor = |tensor: &Tensor| {
        let buffers: usize = tensor.buffers.iter().map(|it| it.len() + size_of::<Buffer>()).sum();
        size_of::<Tensor>() + tensor.name.len() + tensor.shape.len() * 8 + buffers + 3 * ALLOCATION
    };
    let parameter = |(name, value): (&str, &ParameterValue)| {
        let text = if let ParameterValue::String(text) = value { text.len() } else { 0 };
        name.len() + text + size_of::<(String, ParameterValue)>() + 2 * ALLOCATION
    };
    let outputs: usize = response.outputs.iter().map(tensor).sum();
    let parameters: usize = response.parameters.iter().map(parameter).sum();
    size_of::<Response>() + 2 * ALLOCATION + outputs + parameters
}

//! An answer in the cache.

use std::borrow::Cow;
use std::sync::Arc;

use nereid_backend_api::{Buffer, ParameterValue, RequestedOutput, Response, Result, Tensor};

use super::encoding::{read_response, write_response};

/// What an allocation takes beside its contents, about.
const ALLOCATION: usize = 16;

/// The largest answer that is packed, in bytes. A copy of so few costs less than the allocations that it spares.
const PACKED: usize = 1024;

/// An answer that may be given again. Cloning it copies no contents.
#[derive(Clone, Debug)]
pub struct CacheEntry(StoredAnswer);

#[derive(Clone, Debug)]
enum StoredAnswer {
    /// A small answer in one allocation, as [`write_response`] writes it.
    Packed(Arc<[u8]>),
    Whole(Arc<Whole>),
}

#[derive(Debug)]
struct Whole {
    response: Response,
    byte_size: usize,
}

impl CacheEntry {
    /// An entry of a response. A small one is copied as a whole. Of a larger one, outputs in memory of the server's own are kept
    /// as they are, and those elsewhere are copied: in regions of clients, on devices, or within something larger that they
    /// would keep in memory.
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

    /// An entry of a response whose outputs may be kept as they are.
    pub(super) fn of_parts(response: Response) -> Self {
        Self(StoredAnswer::Whole(Arc::new(Whole { byte_size: size_of_response(&response), response })))
    }

    /// The answer.
    pub fn response(&self) -> Cow<'_, Response> {
        match &self.0 {
            StoredAnswer::Packed(packed) => Cow::Owned(unpacked(packed)),
            StoredAnswer::Whole(whole) => Cow::Borrowed(&whole.response),
        }
    }

    /// How much memory it takes, in bytes: its contents and all that describes them.
    pub fn byte_size(&self) -> usize {
        match &self.0 {
            StoredAnswer::Packed(packed) => packed.len() + 2 * ALLOCATION,
            StoredAnswer::Whole(whole) => whole.byte_size,
        }
    }

    /// The answer for a client that asks for these outputs; for none, all.
    pub(super) fn answer(&self, outputs: &[RequestedOutput]) -> Response {
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

/// Whether a response is small enough to be packed, as far as its contents tell.
pub(super) fn is_small(response: &Response) -> bool {
    contents_of(response) <= PACKED
}

fn contents_of(response: &Response) -> usize {
    response.outputs.iter().map(Tensor::byte_size).sum()
}

/// A response in one allocation, if it is small and in host memory.
fn packed(response: &Response) -> Option<Arc<[u8]>> {
    if response.outputs.iter().any(Tensor::is_on_device) {
        return None;
    }
    match contents_of(response) {
        // Clearing more than that takes longer than what is to be written.
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

#[expect(clippy::expect_used, reason = "written in this process, with the same code")]
fn unpacked(packed: &[u8]) -> Response {
    read_response(packed).expect("it was written in this process")
}

/// What a response takes in memory. Its buffers count as a whole.
pub(super) fn size_of_response(response: &Response) -> usize {
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

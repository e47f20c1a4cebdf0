//! JSON parts that arrive again and again: a client that sends binary tensors repeats the same one for each request of the
//! same shapes, and parsing it takes longer than anything else that the server does for a small request.
//!
//! Each thread remembers some of the latest, by their bytes. One that arrives a second time is kept in parsed form, from the
//! third time on it is not parsed. Only JSON parts that depend on nothing else are kept: with all tensors in binary form, and
//! none in shared memory.

use std::cell::RefCell;
use std::ops::ControlFlow;

use nereid_core::backend_api::{DataType, InferRequest, Result, Shape, Tensor};
use nereid_http::RequestBody;
use nereid_protocol::parameters::check_requested;
use nereid_shared_memory::RequestMemory;

use super::{DecodedRequest, Input, RequestParts, binary};
use crate::infer::encode::Format;
use crate::infer::places::place_of;

/// The longest JSON part that is remembered, in bytes. It has room for a few tensors, which no model refuses for their number
/// before they are read.
const LONGEST: usize = 1024;

/// How many are remembered. Each has one place, by its bytes.
const PLACES: usize = 64;

thread_local! {
    static SEEN: RefCell<[Seen; PLACES]> = const { RefCell::new([const { Seen { json: Vec::new(), parsed: None } }; PLACES]) };
}

/// A JSON part that has arrived.
struct Seen {
    json: Vec<u8>,
    /// Set if it arrived before, and depends on nothing else.
    parsed: Option<Template>,
}

/// A parsed JSON part.
struct Template {
    /// Without inputs.
    request: InferRequest,
    inputs: Vec<BinaryInput>,
    format: Format,
}

struct BinaryInput {
    name: String,
    data_type: DataType,
    shape: Shape,
    /// The size of its contents in bytes.
    size: u64,
}

/// Looks up a JSON part, and remembers it. Breaks with the request if the JSON part is kept in parsed form. Continues with whether
/// the JSON part has arrived before: the caller parses it, and [keeps](keep) a repeated one.
pub(super) fn find(
    json: &[u8],
    body: &mut RequestBody,
    model: &str,
) -> ControlFlow<Result<DecodedRequest>, bool> {
    // Without a binary part, the JSON part has the values, and is not the same again.
    if json.len() > LONGEST || body.is_empty() {
        return ControlFlow::Continue(false);
    }
    SEEN.with_borrow_mut(|seen| {
        let Some(seen) = seen.get_mut(place(json)) else { return ControlFlow::Continue(false) };
        if seen.json != json {
            seen.json.clear();
            seen.json.extend_from_slice(json);
            seen.parsed = None;
            return ControlFlow::Continue(false);
        }
        match &seen.parsed {
            None => ControlFlow::Continue(true),
            Some(template) => ControlFlow::Break(template.request(body, model)),
        }
    })
}

/// Keeps a JSON part in parsed form, if it depends on nothing else.
pub(super) fn keep(json: &[u8], parsed: &RequestParts<'_>) {
    let Some(template) = Template::of(parsed) else { return };
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen.get_mut(place(json)).filter(|seen| seen.json == json) {
            seen.parsed = Some(template);
        }
    });
}

fn place(json: &[u8]) -> usize {
    place_of(json, PLACES)
}

impl Template {
    fn of(parsed: &RequestParts<'_>) -> Option<Self> {
        let depends_on_more = parsed.memory.allocator().is_some();
        let is_valid = check_requested(&parsed.request.outputs).is_ok();
        let inputs = parsed.inputs.as_ref().filter(|_| is_valid && !depends_on_more)?;
        let inputs = inputs.iter().map(BinaryInput::of).collect::<Option<_>>()?;
        Some(Self { request: copied(&parsed.request), inputs, format: parsed.format.clone() })
    }

    fn request(&self, body: &mut RequestBody, model: &str) -> Result<DecodedRequest> {
        let mut request = copied(&self.request);
        request.inputs.reserve_exact(self.inputs.len());
        for BinaryInput { name, data_type, shape, size } in &self.inputs {
            let buffers = binary(body, *size, name, model)?;
            let tensor = Tensor { name: name.clone(), data_type: *data_type, shape: shape.clone(), buffers };
            request.inputs.push(tensor);
        }
        Ok(DecodedRequest { request, format: self.format.clone(), memory: RequestMemory::default() })
    }
}

impl BinaryInput {
    fn of(input: &Input) -> Option<Self> {
        if input.data.is_some() || input.region.is_set() {
            return None;
        }
        Some(Self {
            name: input.name.clone()?,
            data_type: *input.data_type.as_ref()?.as_ref().ok()?,
            shape: input.shape.clone()?,
            size: input.binary_size?,
        })
    }
}

/// Copies the fields that the JSON part sets, except the inputs.
fn copied(request: &InferRequest) -> InferRequest {
    InferRequest {
        id: request.id.clone(),
        outputs: request.outputs.clone(),
        parameters: request.parameters.clone(),
        correlation_id: request.correlation_id.clone(),
        sequence: request.sequence,
        priority: request.priority,
        timeout: request.timeout,
        ..InferRequest::default()
    }
}

#[cfg(test)]
mod tests;

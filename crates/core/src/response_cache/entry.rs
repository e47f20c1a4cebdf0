//! An answer in the cache.

use std::sync::Arc;

use nereid_backend_api::{Buffer, ParameterValue, RequestedOutput, Response, Result, Tensor};

/// What an allocation takes beside its contents, about.
const ALLOCATION: usize = 16;

/// An answer that may be given again. Cloning it copies no contents.
#[derive(Clone, Debug)]
pub struct CacheEntry {
    response: Arc<Response>,
    byte_size: usize,
}

impl CacheEntry {
    /// An entry of a response. Outputs in memory of the server's own are kept as they are, those elsewhere are copied: in
    /// regions of clients, on devices, or within something larger that they would keep in memory.
    ///
    /// # Errors
    /// A device's driver failed.
    pub fn of(response: &Response) -> Result<Self> {
        let mut kept = response.clone();
        for buffer in kept.outputs.iter_mut().flat_map(|output| &mut output.buffers) {
            *buffer = buffer.to_kept()?;
        }
        kept.outputs.shrink_to_fit();
        Ok(Self::of_parts(kept))
    }

    /// An entry of a response whose outputs may be kept as they are.
    pub(super) fn of_parts(response: Response) -> Self {
        Self { byte_size: size_of_response(&response), response: Arc::new(response) }
    }

    /// The answer.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// How much memory it takes, in bytes: its contents and all that describes them.
    pub fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// The answer for a client that asks for these outputs; for none, all.
    pub(super) fn answer(&self, outputs: &[RequestedOutput]) -> Response {
        if outputs.is_empty() {
            return Response::clone(&self.response);
        }
        let wanted = |output: &&Tensor| outputs.iter().any(|wanted| wanted.name == output.name);
        let outputs = self.response.outputs.iter().filter(wanted).cloned().collect();
        Response { outputs, parameters: self.response.parameters.clone() }
    }
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

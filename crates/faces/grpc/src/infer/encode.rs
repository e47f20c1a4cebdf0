//! A response to a message.

use nereid_core::ResponseStream;
use nereid_core::backend_api::{Buffer, Buffers, Error, Response, Result, Tensor};

use crate::codec::{Reply, ResponseFields};

/// The reply to a request that was executed. Contents are not copied.
///
/// # Errors
/// `Unsupported` for an output in device memory.
pub(super) fn encode(answers: &ResponseStream, response: Response) -> Result<Reply> {
    let version = answers.model_version().to_string();
    let mut fields = ResponseFields::new(answers.model_name(), &version, answers.request_id());
    for (name, value) in response.parameters.iter() {
        fields.parameter(name, value);
    }
    let mut raw = Vec::with_capacity(response.outputs.len());
    for output in &response.outputs {
        raw.push(contents(output)?);
        fields.output(&output.name, output.data_type.protocol_name(), &output.shape);
    }
    Ok(Reply { fields, raw })
}

/// The contents in host memory; none if they are already where the client chose.
fn contents(output: &Tensor) -> Result<Buffers> {
    if output.buffers.iter().any(Buffer::is_placed) {
        return Ok(Buffers::new());
    }
    if output.buffers.iter().any(|buffer| buffer.as_host().is_none()) {
        let name = &output.name;
        return Err(Error::unsupported(format!("output '{name}' is in device memory, which cannot be sent")));
    }
    Ok(output.buffers.clone())
}

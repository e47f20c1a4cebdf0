//! A response to a message.

use nereid_core::ResponseStream;
use nereid_core::backend_api::{Buffer, Buffers, Error, Response, Result, Tensor};

use super::parameters;
use crate::codec::Reply;
use crate::proto::ModelInferResponse;
use crate::proto::model_infer_response::InferOutputTensor;

/// The reply to a request that was executed. Contents are not copied.
///
/// # Errors
/// `Unsupported` for an output in device memory.
pub(super) fn encode(answers: &ResponseStream, response: Response) -> Result<Reply> {
    let mut raw = Vec::with_capacity(response.outputs.len());
    let mut message = ModelInferResponse {
        model_name: answers.model_name().into(),
        model_version: answers.model_version().to_string(),
        id: answers.request_id().into(),
        parameters: parameters::to_wire(&response.parameters),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::new(),
    };
    for output in response.outputs {
        raw.push(contents(&output)?);
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.data_type.protocol_name().into(),
            shape: output.shape.to_vec(),
            ..InferOutputTensor::default()
        });
    }
    Ok(Reply { response: message, raw })
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

//! A response to a message.

use bytes::Bytes;
use nereid_core::ResponseStream;
use nereid_core::backend_api::{Buffer, Error, Response, Result, Tensor};

use super::parameters;
use crate::proto::ModelInferResponse;
use crate::proto::model_infer_response::InferOutputTensor;

/// The answer to a request that was executed. Contents in one piece are not copied.
///
/// # Errors
/// `Unsupported` for an output in device memory.
pub(super) fn encode(answers: &ResponseStream, response: Response) -> Result<ModelInferResponse> {
    let mut message = ModelInferResponse {
        model_name: answers.model_name().into(),
        model_version: answers.model_version().to_string(),
        id: answers.request_id().into(),
        parameters: parameters::to_wire(&response.parameters),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::with_capacity(response.outputs.len()),
    };
    for output in response.outputs {
        message.raw_output_contents.push(contents(&output)?);
        message.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: output.data_type.protocol_name().into(),
            shape: output.shape.to_vec(),
            ..InferOutputTensor::default()
        });
    }
    Ok(message)
}

/// The contents as one run of bytes; none if they lie where the client wanted them already.
fn contents(output: &Tensor) -> Result<Bytes> {
    match output.buffers.as_slice() {
        buffers if buffers.iter().any(Buffer::is_placed) => Ok(Bytes::new()),
        [buffer] => buffer.as_host().cloned().ok_or_else(|| {
            Error::unsupported(format!(
                "output '{}' lies in device memory, which is not read here",
                output.name
            ))
        }),
        _ => Ok(output.contiguous()?.into_owned().into()),
    }
}

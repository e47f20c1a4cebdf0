//! Inference over gRPC: a message to a request, the answer to a message.

mod contents;
mod decode;
mod encode;
mod parameters;
mod region;

use nereid_core::ResponseStream;
use nereid_core::backend_api::{Error, Parameters, Response, Result, Tensor};
use nereid_shared_memory::RequestMemory;
use tonic::Request;

use crate::infer::decode::Decoded;
use crate::metadata::version;
use crate::proto::{ModelInferRequest, ModelInferResponse};
use crate::{Face, forward};

/// A request that the server has.
pub(crate) struct Asked {
    pub answers: ResponseStream,
    /// Whether the end of its answers is to be told in a message of its own, if the last answer did not tell it.
    pub empty_final: bool,
    /// Length of its inputs in bytes.
    pub byte_size: usize,
    memory: RequestMemory,
}

impl Asked {
    /// The message of one of its answers.
    ///
    /// # Errors
    /// Why the answer cannot be read.
    pub(crate) fn encode(&self, response: Response) -> Result<ModelInferResponse> {
        let message = encode::encode(&self.answers, response)?;
        self.memory.check()?;
        Ok(message)
    }
}

/// Hands a request to the server, with the parameters that `forward` adds.
///
/// # Errors
/// What is wrong with the request.
pub(crate) fn ask(
    face: &Face,
    message: ModelInferRequest,
    forward: impl FnOnce(&mut Parameters) -> Result<()>,
) -> Result<Asked> {
    let Decoded { mut request, memory, empty_final } = decode::decode(message, &face.options.regions)?;
    forward(&mut request.parameters)?;
    let byte_size = request.inputs.iter().map(Tensor::byte_size).sum();
    let answers = face.server.infer(request)?;
    Ok(Asked { answers, empty_final, byte_size, memory })
}

/// Answers a request of one response.
///
/// # Errors
/// What is wrong with the request, or what went wrong in executing it.
pub(crate) async fn answer(face: &Face, request: Request<ModelInferRequest>) -> Result<ModelInferResponse> {
    let (metadata, _, message) = request.into_parts();
    // Found first: a request to a model that is not there is not worth decoding.
    let model =
        face.server.model(&message.model_name, version(&message.model_version, &message.model_name)?)?;
    if model.is_decoupled() {
        return Err(Error::unsupported(format!(
            "model '{}' is decoupled: it gives any number of answers, and ModelInfer takes models that give one; \
             ModelStreamInfer takes others",
            model.name()
        )));
    }
    drop(model);
    let mut asked = ask(face, message, |parameters| forward::headers(&face.options, &metadata, parameters))?;
    let response = asked.answers.single().await?;
    asked.encode(response)
}

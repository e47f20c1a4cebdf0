//! Inference over gRPC: a message to a request, the answer to a message.

mod contents;
mod decode;
mod encode;
mod parameters;
mod region;

use nereid_core::backend_api::{Error, Result};

use crate::Face;
use crate::infer::decode::Decoded;
use crate::metadata::version;
use crate::proto::{ModelInferRequest, ModelInferResponse};

/// Answers a request of one response.
///
/// # Errors
/// What is wrong with the request, or what went wrong in executing it.
pub(crate) async fn answer(face: &Face, message: ModelInferRequest) -> Result<ModelInferResponse> {
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
    let Decoded { request, memory, .. } = decode::decode(message, &face.options.regions)?;
    let mut answers = face.server.infer(request)?;
    let response = answers.single().await?;
    let message = encode::encode(&answers, response)?;
    memory.check()?;
    Ok(message)
}

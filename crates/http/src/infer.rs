//! Inference over HTTP: a body to a request, the answer to a body.

mod decode;
mod encode;
pub(crate) mod generate;
mod json_members;
mod json_tensor;
mod region;

use hyper::HeaderMap;
use nereid_core::backend_api::{Error, Result};

use crate::body::Pieces;
use crate::compression::{self, Encoding};
use crate::reply::Reply;
use crate::routes::Call;

/// Tells where a body's JSON ends and its binary tensors begin.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Answers an inference request.
///
/// # Errors
/// What is wrong with the request, or what went wrong in executing it.
pub(crate) async fn answer(call: &Call<'_>, mut body: Pieces) -> Result<Reply> {
    let Call { face, target, headers, .. } = call;
    let version = target.version()?;
    // Found first: a request to a model that is not there is not worth decoding.
    let model = face.server.model(&target.model, version)?;
    if model.is_decoupled() {
        return Err(Error::unsupported(format!(
            "model '{}' is decoupled: it gives any number of answers, and this endpoint takes models that give one; \
             generate_stream takes others",
            model.name()
        )));
    }
    match Encoding::of_request(headers) {
        Ok(Encoding::Identity) => {}
        Ok(Encoding::Gzip | Encoding::Deflate) => {
            body = compression::decompress(body, face.options.max_input_size).await?;
        }
        Err(unknown) => return Ok(compression::unknown(&unknown)),
    }
    let decoded = match header_length(headers, body.len())? {
        Some(0) => decode::raw(&mut body, model.signature(), face.options.max_input_size)?,
        length => {
            let length = length.unwrap_or(body.len());
            let options = &face.options;
            decode::json(&mut body, length, &target.model, options.max_input_size, &options.regions)?
        }
    };
    let decode::Decoded { mut request, format, memory } = decoded;
    call.forward_headers(&mut request)?;
    request.model_name = target.model.clone().into_owned();
    request.model_version = version;
    let mut answers = face.server.infer(request)?;
    let response = answers.single().await?;
    let reply = encode::encode(&answers, response, &format)?;
    memory.check()?;
    Ok(match Encoding::of_answer(headers) {
        Encoding::Identity => reply,
        encoding => compression::compress(reply, encoding).await,
    })
}

/// The length of the JSON part, if the client says it.
fn header_length(headers: &HeaderMap, body: usize) -> Result<Option<usize>> {
    let Some(value) = headers.get(HEADER_LENGTH) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    match text.trim().parse::<usize>() {
        Ok(length) if length <= body => Ok(Some(length)),
        Ok(length) => Err(Error::invalid_arg(format!(
            "Inference-Header-Content-Length is {length}, but the body has only {body} bytes"
        ))),
        Err(_) => Err(Error::invalid_arg(format!(
            "Inference-Header-Content-Length is '{text}', but takes a number of bytes"
        ))),
    }
}

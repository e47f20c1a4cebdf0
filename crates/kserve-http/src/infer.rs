//! Inference over HTTP: a body to a request, the answer to a body.

mod decode;
mod encode;
pub(crate) mod generate;
mod json_members;
mod json_tensor;
pub mod offline;
mod region;

use std::sync::Arc;
use std::time::Instant;

use hyper::header::HeaderValue;
use nereid_core::backend_api::{Error, RequestTrace, Result, Trace};
use nereid_core::{Caller, Model, Signature};
use nereid_shared_memory::Regions;

use crate::body::Pieces;
use crate::compression::{self, Encoding};
use crate::reply::{self, Reply};
use crate::routes::Call;

/// Tells where a body's JSON ends and its binary tensors begin.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Answers an inference request.
///
/// # Errors
/// What is wrong with the request, or what went wrong in executing it.
pub(crate) async fn answer(call: &Call<'_>, body: Pieces) -> Result<Reply> {
    let Call { face, target, .. } = call;
    let version = target.version()?;
    // Found first: a request to a model that is not there is not worth decoding.
    let model = face.server.resolve(&target.model, version).await?;
    if model.is_decoupled() {
        return Err(Error::unsupported(format!(
            "model '{}' is decoupled: it gives any number of answers, and this endpoint takes models that give one; \
             generate_stream takes others",
            model.name()
        )));
    }
    match call.draw_trace() {
        None => answer_with(call, &model, body, None).await,
        Some(trace) => {
            let outcome = answer_with(call, &model, body, Some(&trace)).await;
            Ok(reply::traced(outcome.unwrap_or_else(|error| reply::error(&error)), trace))
        }
    }
}

async fn answer_with(
    call: &Call<'_>,
    model: &Arc<Model>,
    mut body: Pieces,
    trace: Option<&Arc<Trace>>,
) -> Result<Reply> {
    let Call { face, target, headers, .. } = call;
    match Encoding::of_request(headers) {
        Ok(Encoding::Identity) => {}
        Ok(Encoding::Gzip | Encoding::Deflate) => {
            body = compression::decompress(body, face.options.max_input_size).await?;
        }
        Err(unknown) => return Ok(compression::unknown(&unknown)),
    }
    let length = headers.get(HEADER_LENGTH).map(HeaderValue::as_bytes);
    let limits = (face.options.max_input_size, &*face.options.regions);
    let decoded = decoded(&mut body, length, &target.model, model.signature(), limits)?;
    let decode::Decoded { mut request, format, memory } = decoded;
    call.forward_headers(&mut request)?;
    request.trace = trace.map(|trace| RequestTrace::new(Arc::clone(trace)));
    let mut answers = face.server.infer(model, request, Caller::default())?;
    let response = answers.single().await;
    if let Some(trace) = trace {
        trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
    }
    let response = response?;
    let reply = encode::encode(&answers, response, &format)?;
    memory.check()?;
    Ok(match Encoding::of_answer(headers) {
        Encoding::Identity => reply,
        encoding => compression::compress(reply, encoding).await,
    })
}

/// The request in a body, whose JSON part has the length that the client says: all of it if it says nothing, none of it for
/// a raw body. `limits` are the longest input and the regions that inputs and outputs may lie in.
fn decoded(
    body: &mut Pieces,
    header_length: Option<&[u8]>,
    model: &str,
    signature: &Signature,
    (max_input, regions): (usize, &Regions),
) -> Result<decode::Decoded> {
    match header_length.map(|length| announced(length, body.len())).transpose()? {
        Some(0) => decode::raw(body, signature, max_input),
        length => decode::json(body, length.unwrap_or(body.len()), model, max_input, regions),
    }
}

/// The length of the JSON part.
fn announced(length: &[u8], body: usize) -> Result<usize> {
    let text = String::from_utf8_lossy(length);
    match text.trim().parse::<usize>() {
        Ok(length) if length <= body => Ok(length),
        Ok(length) => Err(Error::invalid_arg(format!(
            "Inference-Header-Content-Length is {length}, but the body has only {body} bytes"
        ))),
        Err(_) => Err(Error::invalid_arg(format!(
            "Inference-Header-Content-Length is '{text}', but takes a number of bytes"
        ))),
    }
}

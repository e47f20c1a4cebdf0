//! Inference over HTTP.

mod decode;
mod encode;
pub(crate) mod generate;
mod json_members;
mod json_tensor;
pub mod offline;
mod region;

use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::{Buffer, Buffers, RequestTrace, Result, Trace};
use nereid_core::{Model, Signature};
use nereid_http::{self as http, Encoding, Limit, Reply, RequestBody, reply};
use nereid_protocol::resolve_single;
use nereid_shared_memory::Regions;

use crate::call::Call;

/// Answers an inference request.
///
/// # Errors
/// The request is invalid, or its execution failed.
pub(crate) async fn answer(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let Call { face, target, .. } = call;
    let version = target.version()?;
    // Resolved first: a request to an unknown model is not decoded.
    let model = resolve_single(&face.server, &target.model, version, "generate_stream").await?;
    match call.draw_trace() {
        None => answer_with(call, &model, body, None).await,
        Some(trace) => {
            let outcome = answer_with(call, &model, body, Some(&trace)).await;
            Ok(traced(outcome.unwrap_or_else(|error| (face.dialect.error)(&error)), trace))
        }
    }
}

async fn answer_with(
    call: &Call<'_>,
    model: &Arc<Model>,
    mut body: RequestBody,
    trace: Option<&Arc<Trace>>,
) -> Result<Reply> {
    let Call { face, target, headers, .. } = call;
    match face.dialect.encoding_of_request(headers) {
        Ok(Encoding::Identity) => {}
        Ok(Encoding::Gzip | Encoding::Deflate) => {
            // Boxed because it is rare, so that it takes no space in the future of every request.
            body = Box::pin(http::decompress(body, face.options.input_limit(), face.server.bodies())).await?;
        }
        Err(unknown) => return Ok(http::unknown_encoding(&unknown)),
    }
    let length = face.dialect.json_length(headers, body.len())?;
    let limits = (face.options.input_limit(), &*face.options.regions);
    let decoded = decoded(&mut body, length, &target.model, model.signature(), limits)?;
    let decode::DecodedRequest { mut request, format, memory } = decoded;
    call.forward_headers(&mut request)?;
    request.trace = trace.map(|trace| RequestTrace::new(Arc::clone(trace)));
    let caller = call.caller(&mut body);
    let mut answers = face.server.infer(model, request, caller)?;
    let response = answers.single().await;
    if let Some(trace) = trace {
        trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
    }
    let response = response?;
    let reply = encode::encode(&answers, response, &format, &face.dialect, face.server.bodies())?;
    memory.check()?;
    Ok(match face.dialect.encoding_of_reply(headers) {
        Encoding::Identity => reply,
        encoding => Box::pin(http::compress(reply, encoding, face.server.bodies())).await,
    })
}

/// Decodes a body. `json_length` is the length of its JSON part: all of it if absent, 0 for a raw body. An empty body
/// is raw, as in the reference.
fn decoded(
    body: &mut RequestBody,
    json_length: Option<usize>,
    model: &str,
    signature: &Signature,
    (max_input, regions): (Limit, &Regions),
) -> Result<decode::DecodedRequest> {
    match json_length {
        Some(0) => decode::raw(body, signature, max_input),
        None if body.is_empty() => decode::raw(body, signature, max_input),
        length => decode::json(body, length.unwrap_or(body.len()), model, signature, max_input, regions),
    }
}

/// Stamps a trace when the reply was handed to the connection or dropped.
struct SendEnd(Arc<Trace>);

impl Drop for SendEnd {
    fn drop(&mut self) {
        self.0.stamp("HTTP_SEND_END", Instant::now());
    }
}

/// A reply that stamps the trace of its request when sent.
fn traced(reply: Reply, trace: Arc<Trace>) -> Reply {
    trace.stamp("HTTP_SEND_START", Instant::now());
    reply::guarded(reply, SendEnd(trace))
}

/// The next `count` bytes of a body, not copied.
fn take(body: &mut RequestBody, count: usize) -> Result<Buffers, usize> {
    let mut buffers = Buffers::new();
    body.take_pieces(count, |piece| buffers.push(Buffer::host(piece)))?;
    Ok(buffers)
}

#[cfg(test)]
mod tests;

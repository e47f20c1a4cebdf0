//! Inference over HTTP.

mod decode;
mod encode;
pub(crate) mod generate;
mod json_members;
mod json_numbers;
mod json_reader;
mod json_tensor;
pub mod offline;
mod places;
mod region;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid_core::backend_api::{Buffer, Buffers, RequestTrace, Response, Result, Trace};
use nereid_core::{ResolvedModel, ResponseStream, Signature};
use nereid_http::{self as http, Encoding, Limit, Reply, RequestBody, reply};
use nereid_protocol::resolve_single;
use nereid_shared_memory::Regions;
use nereid_tasks::long_work;
use serde::Deserialize;

use crate::call::Call;

/// Answers an inference request.
///
/// # Errors
/// The request is invalid, or its execution failed.
pub(crate) async fn answer(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let Call { face, target, .. } = call;
    let version = target.version()?;
    // Resolved first: a request to an unknown model is not decoded.
    let head = || call.head(time_limit(body.front()));
    let model = resolve_single(&face.server, call.model(), version, head, "generate_stream").await?;
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
    model: &ResolvedModel,
    mut body: RequestBody,
    trace: Option<&Arc<Trace>>,
) -> Result<Reply> {
    let Call { face, target, headers, .. } = call;
    let admission = match call.http.admit(model.id(), body.len()) {
        Ok(admission) => admission,
        Err(refused) => return Ok(*refused),
    };
    match face.dialect.encoding_of_request(headers) {
        Ok(Encoding::Identity) => {}
        Ok(Encoding::Gzip | Encoding::Deflate) => {
            // Boxed because it is rare, so that it takes no space in the future of every request.
            body = Box::pin(http::decompress(body, face.options.input_limit(), face.server.bodies())).await?;
        }
        Err(unknown) => return Ok(http::unknown_encoding(&unknown)),
    }
    let length = face.dialect.json_length(headers, body.len())?;
    let limits = (face.options.input_limit(), &**call.regions());
    let outcome = if long_work::is_long(length.unwrap_or(body.len())) {
        // Boxed because it is rare, as above.
        Box::pin(decoded_elsewhere(call, model, &mut body, length)).await
    } else {
        decoded(&mut body, length, &target.model, model.signature(), limits)
    };
    let decode::DecodedRequest { mut request, format, memory } = match outcome {
        Ok(decoded) => decoded,
        Err(error) => return call.region_refusal(&error).ok_or(error),
    };
    call.apply_headers(&mut request)?;
    request.trace = trace.map(|trace| RequestTrace::new(Arc::clone(trace)));
    let caller = call.caller(&mut body, admission);
    let mut answers = face.server.infer(model, request, caller)?;
    let response = answers.single().await;
    if let Some(trace) = trace {
        trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
    }
    let response = response?;
    let reply = if long_work::is_long(format.text_size(&response)) {
        Box::pin(encoded_elsewhere(call, answers, response, format)).await?
    } else {
        encode::encode(&answers, response, &format, &face.dialect, face.server.bodies())?
    };
    memory.check()?;
    Ok(match face.dialect.encoding_of_reply(headers) {
        Encoding::Identity => reply,
        encoding => Box::pin(http::compress(reply, encoding, face.server.bodies())).await,
    })
}

/// Like [`decoded`], on another thread.
async fn decoded_elsewhere(
    call: &Call<'_>,
    model: &ResolvedModel,
    body: &mut RequestBody,
    json_length: Option<usize>,
) -> Result<decode::DecodedRequest> {
    let (limit, regions) = (call.face.options.input_limit(), Arc::clone(call.regions()));
    let (name, model, mut taken) =
        (call.target.model.clone().into_owned(), model.clone(), std::mem::take(body));
    let (rest, decoded) = long_work::run(move || {
        let decoded = decoded(&mut taken, json_length, &name, model.signature(), (limit, &*regions));
        (taken, decoded)
    })
    .await?;
    *body = rest;
    decoded
}

/// Encodes a response on another thread.
async fn encoded_elsewhere(
    call: &Call<'_>,
    answers: ResponseStream,
    response: Response,
    format: encode::Format,
) -> Result<Reply> {
    let (dialect, budget) = (call.face.dialect, call.face.server.bodies().clone());
    long_work::run(move || encode::encode(&answers, response, &format, &dialect, &budget)).await?
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

/// The longest beginning of a body that is read for the parameter `timeout` before the request is decoded.
const LONGEST_BEGINNING: usize = 64 << 10;

/// The parameter `timeout` of a request, if its small JSON part has one: it limits the wait for a model that is being loaded.
fn time_limit(body: &[u8]) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Beginning {
        parameters: Timeout,
    }
    #[derive(Deserialize)]
    struct Timeout {
        timeout: u64,
    }
    let body = body.get(..LONGEST_BEGINNING).unwrap_or(body);
    // Tensors may follow the JSON.
    let beginning = serde_json::Deserializer::from_slice(body).into_iter::<Beginning>().next()?.ok()?;
    let micros = beginning.parameters.timeout;
    (micros > 0).then(|| Duration::from_micros(micros))
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

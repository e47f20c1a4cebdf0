//! The generate extension: one flat JSON object in, one flat JSON object out for each response.
//!
//! A member named like an input of the model is that input; any other is a parameter. Outputs become members likewise.
//! `generate` returns the only response, `generate_stream` any number of them as server-sent events. An error response
//! has status 400 regardless of its code, as in the reference, unless the request was refused before execution; the
//! status of a stream is that of its first response.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use hyper::StatusCode;
use nereid_core::backend_api::{
    Buffer, Buffers, Error, InferRequest, RequestTrace, Response, Result, Shape, Tensor, Trace,
};
use nereid_core::{InputSignature, ResolvedModel, ResponseStream, Signature};
use nereid_http::{Encoding, EventSource, Limit, Reply, RequestBody, events, reply};
use nereid_protocol::parameters::WireValue;
use nereid_protocol::{Admission, as_invalid_arg};
use nereid_tasks::long_work;

use super::decode::too_large;
use super::encode;
use super::json_members::{JsonValue, object, text};
use super::json_reader::JsonReader;
use super::json_tensor;
use super::traced;
use crate::call::Call;
use crate::json::{self, syntax};

/// Replies with the model's only response.
///
/// # Errors
/// The request is invalid, or its execution failed.
pub(crate) async fn one(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let (model, trace) = begin(call).await?;
    let outcome = one_with(call, &model, body, trace.as_ref()).await;
    finish(call, outcome, trace)
}

async fn one_with(
    call: &Call<'_>,
    model: &ResolvedModel,
    body: RequestBody,
    trace: Option<&Arc<Trace>>,
) -> Result<Reply> {
    let admission = match call.http.admit(model.id(), body.len()) {
        Ok(admission) => admission,
        Err(refused) => return Ok(*refused),
    };
    let mut answers = ask(call, model, body, trace, admission).await?;
    let first = answers.next().await;
    answered(trace);
    let first = first.transpose().map_err(|error| with_code_of_response(&answers, error))?;
    // The first response determines the status, as in the reference.
    Ok(match (first, answers.next().await) {
        (Some(response), None) => {
            let text = written(Arc::new(Source::of(&answers)), response).await?;
            reply::json_bytes(StatusCode::OK, call.face.server.bodies().hold(text)?)
        }
        (first, _) => {
            let count = if first.is_some() { "several responses" } else { "no response" };
            let model = answers.model_name();
            reply::error_text(
                StatusCode::OK,
                &format!(
                    "model '{model}' returned {count}; generate takes exactly one, generate_stream any number"
                ),
            )
        }
    })
}

/// The error that came as the first response, with the code for its status.
fn with_code_of_response(answers: &ResponseStream, error: Error) -> Error {
    if answers.was_executed() { as_invalid_arg(error) } else { error }
}

/// Replies with one event per response of the model, as soon as it is ready.
///
/// # Errors
/// The request is invalid. Later errors are sent as events.
pub(crate) async fn stream(call: &Call<'_>, body: RequestBody) -> Result<Reply> {
    let (model, trace) = begin(call).await?;
    let outcome = stream_with(call, &model, body, trace.clone()).await;
    finish(call, outcome, trace)
}

async fn stream_with(
    call: &Call<'_>,
    model: &ResolvedModel,
    body: RequestBody,
    trace: Option<Arc<Trace>>,
) -> Result<Reply> {
    let admission = match call.http.admit(model.id(), body.len()) {
        Ok(admission) => admission,
        Err(refused) => return Ok(*refused),
    };
    let mut answers = ask(call, model, body, trace.as_ref(), admission).await?;
    let source = Arc::new(Source::of(&answers));
    let first = answers.next().await;
    let (status, first) = match first {
        None => (StatusCode::OK, None),
        Some(answer) => {
            answered(trace.as_ref());
            let outcome = match answer {
                Ok(response) => written(Arc::clone(&source), response).await,
                Err(error) => Err(with_code_of_response(&answers, error)),
            };
            let status = outcome.as_ref().err().map_or(StatusCode::OK, reply::status);
            (status, Some(data(outcome)))
        }
    };
    let responses = Responses { answers, source, writing: None, trace };
    Ok(events(status, first, responses, call.http.busy()))
}

/// The requested model, and the request's trace if it is traced.
async fn begin(call: &Call<'_>) -> Result<(ResolvedModel, Option<Arc<Trace>>)> {
    let version = call.target.version()?;
    let model = call.face.server.resolve_with(call.model(), version, || call.head(None)).await?;
    Ok((model, call.draw_trace()))
}

/// Stamps the arrival of a response.
fn answered(trace: Option<&Arc<Trace>>) {
    if let Some(trace) = trace {
        trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
    }
}

/// The reply, or the reply to an error, with stamps on the trace.
fn finish(call: &Call<'_>, outcome: Result<Reply>, trace: Option<Arc<Trace>>) -> Result<Reply> {
    match trace {
        None => outcome,
        Some(trace) => Ok(traced(outcome.unwrap_or_else(|error| (call.face.dialect.error)(&error)), trace)),
    }
}

/// Sends the request to the model.
async fn ask(
    call: &Call<'_>,
    model: &ResolvedModel,
    mut body: RequestBody,
    trace: Option<&Arc<Trace>>,
    admission: Option<Admission>,
) -> Result<ResponseStream> {
    let Call { face, headers, .. } = call;
    if face.dialect.encoding_of_request(headers) != Ok(Encoding::Identity) {
        return Err(Error::invalid_arg("generate does not support compressed bodies"));
    }
    let (length, limit) = (body.len(), face.options.input_limit());
    if length > limit.bytes {
        return Err(too_large("the request's JSON", length, limit));
    }
    let json = body.take_joined(length).unwrap_or_default();
    let mut request = if long_work::is_long(length) {
        let model = model.clone();
        long_work::run(move || decode(&json, model.signature(), limit)).await??
    } else {
        decode(&json, model.signature(), limit)?
    };
    call.apply_headers(&mut request)?;
    request.trace = trace.map(|trace| RequestTrace::new(Arc::clone(trace)));
    face.server.infer(model, request, call.caller(&mut body, admission))
}

/// Decodes the request's object.
pub(super) fn decode(json: &[u8], signature: &Signature, limit: Limit) -> Result<InferRequest> {
    let text = json::text(json);
    match decode_text(text, signature, limit) {
        Ok(request) => Ok(request),
        Err(error) => decode_text(&json::respelled(text).ok_or(error)?, signature, limit),
    }
}

fn decode_text(json: &[u8], signature: &Signature, limit: Limit) -> Result<InferRequest> {
    let mut members = Members { signature, limit, used: 0, request: InferRequest::default() };
    let mut reader = JsonReader::new(json);
    let is_object = object(&mut reader, str::to_owned, |reader, key| match key.as_str() {
        "id" => {
            let start = reader.current_index();
            members.request.id = text(reader, "id")?;
            // It also is a member like any other.
            let value = json.get(start..reader.current_index()).unwrap_or_default();
            members.read(&mut JsonReader::new(value), key)
        }
        "parameters" if signature.input("parameters").is_some() => {
            Err(Error::invalid_arg("an input named 'parameters' cannot be used with generate"))
        }
        "parameters" => match object(reader, str::to_owned, |reader, key| members.read(reader, key))? {
            true => Ok(()),
            false => Err(Error::internal("'parameters' is not an object")),
        },
        _ => members.read(reader, key),
    })?;
    reader.finish().map_err(syntax)?;
    if !is_object {
        return Err(Error::internal("the request is not a JSON object"));
    }
    Ok(members.request)
}

/// The request while its members are read.
struct Members<'s> {
    signature: &'s Signature,
    /// Limits the total size of all inputs.
    limit: Limit,
    used: usize,
    request: InferRequest,
}

impl Members<'_> {
    /// Reads a value: an input with this name, or else a parameter.
    fn read(&mut self, json: &mut JsonReader<'_>, name: String) -> Result<()> {
        let signature = self.signature;
        match signature.input(&name) {
            Some(input) => {
                let tensor = self
                    .read_input(json, input)
                    .map_err(|error| error.context(format_args!("input '{name}'")))?;
                self.request.inputs.push(tensor);
                Ok(())
            }
            None => {
                let value = JsonValue(json).custom(&name)?;
                self.request.parameters.set(name, value);
                Ok(())
            }
        }
    }

    fn read_input(&mut self, json: &mut JsonReader<'_>, input: &InputSignature) -> Result<Tensor> {
        let data_type = input.data_type;
        if self.request.inputs.iter().any(|given| given.name == input.name) {
            return Err(Error::invalid_arg("duplicate input"));
        }
        if !json_tensor::is_representable(data_type) {
            return Err(Error::invalid_arg(format!("JSON cannot represent {data_type}")));
        }
        let elements = json_tensor::decode_value(json, data_type)?;
        self.used = self.used.saturating_add(elements.contents.len());
        if self.used > self.limit.bytes {
            return Err(too_large("the request's inputs", self.used, self.limit));
        }
        let shape = fitted(self.signature.full_dims(&input.dims), elements.count).ok_or_else(|| {
            let dims = self.signature.full_dims(&input.dims);
            Error::invalid_arg(format!("{} elements do not fit shape {dims}", elements.count))
        })?;
        let buffers = Buffers::from_iter([Buffer::host(elements.contents)]);
        Ok(Tensor { name: input.name.clone(), data_type, shape, buffers })
    }
}

/// `dims` with variable sizes replaced such that they hold `count` elements: the innermost one becomes the quotient,
/// the others 1. `None` if `count` is not divisible.
fn fitted(mut dims: Shape, count: usize) -> Option<Shape> {
    let mut left = i64::try_from(count).ok()?;
    for &dim in dims.iter().filter(|dim| **dim >= 0) {
        // A dimension of 0 means no elements, and no other shape is compatible.
        if left.checked_rem(dim).unwrap_or(left) != 0 {
            return None;
        }
        left = left.checked_div(dim).unwrap_or(1);
    }
    for dim in dims.iter_mut().rev().filter(|dim| **dim < 0) {
        *dim = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(dims)
}

/// The request and the model that responses name.
struct Source {
    request: String,
    model: String,
    version: u64,
}

impl Source {
    fn of(answers: &ResponseStream) -> Self {
        Self {
            request: answers.request_id().to_owned(),
            model: answers.model_name().to_owned(),
            version: answers.model_version(),
        }
    }
}

/// A response as JSON, written on another thread if it is long.
async fn written(source: Arc<Source>, response: Response) -> Result<Vec<u8>> {
    long_work::run_sized(size(&response), move || flat(&source, &response)).await?
}

/// Size of a response's outputs in bytes.
fn size(response: &Response) -> usize {
    response.outputs.iter().map(Tensor::byte_size).sum()
}

/// A response as a flat object: id, model and version, then parameters, then outputs, as in the reference. The first of
/// duplicate names counts.
fn flat(source: &Source, response: &Response) -> Result<Vec<u8>> {
    let mut json = Vec::with_capacity(256);
    // A set, because the number of parameters that a model returns may be under the client's control.
    let mut names: HashSet<String> = HashSet::from(["model_name".into(), "model_version".into()]);
    json.push(b'{');
    if !source.request.is_empty() {
        json.extend_from_slice(b"\"id\":");
        encode::string(&mut json, &source.request)?;
        json.push(b',');
        names.insert("id".into());
    }
    json.extend_from_slice(b"\"model_name\":");
    encode::string(&mut json, &source.model)?;
    encode::version(&mut json, source.version)?;
    let mut is_new = |json: &mut Vec<u8>, name: &str| -> Result<bool> {
        if !names.insert(name.to_owned()) {
            return Ok(false);
        }
        json.push(b',');
        encode::string(json, name)?;
        json.push(b':');
        Ok(true)
    };
    for (name, value) in response.parameters.iter() {
        if is_new(&mut json, name)? {
            encode::parameter(&mut json, value)?;
        }
    }
    for output in &response.outputs {
        if is_new(&mut json, &output.name)? {
            let alone = output.shape.element_count() == Some(1);
            if !alone {
                json.push(b'[');
            }
            encode::elements(&mut json, output)?;
            if !alone {
                json.push(b']');
            }
        }
    }
    json.push(b'}');
    Ok(json)
}

/// The data of an event: the response's JSON, or the error's.
fn data(outcome: Result<Vec<u8>>) -> Vec<u8> {
    outcome.unwrap_or_else(|error| reply::error_json(error.message()).into_bytes())
}

/// The data of an event while it is written.
type PendingEvent = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// The responses of a model as events. Dropped early, as when the client disconnects, they cancel the request.
struct Responses {
    answers: ResponseStream,
    source: Arc<Source>,
    /// The event of the response read last, while it is written.
    writing: Option<PendingEvent>,
    trace: Option<Arc<Trace>>,
}

impl EventSource for Responses {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if self.writing.is_none() {
            let Some(answer) = ready!(self.answers.poll_next(context)) else { return Poll::Ready(None) };
            answered(self.trace.as_ref());
            match answer {
                Ok(response) if long_work::is_long(size(&response)) => {
                    self.writing = Some(Box::pin(written(Arc::clone(&self.source), response)));
                }
                Ok(response) => return Poll::Ready(Some(data(flat(&self.source, &response)))),
                Err(error) => return Poll::Ready(Some(data(Err(error)))),
            }
        }
        let Some(writing) = &mut self.writing else { return Poll::Ready(None) };
        let outcome = ready!(writing.as_mut().poll(context));
        self.writing = None;
        Poll::Ready(Some(data(outcome)))
    }
}

#[cfg(test)]
mod tests;

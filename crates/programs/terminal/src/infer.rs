//! `nereid infer`: one request, and its answer.

mod answer;
mod arguments;
mod npy;
mod pictures;
mod sample;
mod show;
mod signature;
mod tensor;

use std::io::{self, Write};

use bytes::Bytes;
use http::Method;
use nereid_client::http::{EventParser, path_segment};
use serde_json::{Map, Value, json};

use self::answer::Answer;
use self::pictures::Adjustment;
pub use self::pictures::{Fit, Order, Scale};
pub use self::sample::Sample;
use self::signature::Signature;
use self::tensor::Tensor;
use crate::connection::{Access, Connection, Refusal};

/// The header with the length of a body's JSON, in front of tensors in binary form.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";

/// A request from a command line.
#[derive(Clone, Debug)]
pub struct Infer {
    /// How the server is reached.
    pub access: Access,
    /// The model.
    pub model: String,
    /// The version of the model. `None`: the server chooses one.
    pub version: Option<u64>,
    /// `INPUT=value` or `INPUT=@file`.
    pub inputs: Vec<String>,
    /// The outputs to return. Empty: all outputs.
    pub outputs: Vec<String>,
    /// `NAME=value`, in JSON, or a text.
    pub parameters: Vec<String>,
    /// The number of classes that each output is reduced to.
    pub classes: Option<u32>,
    /// Whether responses are printed as they come, though the model is not decoupled.
    pub stream: bool,
    /// Whether the answer is printed in JSON.
    pub json: bool,
    /// The range of an image's values. `None`: the default range of the input's data type.
    pub scale: Option<Scale>,
    /// How an image gets the size of an input.
    pub fit: Fit,
    /// The order of an image's colours.
    pub order: Order,
}

/// Sends a request, and prints the answer to `out`.
///
/// # Errors
/// The request is invalid, was refused, or its answer cannot be written.
pub async fn infer(request: &Infer, out: &mut dyn Write) -> Result<(), String> {
    let connection = Connection::new(request.access.clone())?;
    let at = |reason: Refusal| format!("{}: {reason}", connection.address());
    let path = match request.version {
        None => format!("/v2/models/{}", path_segment(&request.model)),
        Some(version) => format!("/v2/models/{}/versions/{version}", path_segment(&request.model)),
    };
    let metadata = connection.document(&path).await.map_err(at)?;
    // Configurations are an extension.
    let config = match connection.document(&format!("{path}/config")).await {
        Ok(config) => config,
        Err(Refusal::Status(..)) => Value::Null,
        Err(refusal) => return Err(at(refusal)),
    };
    let signature = Signature::read(&metadata, &config)?;
    let adjustment = Adjustment { scale: request.scale, fit: request.fit, order: request.order };
    let inputs = arguments::inputs(&request.model, &request.inputs, adjustment, &signature)?;
    let parameters = arguments::parameters(&request.parameters)?;
    if request.stream || signature.is_decoupled {
        let body = flat(&inputs, parameters)?;
        let stream = connection.stream(&format!("{path}/generate_stream"), body.to_string().into()).await;
        let mut stream = stream.map_err(at)?;
        let mut events = EventParser::default();
        let mut shown = show::Streamed::new(request.json);
        while let Some(bytes) = stream.next().await.map_err(at)? {
            for event in events.add(&bytes) {
                shown.event(&event, out)?;
            }
        }
        return shown.end(out);
    }
    // A server without this document has no extensions.
    let server = connection.document("/v2").await.unwrap_or_default();
    let extensions = server["extensions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_binary = extensions.iter().any(|name| name == "binary_tensor_data");
    let (body, length) = body(&inputs, outputs(request, &signature), parameters, is_binary)?;
    let headers: Vec<_> = is_binary.then(|| (JSON_LENGTH, length.to_string())).into_iter().collect();
    let answer =
        connection.whole(Method::POST, &format!("{path}/infer"), &headers, body).await.map_err(at)?;
    let length = answer.headers.get(JSON_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let answer =
        Answer::read(&answer.body, length).map_err(|reason| format!("{}: {reason}", connection.address()))?;
    let text = if request.json { answer.json() } else { show::answer(&answer, request.classes.is_some()) };
    written(writeln!(out, "{}", text.trim_end()))
}

/// The reader of a pipe may close it early, as `head` does.
pub(crate) fn written(outcome: io::Result<()>) -> Result<(), String> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot print the answer: {error}"))
        }
        _ => Ok(()),
    }
}

/// The outputs to request; none for all, as they are.
fn outputs(request: &Infer, signature: &Signature) -> Vec<Value> {
    match request.classes {
        None => request.outputs.iter().map(|name| json!({"name": name})).collect(),
        Some(count) => {
            let names = if request.outputs.is_empty() { &signature.outputs } else { &request.outputs };
            let parameters = json!({"classification": count, "binary_data": false});
            names.iter().map(|name| json!({"name": name, "parameters": parameters})).collect()
        }
    }
}

/// The body of an inference request, with the length of its JSON.
fn body(
    inputs: &[Tensor],
    outputs: Vec<Value>,
    mut parameters: Map<String, Value>,
    is_binary: bool,
) -> Result<(Bytes, usize), String> {
    let mut tensors = Vec::new();
    let mut documents = Vec::new();
    for input in inputs {
        let Tensor { name, data_type, shape, .. } = input;
        let mut document = json!({"name": name, "datatype": data_type.protocol_name(), "shape": shape});
        if is_binary {
            let bytes = input.to_bytes()?;
            document["parameters"] = json!({"binary_data_size": bytes.len()});
            tensors.push(bytes);
        } else {
            document["data"] = input.to_json()?.into();
        }
        documents.push(document);
    }
    let mut head = json!({"inputs": documents});
    if is_binary {
        parameters.insert("binary_data_output".into(), true.into());
    }
    if !parameters.is_empty() {
        head["parameters"] = parameters.into();
    }
    if !outputs.is_empty() {
        head["outputs"] = outputs.into();
    }
    let head = head.to_string();
    let body =
        [head.as_bytes()].into_iter().chain(tensors.iter().map(Vec::as_slice)).collect::<Vec<_>>().concat();
    Ok((body.into(), head.len()))
}

/// One flat object, as the generate extension takes it.
fn flat(inputs: &[Tensor], mut parameters: Map<String, Value>) -> Result<Value, String> {
    for input in inputs {
        let mut values = input.to_json()?;
        let value = if values.len() == 1 { values.remove(0) } else { values.into() };
        parameters.insert(input.name.clone(), value);
    }
    Ok(parameters.into())
}

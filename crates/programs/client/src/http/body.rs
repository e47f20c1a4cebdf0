//! Bodies of requests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::tensor::{Contents, Region};
use crate::{Error, InferRequest, LoadOverrides, Parameter, Parameters, RequestedOutput, Tensor};

/// The body of an inference request, with the length of its JSON if binary tensors follow or are requested.
///
/// # Errors
/// A tensor has no JSON form, and the server takes no binary one.
pub(super) fn infer(request: &InferRequest, is_binary: bool) -> Result<(Bytes, Option<usize>), Error> {
    let inputs =
        request.inputs.iter().map(|tensor| input(tensor, is_binary)).collect::<Result<Vec<_>, _>>()?;
    let mut parameters = parameters(&request.parameters);
    if is_binary {
        parameters.insert("binary_data_output".into(), true.into());
    }
    let mut head = json!({"inputs": inputs});
    if !request.id.is_empty() {
        head["id"] = request.id.as_str().into();
    }
    if !parameters.is_empty() {
        head["parameters"] = parameters.into();
    }
    if !request.outputs.is_empty() {
        head["outputs"] = request.outputs.iter().map(output).collect();
    }
    let head = head.to_string().into_bytes();
    if !is_binary {
        return Ok((head.into(), None));
    }
    let length = head.len();
    let tensors: Vec<&Bytes> = request.inputs.iter().filter_map(|tensor| tensor.bytes().ok()).collect();
    let mut body = Vec::with_capacity(length + tensors.iter().map(|bytes| bytes.len()).sum::<usize>());
    body.extend(head);
    tensors.iter().for_each(|bytes| body.extend_from_slice(bytes));
    Ok((body.into(), Some(length)))
}

fn input(tensor: &Tensor, is_binary: bool) -> Result<Value, Error> {
    let data_type = tensor.data_type().protocol_name();
    let mut document = json!({"name": tensor.name(), "datatype": data_type, "shape": tensor.shape()});
    match tensor.contents() {
        Contents::Region(region) => document["parameters"] = in_region(region).into(),
        Contents::Bytes(bytes) if is_binary => {
            document["parameters"] = json!({"binary_data_size": bytes.len()})
        }
        Contents::Bytes(_) => document["data"] = tensor.to_json()?,
    }
    Ok(document)
}

fn output(output: &RequestedOutput) -> Value {
    let mut parameters = output.region.as_ref().map(in_region).unwrap_or_default();
    if let Some(count) = output.classes {
        parameters.insert("classification".into(), count.into());
    }
    let mut document = json!({"name": output.name});
    if !parameters.is_empty() {
        document["parameters"] = parameters.into();
    }
    document
}

fn in_region(region: &Region) -> Map<String, Value> {
    let mut parameters = Map::new();
    parameters.insert("shared_memory_region".into(), region.name.as_str().into());
    parameters.insert("shared_memory_byte_size".into(), region.size.into());
    if region.offset != 0 {
        parameters.insert("shared_memory_offset".into(), region.offset.into());
    }
    parameters
}

fn parameters(parameters: &Parameters) -> Map<String, Value> {
    let value = |value: &Parameter| match value {
        Parameter::Bool(value) => Value::from(*value),
        Parameter::Int(value) => Value::from(*value),
        Parameter::Double(value) => Value::from(*value),
        Parameter::Text(value) => Value::from(value.as_str()),
    };
    parameters.iter().map(|(name, parameter)| (name.clone(), value(parameter))).collect()
}

/// The body of a load.
pub(super) fn load(overrides: &LoadOverrides) -> Value {
    let mut parameters = Map::new();
    if let Some(config) = &overrides.config {
        parameters.insert("config".into(), config.as_str().into());
    }
    for (path, content) in &overrides.files {
        parameters.insert(format!("file:{path}"), STANDARD.encode(content).into());
    }
    if parameters.is_empty() { json!({}) } else { json!({"parameters": parameters}) }
}

//! Examples in the description: the models that can be asked at the time, and requests that they take.

use nereid_core::backend_api::{DataType, Shape};
use nereid_core::{InputSignature, Model, Server};
use serde_json::{Map, Value, json};

/// Of more models no examples are given.
const MODELS: usize = 16;

/// An example with more elements in an input would be no help to a reader.
const ELEMENTS: usize = 256;

/// A version of a model and requests that it takes.
pub(crate) struct Example {
    pub model: String,
    pub version: u64,
    /// A body for `infer`; `None` if the model is not asked that way.
    pub infer: Option<Value>,
    /// A body for `generate`.
    pub generate: Value,
}

/// Examples for the models that can be asked, as far as their inputs can be given in JSON.
pub(crate) fn of(server: &Server) -> Vec<Example> {
    server.models().ready().filter_map(|model| example(model)).take(MODELS).collect()
}

fn example(model: &Model) -> Option<Example> {
    let signature = model.signature();
    let mut inputs = Vec::new();
    let mut members = Map::new();
    for input in signature.inputs.iter().filter(|input| !input.optional) {
        let shape: Shape = signature.full_dims(&input.dims).iter().map(|dim| (*dim).max(1)).collect();
        let data = data(input, &shape)?;
        inputs.push(json!({
            "name": input.name, "datatype": input.data_type.protocol_name(), "shape": &shape[..], "data": data,
        }));
        members.insert(input.name.clone(), data);
    }
    let infer = (!model.is_decoupled()).then(|| json!({ "inputs": inputs }));
    Some(Example {
        model: model.name().to_owned(),
        version: model.version(),
        infer,
        generate: Value::Object(members),
    })
}

/// As many elements of no special value as the shape takes; `None` if that cannot be written, or would be long.
fn data(input: &InputSignature, shape: &Shape) -> Option<Value> {
    let count = shape.element_count().filter(|count| *count <= ELEMENTS)?;
    let element = match input.data_type {
        DataType::Bool => json!(false),
        DataType::Bytes => json!(""),
        DataType::Fp16 | DataType::Bf16 => return None,
        _ => json!(0),
    };
    Some(Value::Array(vec![element; count]))
}

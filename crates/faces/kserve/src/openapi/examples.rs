//! Examples in the document: models that are ready, and requests to them.

use nereid_core::backend_api::{DataType, Shape};
use nereid_core::{InputSignature, Model, ModelId, Server};
use serde_json::{Map, Value, json};

/// The most models with examples.
const MAX_MODELS: usize = 16;

/// The most elements of an input in an example; longer ones would not help the reader.
const MAX_ELEMENTS: usize = 256;

/// A version of a model, and sample requests to it.
pub(crate) struct Example {
    pub model: String,
    pub version: u64,
    /// A body for `infer`; `None` for decoupled models.
    pub infer: Option<Value>,
    /// A body for `generate`.
    pub generate: Value,
}

/// Examples for the models that are ready, visible to the caller, and whose inputs JSON can represent.
pub(crate) fn of(server: &Server, is_visible: impl Fn(&ModelId) -> bool) -> Vec<Example> {
    let models = server.models();
    let visible = models.ready().filter(|model| is_visible(model.id()));
    visible.filter_map(|model| example(model)).take(MAX_MODELS).collect()
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

/// The elements of an input with this shape; `None` if JSON cannot represent them, or if they are too many.
fn data(input: &InputSignature, shape: &Shape) -> Option<Value> {
    let count = shape.element_count().filter(|count| *count <= MAX_ELEMENTS)?;
    let element = match input.data_type {
        DataType::Bool => json!(false),
        DataType::Bytes => json!(""),
        DataType::Fp16 | DataType::Bf16 => return None,
        _ => json!(0),
    };
    Some(Value::Array(vec![element; count]))
}

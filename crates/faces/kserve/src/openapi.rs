//! The OpenAPI 3.1 document of this face, generated from its routes, with models of the server as examples.

pub(crate) mod examples;

use std::sync::LazyLock;

use bytes::Bytes;
use nereid_http::Route;
use serde_json::{Map, Value, json};

use self::examples::Example;
use crate::routes::Operation;

/// The document for these routes, as JSON.
pub(crate) fn document(routes: &[Route<Operation>], version: &str, examples: &[Example]) -> Value {
    let mut paths = Map::new();
    for Route { method, path, action, handler, .. } in routes {
        let item = paths.entry(*path).or_insert_with(|| json!({ "parameters": parameters(path, examples) }));
        let mut operation = operation(*handler, examples);
        set(&mut operation, "operationId", json!(operation_id(*handler, path)));
        let tags = action.group().map(|group| format!("{group:?}"));
        set(&mut operation, "tags", json!(tags.as_slice()));
        item[method.as_str().to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Nereid",
            "version": version,
            "description": "KServe's open inference protocol v2 with Triton's extensions",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": *SCHEMAS },
    })
}

/// The document, serialized.
pub(crate) fn written(routes: &[Route<Operation>], version: &str, examples: &[Example]) -> Bytes {
    document(routes, version, examples).to_string().into()
}

/// The parameters in a path.
fn parameters(path: &str, examples: &[Example]) -> Vec<Value> {
    let names = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name| {
        let pattern = if name == "version" { "^[0-9]{1,9}$" } else { "^[^/]+$" };
        let mut parameter = json!({
            "name": name, "in": "path", "required": true,
            "schema": { "type": "string", "minLength": 1, "pattern": pattern },
        });
        let value = |example: &Example| match name {
            "model" => Some(json!(example.model)),
            "version" => Some(json!(example.version.to_string())),
            _ => None,
        };
        add_examples(&mut parameter, examples, value);
        parameter
    };
    names.map(parameter).collect()
}

/// Adds the examples that have a value, by model and version.
fn add_examples(object: &mut Value, examples: &[Example], value: impl Fn(&Example) -> Option<Value>) {
    let named = examples.iter().filter_map(|example| {
        let name = format!("{} version {}", example.model, example.version);
        Some((name, json!({ "value": value(example)? })))
    });
    let named: Map<_, _> = named.collect();
    if !named.is_empty() {
        object["examples"] = Value::Object(named);
    }
}

/// The operation's name: its action, and the parameters in the path other than the model.
fn operation_id(operation: Operation, path: &str) -> String {
    let mut id = format!("{operation:?}");
    for (part, suffix) in [
        ("/versions/", "Version"),
        ("/region/", "Region"),
        ("/models/{model}/trace", "Model"),
        ("{repository}", "InRepository"),
    ] {
        if path.contains(part) {
            id.push_str(suffix);
        }
    }
    if path.ends_with('/') {
        id.push_str("Slash");
    }
    id
}

fn operation(handler: Operation, examples: &[Example]) -> Value {
    let (summary, request, answer) = described(handler);
    let success = match answer {
        Answer::Nothing => json!({ "description": "Success, without a body." }),
        Answer::Health(schema) => json!({
            "description": "The condition holds. The body is empty unless `Accept` names `application/json`.",
            "content": {
                "text/plain": { "schema": { "type": "string", "maxLength": 0 } },
                "application/json": { "schema": reference(schema) },
            },
        }),
        Answer::Json(schema) => {
            json!({ "description": "The answer.", "content": { "application/json": { "schema": reference(schema) } } })
        }
        Answer::Tensors => json!({
            "description": "The outputs: JSON, optionally followed by binary tensors.",
            "content": {
                "application/json": { "schema": reference("InferAnswer") },
                "application/octet-stream": {},
            },
        }),
        Answer::Events => json!({
            "description": "An event for each response of the model.",
            // OpenAPI 3.1 cannot describe the form of an event.
            "content": { "text/event-stream": {} },
        }),
    };
    let mut operation = json!({
        "summary": summary,
        "responses": {
            "200": success,
            "default": {
                "description": "The error.",
                "content": { "application/json": { "schema": reference("Error") } },
            },
        },
    });
    if let Some((schema, required)) = request {
        let mut content = json!({ "schema": reference(schema) });
        add_examples(&mut content, examples, |example| match handler {
            Operation::Infer => example.infer.clone(),
            Operation::Generate | Operation::GenerateStream => Some(example.generate.clone()),
            _ => None,
        });
        let content = json!({ "required": required, "content": { "application/json": content } });
        set(&mut operation, "requestBody", content);
    }
    operation
}

/// Sets a member of an object.
fn set(object: &mut Value, name: &str, value: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
}

enum Answer {
    Nothing,
    Health(&'static str),
    Json(&'static str),
    Tensors,
    Events,
}

/// An action's summary, the schema of its body and whether a body is required, and its reply.
fn described(operation: Operation) -> (&'static str, Option<(&'static str, bool)>, Answer) {
    use Answer::{Events, Health, Json, Nothing, Tensors};
    match operation {
        Operation::Live => ("Whether the server is up", None, Health("Live")),
        Operation::Ready => ("Whether the server is ready", None, Health("Ready")),
        Operation::ServerMetadata => {
            ("The server's name, version and extensions", None, Json("ServerMetadata"))
        }
        Operation::OpenApi => ("This document", None, Json("Object")),
        Operation::ModelMetadata => ("A model's inputs and outputs", None, Json("ModelMetadata")),
        Operation::ModelConfig => ("A model's configuration, completed", None, Json("Object")),
        Operation::ModelReady => ("Whether a model is ready", None, Nothing),
        Operation::ModelStatistics => ("A model's statistics", None, Json("Statistics")),
        Operation::AllStatistics => ("All models' statistics", None, Json("Statistics")),
        Operation::ModelRelease => {
            ("The release of a model: shares and results of its versions", None, Json("Object"))
        }
        Operation::DecideRelease => {
            ("Promote or withdraw a candidate of a release", Some(("ReleaseChange", true)), Nothing)
        }
        Operation::RepositoryIndex => {
            ("The models of the repository", Some(("Index", false)), Json("IndexAnswer"))
        }
        Operation::LoadModel => ("Load a model", Some(("Load", false)), Nothing),
        Operation::UnloadModel => ("Unload a model", Some(("Unload", false)), Nothing),
        Operation::Infer => ("Run inference", Some(("Infer", true)), Tensors),
        Operation::Generate => ("Run inference with a flat object", Some(("Generate", true)), Json("Object")),
        Operation::GenerateStream => {
            ("Run inference with a stream of responses", Some(("Generate", true)), Events)
        }
        Operation::Logging => ("The log settings", None, Json("Logging")),
        Operation::SetLogging => ("Change log settings", Some(("LoggingChange", true)), Json("Logging")),
        Operation::Trace => ("The trace settings", None, Json("Trace")),
        Operation::SetTrace => ("Change trace settings", Some(("TraceChange", true)), Json("Trace")),
        Operation::RegionStatus => ("The system shared memory regions", None, Json("Regions")),
        Operation::RegisterRegion => ("Register system shared memory", Some(("Region", true)), Nothing),
        Operation::UnregisterRegion => ("Unregister system shared memory", None, Nothing),
        Operation::CudaStatus => ("The CUDA shared memory regions", None, Json("Regions")),
        Operation::CudaRegister => ("Register CUDA shared memory", Some(("CudaRegion", true)), Nothing),
        Operation::CudaUnregister => ("Unregister CUDA shared memory", None, Nothing),
    }
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

static SCHEMAS: LazyLock<Value> = LazyLock::new(|| {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    let count = json!({ "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 });
    let flag = json!({ "type": "boolean" });
    let bytes = json!({ "type": "integer", "minimum": 0 });
    let object = |members: Value, required: Value| json!({ "type": "object", "properties": members, "required": required });
    let list = |schema: &str| json!({ "type": "array", "items": reference(schema) });
    // Numbers as strings, as this extension defines them; null clears a setting.
    let number = json!({ "type": ["string", "null"], "pattern": "^[0-9]{1,9}$" });
    let number_of_version = json!({ "type": "string", "pattern": "^[0-9]{1,9}$" });
    json!({
        "Object": { "type": "object" },
        "Error": object(json!({ "error": text }), json!(["error"])),
        "ServerMetadata": object(
            json!({ "name": text, "version": text, "extensions": texts }), json!(["name", "version", "extensions"])),
        "ModelMetadata": object(
            json!({ "name": text, "versions": texts, "platform": text, "inputs": list("TensorMetadata"),
                "outputs": list("TensorMetadata") }),
            json!(["name", "versions", "platform", "inputs", "outputs"])),
        "TensorMetadata": object(
            json!({ "name": text, "datatype": text, "shape": { "type": "array", "items": { "type": "integer" } } }),
            json!(["name", "datatype", "shape"])),
        "Statistics": object(json!({ "model_stats": list("Object") }), json!(["model_stats"])),
        "Live": object(json!({ "live": flag }), json!(["live"])),
        "Ready": object(json!({ "ready": flag }), json!(["ready"])),
        "Index": object(json!({ "ready": flag, "memory": flag }), json!([])),
        "IndexAnswer": list("IndexEntry"),
        "IndexEntry": object(
            json!({ "name": text, "version": text, "state": text, "reason": text, "memory": reference("Memory") }),
            json!(["name"])),
        "Memory": object(
            json!({ "server": bytes, "processes": bytes, "budget": bytes, "basis": text, "measured_at": bytes,
                "gpus": list("GpuMemory") }),
            json!(["budget", "basis"])),
        "GpuMemory": object(
            json!({ "gpu": { "type": "integer" }, "measured": bytes, "budget": bytes }), json!(["gpu", "budget"])),
        "Load": object(
            json!({ "parameters": { "type": "object", "additionalProperties": text } }), json!([])),
        "Unload": object(
            json!({ "parameters": object(json!({ "unload_dependents": flag }), json!([])) }), json!([])),
        "ReleaseChange": {
            "type": "object",
            "properties": { "promote": number_of_version, "withdraw": number_of_version, "reason": text },
            "oneOf": [{ "required": ["promote"] }, { "required": ["withdraw"] }],
        },
        "Infer": object(
            json!({ "id": text, "inputs": list("Input"), "outputs": list("Output"),
                "parameters": reference("Parameters") }),
            json!(["inputs"])),
        "InferAnswer": object(
            json!({ "id": text, "model_name": text, "model_version": text, "parameters": { "type": "object" },
                "outputs": list("AnswerOutput") }),
            json!(["model_name", "model_version", "outputs"])),
        "Input": object(
            json!({ "name": text, "datatype": reference("Datatype"), "shape": reference("Shape"),
                "parameters": reference("Parameters"), "data": { "type": "array" } }),
            json!(["name", "datatype", "shape"])),
        "Output": object(json!({ "name": text, "parameters": reference("Parameters") }), json!(["name"])),
        "AnswerOutput": object(
            json!({ "name": text, "datatype": reference("Datatype"), "shape": reference("Shape"),
                "parameters": { "type": "object" }, "data": { "type": "array" } }),
            json!(["name", "datatype", "shape"])),
        "Datatype": { "enum": ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
            "FP32", "FP64", "BYTES", "BF16"] },
        "Shape": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
        "Parameters": { "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } },
        "Generate": object(
            json!({ "id": text, "text_input": text, "parameters": reference("Parameters") }), json!([])),
        "Logging": object(
            json!({ "log_file": text, "log_info": flag, "log_warning": flag, "log_error": flag,
                "log_verbose_level": count, "log_format": reference("LogFormat") }),
            json!(["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"])),
        "LoggingChange": object(
            json!({ "log_info": flag, "log_warning": flag, "log_error": flag,
                "log_verbose_level": { "type": "integer", "minimum": 0, "maximum": i32::MAX },
                "log_format": reference("LogFormat") }),
            json!([])),
        "LogFormat": { "enum": ["default", "ISO8601"] },
        "Trace": object(
            json!({ "trace_level": texts, "trace_rate": text, "trace_count": text, "log_frequency": text,
                "trace_file": text, "trace_mode": text }),
            json!(["trace_level", "trace_rate", "trace_count", "trace_mode"])),
        "TraceChange": object(
            json!({ "trace_level": { "type": ["array", "null"], "items": { "enum": ["OFF", "TIMESTAMPS", "TENSORS"] } },
                "trace_rate": number, "trace_count": { "type": ["string", "null"], "pattern": "^(-1|[0-9]{1,9})$" },
                "log_frequency": number }),
            json!([])),
        "Region": object(
            json!({ "key": text, "offset": { "type": "integer", "minimum": 0 },
                "byte_size": { "type": "integer", "minimum": 1 } }),
            json!(["key", "byte_size"])),
        "Regions": list("Object"),
        "CudaRegion": object(
            json!({ "raw_handle": object(json!({ "b64": text }), json!(["b64"])), "byte_size": count,
                "device_id": count }),
            json!(["raw_handle", "byte_size", "device_id"])),
    })
});

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes::ROUTES;
    use crate::testing::{echo, server};

    fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(elements) => elements.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_route_is_documented_under_a_unique_name() {
        let document = document(ROUTES.all(), "1", &[]);
        let mut ids = BTreeSet::new();
        for Route { method, path, .. } in ROUTES.all() {
            let operation = &document["paths"][path][method.as_str().to_ascii_lowercase()];
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is a duplicate");
        }
        assert_eq!(ids.len(), ROUTES.all().len());
    }

    #[test]
    fn every_schema_exists_and_is_used() {
        let document = document(ROUTES.all(), "1", &[]);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let known: BTreeSet<_> =
            SCHEMAS.as_object().unwrap().keys().map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(found.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), known);
    }

    #[test]
    fn a_paths_parameters_are_declared() {
        let document = document(ROUTES.all(), "1", &[]);
        let declared = &document["paths"]["/v2/models/{model}/versions/{version}/infer"]["parameters"];
        assert_eq!((&declared[0]["name"], &declared[1]["name"]), (&json!("model"), &json!("version")));
        assert_eq!(document["paths"]["/v2"]["parameters"], json!([]));
    }

    #[test]
    fn ready_models_are_examples() {
        let config = r#"max_batch_size: 4
            input { name: "IN" data_type: TYPE_INT32 dims: [ 2, -1 ] }
            input { name: "MORE" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
            output { name: "OUT" data_type: TYPE_INT32 dims: [ 2, -1 ] }"#;
        let examples = examples::of(&server(config, echo), |_| true);
        let document = document(ROUTES.all(), "1", &examples);
        let path = &document["paths"]["/v2/models/{model}/versions/{version}/infer"];
        assert_eq!(path["parameters"][0]["examples"], json!({ "m version 1": { "value": "m" } }));
        assert_eq!(path["parameters"][1]["examples"], json!({ "m version 1": { "value": "1" } }));
        let body = |path: &Value| {
            path["post"]["requestBody"]["content"]["application/json"]["examples"]["m version 1"]["value"]
                .clone()
        };
        let input = json!({ "name": "IN", "datatype": "INT32", "shape": [1, 2, 1], "data": [0, 0] });
        assert_eq!(body(path), json!({ "inputs": [input] }));
        let generate = &document["paths"]["/v2/models/{model}/generate"];
        assert_eq!(body(generate), json!({ "IN": [0, 0] }));
        let load = &document["paths"]["/v2/repository/models/{model}/load"]["post"]["requestBody"];
        assert_eq!(load["content"]["application/json"]["examples"], Value::Null);
    }

    #[test]
    fn models_with_long_or_unrepresentable_inputs_are_not_examples() {
        for input in ["data_type: TYPE_INT32 dims: [ 257 ]", "data_type: TYPE_FP16 dims: [ 1 ]"] {
            let config = format!(
                r#"input {{ name: "IN" {input} }} output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}"#
            );
            assert!(examples::of(&server(&config, echo), |_| true).is_empty(), "{input}");
        }
    }
}

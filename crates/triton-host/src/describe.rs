//! What the server says of itself and its models, as JSON documents for C.

use std::collections::BTreeMap;

use nereid_backend_api::Result;
use nereid_core::{DurationStatistics, Model, Server};
use nereid_model_config::platform_name;
use nereid_protocol::EXTENSIONS;
use serde_json::{Value, json};

pub(crate) fn server(server: &Server) -> String {
    let options = server.options();
    json!({ "name": options.name, "version": options.version, "extensions": EXTENSIONS }).to_string()
}

pub(crate) fn model(server: &Server, name: &str, version: Option<u64>) -> Result<String> {
    let models = server.models();
    let model = models.find(name, version)?;
    let signature = model.signature();
    let tensor = |name: &str, data_type: nereid_backend_api::DataType, dims| json!({ "name": name, "datatype": data_type.protocol_name(), "shape": signature.full_dims(dims).to_vec() });
    let inputs = signature.inputs.iter().map(|input| tensor(&input.name, input.data_type, &input.dims));
    let outputs = signature.outputs.iter().map(|output| tensor(&output.name, output.data_type, &output.dims));
    let versions: Vec<_> = match version {
        Some(version) => vec![version.to_string()],
        None => models.ready_versions(name).map(|version| version.to_string()).collect(),
    };
    Ok(json!({
        "name": model.name(),
        "versions": versions,
        "platform": platform_name(model.config()),
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })
    .to_string())
}

/// Of all models where the name is empty.
pub(crate) fn statistics(server: &Server, name: &str, version: Option<u64>) -> Result<String> {
    let models = server.models();
    if !name.is_empty() {
        models.find(name, version)?;
    }
    let wanted = |model: &&std::sync::Arc<Model>| {
        name.is_empty() || (model.name() == name && version.is_none_or(|version| model.version() == version))
    };
    let all: Vec<_> = models.ready().filter(wanted).map(|model| counters(model)).collect();
    Ok(json!({ "model_stats": all }).to_string())
}

fn duration(duration: DurationStatistics) -> Value {
    json!({ "count": duration.count, "ns": duration.ns })
}

fn counters(model: &Model) -> Value {
    let counters = model.statistics().snapshot();
    let batches = counters.batches.iter().map(|(size, batch)| {
        json!({
            "batch_size": size,
            "compute_input": duration(batch.compute_input),
            "compute_infer": duration(batch.compute_infer),
            "compute_output": duration(batch.compute_output),
        })
    });
    let responses = counters.responses.iter().enumerate().map(|(place, response)| {
        let counters = json!({
            "compute_infer": duration(response.compute_infer),
            "compute_output": duration(response.compute_output),
            "success": duration(response.success),
            "fail": duration(response.fail),
            "empty_response": duration(response.empty_response),
            "cancel": duration(response.cancel),
        });
        (place.to_string(), counters)
    });
    let memory = model.memory_usage().into_iter().map(|usage| {
        json!({
            "type": usage.memory.kind.protocol_name(),
            "id": usage.memory.device,
            "byte_size": usage.byte_size,
        })
    });
    json!({
        "name": model.name(),
        "version": model.version().to_string(),
        "last_inference": counters.last_inference_ms,
        "inference_count": counters.inference_count,
        "execution_count": counters.execution_count,
        "inference_stats": {
            "success": duration(counters.success),
            "fail": duration(counters.fail),
            "queue": duration(counters.queue),
            "compute_input": duration(counters.compute_input),
            "compute_infer": duration(counters.compute_infer),
            "compute_output": duration(counters.compute_output),
            "cache_hit": duration(DurationStatistics::default()),
            "cache_miss": duration(DurationStatistics::default()),
        },
        "batch_stats": batches.collect::<Vec<_>>(),
        "response_stats": responses.collect::<BTreeMap<_, _>>(),
        "memory_usage": memory.collect::<Vec<_>>(),
    })
}

pub(crate) fn index(server: &Server, only_ready: bool) -> Result<String> {
    let line = |(name, status): (String, Option<nereid_core::ModelStatus>)| {
        let Some(status) = status else {
            return (!only_ready).then(|| json!({ "name": name }));
        };
        let state = status.state.name();
        let mut line = json!({ "name": name, "state": state });
        if let Some(version) = status.version {
            line["version"] = version.to_string().into();
        }
        if let Some(reason) = status.state.reason() {
            line["reason"] = reason.into();
        }
        (!only_ready || state == "READY").then_some(line)
    };
    let lines: Vec<_> = server.index()?.into_iter().filter_map(line).collect();
    Ok(Value::from(lines).to_string())
}

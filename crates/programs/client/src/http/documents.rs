//! Documents about servers and models.

use std::time::Duration;

use serde_json::Value;

use crate::{
    BatchStatistics, ConfiguredTensor, DataType, Error, IndexEntry, ModelConfig, ModelMetadata, ModelState,
    ModelStatistics, RegionStatus, Scheduling, ServerMetadata, TensorMetadata, Times,
};

pub(super) fn server_metadata(document: &Value) -> ServerMetadata {
    let extensions = texts(&document["extensions"]);
    ServerMetadata { name: text(document, "name"), version: text(document, "version"), extensions }
}

pub(super) fn model_metadata(document: &Value) -> Result<ModelMetadata, Error> {
    let tensors = |name: &str| list(&document[name]).map(tensor_metadata).collect::<Result<_, _>>();
    Ok(ModelMetadata {
        name: text(document, "name"),
        versions: texts(&document["versions"]),
        platform: text(document, "platform"),
        inputs: tensors("inputs")?,
        outputs: tensors("outputs")?,
    })
}

fn tensor_metadata(document: &Value) -> Result<TensorMetadata, Error> {
    let name = text(document, "name");
    let data_type = data_type(&name, document["datatype"].as_str(), DataType::from_protocol_name)?;
    Ok(TensorMetadata { name, data_type, shape: sizes(&document["shape"]) })
}

pub(super) fn model_config(document: &Value) -> Result<ModelConfig, Error> {
    let tensors = |name: &str| list(&document[name]).map(configured_tensor).collect::<Result<_, _>>();
    let parameters = document["parameters"].as_object().into_iter().flatten();
    Ok(ModelConfig {
        name: text(document, "name"),
        platform: text(document, "platform"),
        backend: text(document, "backend"),
        max_batch_size: number(&document["max_batch_size"]).try_into().unwrap_or_default(),
        inputs: tensors("input")?,
        outputs: tensors("output")?,
        scheduling: scheduling(document),
        is_decoupled: document["model_transaction_policy"]["decoupled"] == true,
        parameters: parameters.map(|(name, value)| (name.clone(), text(value, "string_value"))).collect(),
    })
}

fn configured_tensor(document: &Value) -> Result<ConfiguredTensor, Error> {
    let name = text(document, "name");
    let data_type = data_type(&name, document["data_type"].as_str(), DataType::from_config_name)?;
    let is_optional = document["optional"] == true;
    Ok(ConfiguredTensor { name, data_type, dims: sizes(&document["dims"]), is_optional })
}

fn scheduling(document: &Value) -> Scheduling {
    if let Some(batching) = document.get("dynamic_batching") {
        let preferred = list(&batching["preferred_batch_size"]);
        let delay = number(&batching["max_queue_delay_microseconds"]);
        return Scheduling::DynamicBatching {
            preferred_batch_sizes: preferred.filter_map(|size| number(size).try_into().ok()).collect(),
            max_queue_delay: Duration::from_micros(delay),
        };
    }
    if let Some(batching) = document.get("sequence_batching") {
        let idle = number(&batching["max_sequence_idle_microseconds"]);
        return Scheduling::SequenceBatching { max_idle: Duration::from_micros(idle) };
    }
    if let Some(ensemble) = document.get("ensemble_scheduling") {
        let models = list(&ensemble["step"]).map(|step| text(step, "model_name")).collect();
        return Scheduling::Ensemble { models };
    }
    Scheduling::Default
}

pub(super) fn statistics(document: &Value) -> Vec<ModelStatistics> {
    list(&document["model_stats"]).map(statistics_of).collect()
}

fn statistics_of(document: &Value) -> ModelStatistics {
    let inference = |name: &str| times(&document["inference_stats"][name]);
    ModelStatistics {
        name: text(document, "name"),
        version: text(document, "version"),
        last_inference: number(&document["last_inference"]),
        inference_count: number(&document["inference_count"]),
        execution_count: number(&document["execution_count"]),
        success: inference("success"),
        fail: inference("fail"),
        queue: inference("queue"),
        compute_input: inference("compute_input"),
        compute_infer: inference("compute_infer"),
        compute_output: inference("compute_output"),
        cache_hit: inference("cache_hit"),
        cache_miss: inference("cache_miss"),
        batches: list(&document["batch_stats"]).map(batch).collect(),
    }
}

fn batch(document: &Value) -> BatchStatistics {
    BatchStatistics {
        batch_size: number(&document["batch_size"]),
        compute_input: times(&document["compute_input"]),
        compute_infer: times(&document["compute_infer"]),
        compute_output: times(&document["compute_output"]),
    }
}

fn times(document: &Value) -> Times {
    Times { count: number(&document["count"]), total: Duration::from_nanos(number(&document["ns"])) }
}

pub(super) fn index(document: &Value) -> Vec<IndexEntry> {
    let entry = |document: &Value| IndexEntry {
        name: text(document, "name"),
        version: text(document, "version"),
        state: ModelState::from(document["state"].as_str().unwrap_or_default()),
        reason: text(document, "reason"),
    };
    list(document).map(entry).collect()
}

pub(super) fn regions(document: &Value) -> Vec<RegionStatus> {
    let region = |document: &Value| RegionStatus {
        name: text(document, "name"),
        key: text(document, "key"),
        offset: number(&document["offset"]),
        size: number(&document["byte_size"]),
    };
    list(document).map(region).collect()
}

/// A data type by its name; `Err` for a name that the protocol lacks.
fn data_type(
    tensor: &str,
    name: Option<&str>,
    known: impl Fn(&str) -> Option<DataType>,
) -> Result<DataType, Error> {
    let name = name.unwrap_or_default();
    known(name).ok_or_else(|| Error::response(format!("tensor '{tensor}' has the unknown datatype '{name}'")))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(document: &Value, name: &str) -> String {
    document[name].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    list(value).filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Some servers write 64-bit numbers as texts.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}

fn sizes(value: &Value) -> Vec<i64> {
    list(value).map(|size| size.as_i64().or_else(|| size.as_str()?.parse().ok()).unwrap_or(-1)).collect()
}

//! What the server says of itself and of its models: health, metadata, statistics.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::StatusCode;
use nereid_core::backend_api::{DataType, Error, Result, Shape};
use nereid_core::model_config::{platform_name, to_json};
use nereid_core::{DurationStatistics, Model, Server};
use nereid_http_transport::{Reply, reply};
use nereid_protocol::EXTENSIONS;
use serde::Serialize;

use crate::routes::Target;

#[derive(Serialize)]
struct ServerMetadata<'a> {
    name: &'a str,
    version: &'a str,
    extensions: &'a [&'a str],
}

#[derive(Serialize)]
struct ModelMetadata<'a> {
    name: &'a str,
    versions: Vec<String>,
    platform: &'a str,
    inputs: Vec<TensorMetadata<'a>>,
    outputs: Vec<TensorMetadata<'a>>,
}

#[derive(Serialize)]
struct TensorMetadata<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: Vec<i64>,
}

pub(crate) async fn server_ready(server: &Server) -> Reply {
    if server.ready().await {
        reply::empty(StatusCode::OK)
    } else {
        // The reference's answer of a server that is up and not ready.
        reply::empty(StatusCode::BAD_REQUEST)
    }
}

pub(crate) fn server(server: &Server) -> Reply {
    let options = server.options();
    let metadata = ServerMetadata { name: &options.name, version: &options.version, extensions: EXTENSIONS };
    reply::json(StatusCode::OK, &metadata)
}

pub(crate) async fn model_ready(server: &Server, target: &Target<'_>) -> Result<Reply> {
    Ok(match server.model_ready(&target.model, target.version()?).await {
        Ok(()) => reply::empty(StatusCode::OK),
        // The reference answers 400 here, also for a model it does not know.
        Err(error) => reply::error_text(StatusCode::BAD_REQUEST, error.message()),
    })
}

pub(crate) fn model(server: &Server, target: &Target<'_>) -> Result<Reply> {
    let version = target.version()?;
    let models = server.models();
    let model = models.find(&target.model, version)?;
    let signature = model.signature();
    let tensor = |name, data_type: DataType, dims: &Shape| TensorMetadata {
        name,
        datatype: data_type.protocol_name(),
        shape: signature.full_dims(dims).to_vec(),
    };
    let versions = match version {
        Some(version) => vec![version.to_string()],
        None => models.ready_versions(&target.model).map(|version| version.to_string()).collect(),
    };
    let metadata = ModelMetadata {
        name: model.name(),
        versions,
        platform: platform_name(model.config()),
        inputs: signature
            .inputs
            .iter()
            .map(|input| tensor(&input.name, input.data_type, &input.dims))
            .collect(),
        outputs: signature
            .outputs
            .iter()
            .map(|output| tensor(&output.name, output.data_type, &output.dims))
            .collect(),
    };
    Ok(reply::json(StatusCode::OK, &metadata))
}

/// The configuration with its defaults filled in, as the model is served with it. It is the same for each version.
pub(crate) fn configuration(server: &Server, target: &Target<'_>) -> Result<Reply> {
    let version = target.version()?;
    let models = server.models();
    let model = models.find(&target.model, version)?;
    Ok(reply::json_bytes(StatusCode::OK, to_json(model.config())))
}

#[derive(Serialize)]
struct Statistics {
    model_stats: Vec<ModelStatistics>,
}

#[derive(Serialize)]
struct ModelStatistics {
    name: String,
    version: String,
    last_inference: u64,
    inference_count: u64,
    execution_count: u64,
    inference_stats: InferenceStatistics,
    batch_stats: Vec<BatchStatistics>,
    response_stats: BTreeMap<usize, ResponseStatistics>,
    memory_usage: Vec<MemoryUsage>,
}

#[derive(Serialize)]
struct MemoryUsage {
    #[serde(rename = "type")]
    kind: &'static str,
    id: i64,
    byte_size: u64,
}

#[derive(Serialize)]
struct InferenceStatistics {
    success: Durations,
    fail: Durations,
    queue: Durations,
    compute_input: Durations,
    compute_infer: Durations,
    compute_output: Durations,
    cache_hit: Durations,
    cache_miss: Durations,
}

#[derive(Serialize)]
struct BatchStatistics {
    batch_size: usize,
    compute_input: Durations,
    compute_infer: Durations,
    compute_output: Durations,
}

#[derive(Serialize)]
struct ResponseStatistics {
    compute_infer: Durations,
    compute_output: Durations,
    success: Durations,
    fail: Durations,
    empty_response: Durations,
    cancel: Durations,
}

#[derive(Serialize)]
struct Durations {
    count: u64,
    ns: u64,
}

impl From<DurationStatistics> for Durations {
    fn from(DurationStatistics { count, ns }: DurationStatistics) -> Self {
        Self { count, ns }
    }
}

pub(crate) fn statistics(server: &Server, target: Option<&Target<'_>>) -> Result<Reply> {
    let models = server.models();
    let model_stats: Vec<_> = match target {
        None => models.ready().map(model_statistics).collect(),
        Some(target) => {
            let version = target.version()?;
            // The reference answers 400 here, also for a model it does not know.
            models
                .find(&target.model, version)
                .map_err(|error| Error::invalid_arg(error.message().to_owned()))?;
            let wanted = |model: &&Arc<Model>| {
                model.name() == target.model && version.is_none_or(|version| model.version() == version)
            };
            models.ready().filter(wanted).map(model_statistics).collect()
        }
    };
    Ok(reply::json(StatusCode::OK, &Statistics { model_stats }))
}

fn model_statistics(model: &Arc<Model>) -> ModelStatistics {
    let statistics = model.statistics().snapshot();
    ModelStatistics {
        name: model.name().to_owned(),
        version: model.version().to_string(),
        last_inference: statistics.last_inference_ms,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: InferenceStatistics {
            success: statistics.success.into(),
            fail: statistics.fail.into(),
            queue: statistics.queue.into(),
            compute_input: statistics.compute_input.into(),
            compute_infer: statistics.compute_infer.into(),
            compute_output: statistics.compute_output.into(),
            cache_hit: DurationStatistics::default().into(),
            cache_miss: DurationStatistics::default().into(),
        },
        batch_stats: statistics
            .batches
            .iter()
            .map(|(&batch_size, batch)| BatchStatistics {
                batch_size,
                compute_input: batch.compute_input.into(),
                compute_infer: batch.compute_infer.into(),
                compute_output: batch.compute_output.into(),
            })
            .collect(),
        response_stats: statistics
            .responses
            .iter()
            .map(|response| ResponseStatistics {
                compute_infer: response.compute_infer.into(),
                compute_output: response.compute_output.into(),
                success: response.success.into(),
                fail: response.fail.into(),
                empty_response: response.empty_response.into(),
                cancel: response.cancel.into(),
            })
            .enumerate()
            .collect(),
        memory_usage: model
            .memory_usage()
            .into_iter()
            .map(|usage| MemoryUsage {
                kind: usage.memory.kind.protocol_name(),
                id: usage.memory.device,
                byte_size: usage.byte_size,
            })
            .collect(),
    }
}

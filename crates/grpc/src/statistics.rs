//! The counters of models.

use std::sync::Arc;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{DurationStatistics, Model, Server};

use crate::metadata::version;
use crate::proto::{
    InferBatchStatistics, InferResponseStatistics, InferStatistics, MemoryUsage, ModelStatistics,
    ModelStatisticsResponse, StatisticDuration,
};

/// The counters of a model, of one of its versions, or of all models.
///
/// # Errors
/// `InvalidArg` if there is no such model, or it is not ready.
pub(crate) fn of(server: &Server, name: &str, text: &str) -> Result<ModelStatisticsResponse> {
    let models = server.models();
    let version = version(text, name)?;
    if !name.is_empty() {
        // The reference's code for a model it does not know.
        models.find(name, version).map_err(|error| Error::invalid_arg(error.message().to_owned()))?;
    }
    let wanted = |model: &&Arc<Model>| {
        name.is_empty() || model.name() == name && version.is_none_or(|version| model.version() == version)
    };
    Ok(ModelStatisticsResponse { model_stats: models.ready().filter(wanted).map(of_model).collect() })
}

fn of_model(model: &Arc<Model>) -> ModelStatistics {
    let statistics = model.statistics().snapshot();
    let batches = statistics.batches.iter().map(|(&batch_size, batch)| InferBatchStatistics {
        batch_size: batch_size as u64,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    });
    let responses = statistics.responses.iter().map(|response| InferResponseStatistics {
        compute_infer: duration(response.compute_infer),
        compute_output: duration(response.compute_output),
        success: duration(response.success),
        fail: duration(response.fail),
        empty_response: duration(response.empty_response),
        cancel: duration(response.cancel),
    });
    ModelStatistics {
        name: model.name().into(),
        version: model.version().to_string(),
        last_inference: statistics.last_inference_ms,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(InferStatistics {
            success: duration(statistics.success),
            fail: duration(statistics.fail),
            queue: duration(statistics.queue),
            compute_input: duration(statistics.compute_input),
            compute_infer: duration(statistics.compute_infer),
            compute_output: duration(statistics.compute_output),
            cache_hit: duration(DurationStatistics::default()),
            cache_miss: duration(DurationStatistics::default()),
        }),
        batch_stats: batches.collect(),
        memory_usage: model
            .memory_usage()
            .into_iter()
            .map(|usage| MemoryUsage {
                r#type: usage.memory.kind.protocol_name().to_owned(),
                id: usage.memory.device,
                byte_size: usage.byte_size,
            })
            .collect(),
        response_stats: responses
            .enumerate()
            .map(|(place, response)| (place.to_string(), response))
            .collect(),
    }
}

fn duration(DurationStatistics { count, ns }: DurationStatistics) -> Option<StatisticDuration> {
    Some(StatisticDuration { count, ns })
}

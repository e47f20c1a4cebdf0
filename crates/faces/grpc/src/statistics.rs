//! Statistics of models.

use nereid_core::backend_api::Result;
use nereid_core::{ModelId, ScopedName, Server};
use nereid_protocol::as_invalid_arg;
use nereid_protocol::documents::{self, Durations, Statistics};

use crate::metadata::version;
use crate::proto::{
    InferBatchStatistics, InferResponseStatistics, InferStatistics, MemoryUsage, ModelStatistics,
    ModelStatisticsResponse, StatisticDuration,
};

/// The statistics of a model, of one of its versions, or of all models.
///
/// # Errors
/// `InvalidArg` if the model is unknown or not ready.
pub(crate) fn of(
    server: &Server,
    name: ScopedName<'_>,
    text: &str,
    is_visible: impl Fn(&ModelId) -> bool,
) -> Result<ModelStatisticsResponse> {
    let version = version(text, name.name)?;
    let statistics = match name.name {
        "" => Statistics::of_all(server, is_visible),
        // The reference's code for unknown models.
        _ => Statistics::of(server, name, version).map_err(as_invalid_arg)?,
    };
    Ok(ModelStatisticsResponse { model_stats: statistics.model_stats.into_iter().map(wire).collect() })
}

fn wire(statistics: documents::ModelStatistics) -> ModelStatistics {
    let requests = statistics.inference_stats;
    let batches = statistics.batch_stats.into_iter().map(|batch| InferBatchStatistics {
        batch_size: batch.batch_size,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    });
    let responses = statistics.response_stats.into_iter().map(|(index, response)| {
        let response = InferResponseStatistics {
            compute_infer: duration(response.compute_infer),
            compute_output: duration(response.compute_output),
            success: duration(response.success),
            fail: duration(response.fail),
            empty_response: duration(response.empty_response),
            cancel: duration(response.cancel),
        };
        (index.to_string(), response)
    });
    let memory = statistics.memory_usage.into_iter().map(|usage| MemoryUsage {
        r#type: usage.kind.to_owned(),
        id: usage.id,
        byte_size: usage.byte_size,
    });
    ModelStatistics {
        name: statistics.name,
        version: statistics.version,
        last_inference: statistics.last_inference,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(InferStatistics {
            success: duration(requests.success),
            fail: duration(requests.fail),
            queue: duration(requests.queue),
            compute_input: duration(requests.compute_input),
            compute_infer: duration(requests.compute_infer),
            compute_output: duration(requests.compute_output),
            cache_hit: duration(requests.cache_hit),
            cache_miss: duration(requests.cache_miss),
        }),
        batch_stats: batches.collect(),
        response_stats: responses.collect(),
        memory_usage: memory.collect(),
    }
}

fn duration(Durations { count, ns }: Durations) -> Option<StatisticDuration> {
    Some(StatisticDuration { count, ns })
}

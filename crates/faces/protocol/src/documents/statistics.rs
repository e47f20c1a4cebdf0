//! Statistics of models (Triton's statistics extension).

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::Result;
use nereid_core::{DurationStatistics, Model, ModelId, ScopedName, Server};
use serde::Serialize;

/// The statistics of some models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// One entry per version.
    pub model_stats: Vec<ModelStatistics>,
}

/// The statistics of one version of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: String,
    /// Time of the last execution, in milliseconds since the Unix epoch; 0 if never.
    pub last_inference: u64,
    /// Inferences: a request of batch size n counts n times.
    pub inference_count: u64,
    /// Executions: a batch counts once.
    pub execution_count: u64,
    /// Counts and durations of requests.
    pub inference_stats: InferenceStatistics,
    /// Executions by batch size.
    pub batch_stats: Vec<BatchStatistics>,
    /// Responses by their index in the stream of a request.
    pub response_stats: BTreeMap<usize, ResponseStatistics>,
    /// The memory the model uses.
    pub memory_usage: Vec<MemoryUsage>,
}

/// Counts and durations of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct InferenceStatistics {
    pub success: Durations,
    pub fail: Durations,
    pub queue: Durations,
    pub compute_input: Durations,
    pub compute_infer: Durations,
    pub compute_output: Durations,
    pub cache_hit: Durations,
    pub cache_miss: Durations,
}

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: Durations,
    pub compute_infer: Durations,
    pub compute_output: Durations,
}

/// Responses at one index in the streams of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub struct ResponseStatistics {
    pub compute_infer: Durations,
    pub compute_output: Durations,
    pub success: Durations,
    pub fail: Durations,
    pub empty_response: Durations,
    pub cancel: Durations,
}

/// A model's memory usage in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryUsage {
    /// The kind of memory.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The device.
    pub id: i64,
    /// Size in bytes.
    pub byte_size: u64,
}

/// Number of events and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Durations {
    /// Number of events.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub ns: u64,
}

impl From<DurationStatistics> for Durations {
    fn from(DurationStatistics { count, ns }: DurationStatistics) -> Self {
        Self { count, ns }
    }
}

impl Statistics {
    /// The statistics of all ready models that are visible.
    pub fn of_all(server: &Server, is_visible: impl Fn(&ModelId) -> bool) -> Self {
        let models = server.models();
        let visible = models.ready().filter(|model| is_visible(model.id()));
        Self { model_stats: visible.map(ModelStatistics::of).collect() }
    }

    /// The statistics of a model, or of one of its versions.
    ///
    /// # Errors
    /// The model is unknown or not ready.
    pub fn of(server: &Server, name: ScopedName<'_>, version: Option<u64>) -> Result<Self> {
        let models = server.models();
        models.find(name, version).map_err(|error| match version {
            Some(_) if models.find(name, None).is_ok() => {
                error.context(format_args!("requested model version is not available for model '{name}'"))
            }
            _ => error.context(format_args!("requested model '{name}' is not available")),
        })?;
        let selected = |model: &&Arc<Model>| {
            model.name() == name.name
                && name.scope.contains(model.id())
                && version.is_none_or(|version| model.version() == version)
        };
        Ok(Self { model_stats: models.ready().filter(selected).map(ModelStatistics::of).collect() })
    }
}

impl ModelStatistics {
    fn of(model: &Arc<Model>) -> Self {
        let statistics = model.statistics().snapshot();
        let batches = statistics.batches.iter().map(|(&batch_size, batch)| BatchStatistics {
            batch_size: batch_size as u64,
            compute_input: batch.compute_input.into(),
            compute_infer: batch.compute_infer.into(),
            compute_output: batch.compute_output.into(),
        });
        let responses = statistics.responses.iter().map(|response| ResponseStatistics {
            compute_infer: response.compute_infer.into(),
            compute_output: response.compute_output.into(),
            success: response.success.into(),
            fail: response.fail.into(),
            empty_response: response.empty_response.into(),
            cancel: response.cancel.into(),
        });
        let memory = model.memory_usage().into_iter().map(|usage| MemoryUsage {
            kind: usage.memory.kind.protocol_name(),
            id: usage.memory.device,
            byte_size: usage.byte_size,
        });
        Self {
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
                cache_hit: statistics.cache_hit.into(),
                cache_miss: statistics.cache_miss.into(),
            },
            batch_stats: batches.collect(),
            response_stats: responses.enumerate().collect(),
            memory_usage: memory.collect(),
        }
    }
}

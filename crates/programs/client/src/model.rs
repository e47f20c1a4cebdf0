//! Metadata, configurations, statistics and states of models.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::DataType;

/// A server's name, version and extensions of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerMetadata {
    /// The name of the program.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The extensions that the server has.
    pub extensions: Vec<String>,
}

/// The signature of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMetadata {
    /// The model.
    pub name: String,
    /// The versions that are ready.
    pub versions: Vec<String>,
    /// The framework.
    pub platform: String,
    /// The inputs.
    pub inputs: Vec<TensorMetadata>,
    /// The outputs.
    pub outputs: Vec<TensorMetadata>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The shape, with the batch dimension; -1 for any size.
    pub shape: Vec<i64>,
}

/// The main settings of a model's configuration, as the server completed it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The model.
    pub name: String,
    /// The platform, or empty.
    pub platform: String,
    /// The backend.
    pub backend: String,
    /// The most rows of a batch; 0 for a model without batch dimension.
    pub max_batch_size: u32,
    /// The inputs.
    pub inputs: Vec<ConfiguredTensor>,
    /// The outputs.
    pub outputs: Vec<ConfiguredTensor>,
    /// How requests are scheduled.
    pub scheduling: Scheduling,
    /// Whether a request may have any number of responses.
    pub is_decoupled: bool,
    /// The parameters.
    pub parameters: BTreeMap<String, String>,
}

/// An input or output of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredTensor {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The shape, without the batch dimension; -1 for any size.
    pub dims: Vec<i64>,
    /// Whether requests may omit the input.
    pub is_optional: bool,
}

/// How the requests of a model are scheduled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// In order, one by one.
    #[default]
    Default,
    /// In batches.
    DynamicBatching {
        /// The sizes that the batcher prefers.
        preferred_batch_sizes: Vec<u32>,
        /// The longest wait for more requests.
        max_queue_delay: Duration,
    },
    /// By sequences.
    SequenceBatching {
        /// The time after which an idle sequence ends.
        max_idle: Duration,
    },
    /// By other models.
    Ensemble {
        /// The models of the steps.
        models: Vec<String>,
    },
}

/// Counters of a version of a model since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelStatistics {
    /// The model.
    pub name: String,
    /// The version.
    pub version: String,
    /// The time of the last request, in milliseconds since 1970; 0 for none.
    pub last_inference: u64,
    /// Executed rows of batches.
    pub inference_count: u64,
    /// Executions.
    pub execution_count: u64,
    /// Successful requests.
    pub success: Times,
    /// Failed requests.
    pub fail: Times,
    /// Waits in the queue.
    pub queue: Times,
    /// Preparations of inputs.
    pub compute_input: Times,
    /// Executions of the model.
    pub compute_infer: Times,
    /// Deliveries of outputs.
    pub compute_output: Times,
    /// Responses from the cache.
    pub cache_hit: Times,
    /// Requests that the cache could not answer.
    pub cache_miss: Times,
    /// The executions by size of their batch.
    pub batches: Vec<BatchStatistics>,
}

/// The executions of batches of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// The size.
    pub batch_size: u64,
    /// Preparations of inputs.
    pub compute_input: Times,
    /// Executions of the model.
    pub compute_infer: Times,
    /// Deliveries of outputs.
    pub compute_output: Times,
}

/// How often something happened, and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The number of times.
    pub count: u64,
    /// The time of all together.
    pub total: Duration,
}

/// A version of a model in the repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// The version; empty for a model that was never loaded.
    pub version: String,
    /// The state.
    pub state: ModelState,
    /// The reason of a failed load; otherwise empty.
    pub reason: String,
}

/// The state of a version of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelState {
    /// The server reports no state: the model was never loaded.
    #[default]
    Unloaded,
    /// Requests are accepted.
    Ready,
    /// The version was unloaded, or could not be loaded.
    Unavailable,
    /// The version is being loaded.
    Loading,
    /// The version is being unloaded.
    Unloading,
    /// A state that this client does not know.
    Other(String),
}

impl From<&str> for ModelState {
    fn from(state: &str) -> Self {
        match state {
            "" => Self::Unloaded,
            "READY" => Self::Ready,
            "UNAVAILABLE" => Self::Unavailable,
            "LOADING" => Self::Loading,
            "UNLOADING" => Self::Unloading,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// A load of a model that replaces its configuration or its files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOverrides {
    pub(crate) config: Option<String>,
    pub(crate) files: Vec<(String, bytes::Bytes)>,
}

impl LoadOverrides {
    /// Replaces the configuration by one in JSON.
    #[must_use]
    pub fn config(mut self, json: impl Into<String>) -> Self {
        self.config = Some(json.into());
        self
    }

    /// Adds a file, with its path in the model's folder such as `1/model.onnx`. The files replace the repository's; a configuration
    /// is required.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<bytes::Bytes>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }
}

/// A registered region of shared memory, as the server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionStatus {
    /// The name of the region.
    pub name: String,
    /// The key of the shared memory.
    pub key: String,
    /// Where the region begins in it.
    pub offset: u64,
    /// The bytes of the region.
    pub size: u64,
}

//! The actions of requests, for authorization.

use super::ApiGroup;

/// The action of a request. Each route and call of every protocol declares one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Asks whether the server or a model is live or ready.
    Health,
    /// Reads the metadata of the server or a model.
    Metadata,
    /// Reads a description of the protocol: the OpenAPI document, gRPC reflection.
    Describe,
    /// Reads a model's configuration.
    ModelConfig,
    /// Reads the statistics of models.
    Statistics,
    /// Reads metrics.
    Metrics,
    /// Reads a static page.
    Page,
    /// Runs a model.
    Infer,
    /// Lists the repository.
    Index,
    /// Loads a model.
    Load,
    /// Unloads a model.
    Unload,
    /// Lists regions of shared memory.
    ListRegions,
    /// Registers or unregisters a region of shared memory.
    ChangeRegions,
    /// Reads trace settings.
    ReadTrace,
    /// Changes trace settings.
    ChangeTrace,
    /// Reads log settings.
    ReadLog,
    /// Changes log settings.
    ChangeLog,
}

impl Action {
    /// The API group whose key restricts the action. Metrics are on their own port instead, and pages reveal nothing
    /// about the server.
    pub const fn group(self) -> Option<ApiGroup> {
        Some(match self {
            Self::Health => ApiGroup::Health,
            Self::Metadata | Self::Describe => ApiGroup::Metadata,
            Self::ModelConfig => ApiGroup::ModelConfig,
            Self::Statistics => ApiGroup::Statistics,
            Self::Metrics | Self::Page => return None,
            Self::Infer => ApiGroup::Inference,
            Self::Index | Self::Load | Self::Unload => ApiGroup::ModelRepository,
            Self::ListRegions | Self::ChangeRegions => ApiGroup::SharedMemory,
            Self::ReadTrace | Self::ChangeTrace => ApiGroup::Trace,
            Self::ReadLog | Self::ChangeLog => ApiGroup::Logging,
        })
    }
}

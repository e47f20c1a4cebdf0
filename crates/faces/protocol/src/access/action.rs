//! The actions of requests, for authorization.

use super::ApiGroup;
use super::right::{Need, Right};

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
    /// Reads metrics of the machine, of repositories and of backends, which belong to no model.
    MachineMetrics,
    /// Reads a static page.
    Page,
    /// Runs a model.
    Infer,
    /// Lists the repository.
    Index,
    /// Loads a model.
    Load,
    /// Loads a model with files or a configuration of the client's, or from a folder that the client names.
    LoadFiles,
    /// Unloads a model.
    Unload,
    /// Promotes or withdraws a version of a model with a release.
    ChangeRelease,
    /// Lists regions of shared memory.
    ListRegions,
    /// Registers or unregisters a region of shared memory.
    ChangeRegions,
    /// Reads inputs from, or writes outputs to, a region of shared memory.
    UseRegions,
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
    /// about the server. The use of a region is part of an inference.
    pub const fn group(self) -> Option<ApiGroup> {
        Some(match self {
            Self::Health => ApiGroup::Health,
            Self::Metadata | Self::Describe => ApiGroup::Metadata,
            Self::ModelConfig => ApiGroup::ModelConfig,
            Self::Statistics => ApiGroup::Statistics,
            Self::Metrics | Self::MachineMetrics | Self::Page | Self::UseRegions => return None,
            Self::Infer => ApiGroup::Inference,
            Self::Index | Self::Load | Self::LoadFiles | Self::Unload | Self::ChangeRelease => {
                ApiGroup::ModelRepository
            }
            Self::ListRegions | Self::ChangeRegions => ApiGroup::SharedMemory,
            Self::ReadTrace | Self::ChangeTrace => ApiGroup::Trace,
            Self::ReadLog | Self::ChangeLog => ApiGroup::Logging,
        })
    }

    /// The action's name in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metadata => "metadata",
            Self::Describe => "describe",
            Self::ModelConfig => "model-config",
            Self::Statistics => "statistics",
            Self::Metrics => "metrics",
            Self::MachineMetrics => "machine-metrics",
            Self::Page => "page",
            Self::Infer => "infer",
            Self::Index => "index",
            Self::Load => "load",
            Self::LoadFiles => "load-files",
            Self::Unload => "unload",
            Self::ChangeRelease => "change-release",
            Self::ListRegions => "list-regions",
            Self::ChangeRegions => "change-regions",
            Self::UseRegions => "use-regions",
            Self::ReadTrace => "read-trace",
            Self::ChangeTrace => "change-trace",
            Self::ReadLog => "read-log",
            Self::ChangeLog => "change-log",
        }
    }

    /// Whether the action changes what the server serves, or how.
    pub const fn is_change(self) -> bool {
        matches!(
            self,
            Self::Load
                | Self::LoadFiles
                | Self::Unload
                | Self::ChangeRelease
                | Self::ChangeRegions
                | Self::ChangeTrace
                | Self::ChangeLog
        )
    }

    /// Whether a request whose route or call declares this action may turn out to be a change: gRPC has one call to read and to
    /// change settings.
    pub const fn may_change(self) -> bool {
        self.is_change() || matches!(self, Self::ReadTrace | Self::ReadLog)
    }

    /// The right that the action needs under an access policy.
    pub const fn need(self) -> Need {
        match self {
            Self::Page => Need::Nothing,
            Self::Health => Need::Sight,
            Self::Metadata
            | Self::Describe
            | Self::ModelConfig
            | Self::Statistics
            | Self::Metrics
            | Self::Index => Need::Any(Right::Read),
            Self::MachineMetrics => Need::Every(Right::Read),
            Self::Infer => Need::Any(Right::Infer),
            Self::Load | Self::Unload | Self::ChangeRelease => Need::Any(Right::Control),
            Self::LoadFiles => Need::Any(Right::Files),
            // Regions and settings of the server reach all models.
            Self::ListRegions | Self::ChangeRegions | Self::UseRegions => Need::Every(Right::Admin),
            Self::ReadTrace | Self::ReadLog => Need::Any(Right::Admin),
            Self::ChangeTrace | Self::ChangeLog => Need::Every(Right::Admin),
        }
    }
}

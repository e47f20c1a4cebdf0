//! The seam for what decides which models are in memory: models that are loaded on demand, and models that leave to make room.

use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use nereid_backend_api::{ModelConfig, Result};

use super::VersionChooser;
use crate::model::Model;
use crate::scope::ScopedName;
use crate::spec::{ModelId, ModelSpec};
use crate::table::ModelTable;

/// Loads models for their requests. As a [`VersionChooser`], it decides about requests whose model or version is not served.
pub trait Residency: VersionChooser + fmt::Debug {
    /// Whether a model with this configuration is loaded for its first request, instead of when the server starts or finds it.
    /// The server's readiness does not need such a model.
    ///
    /// # Errors
    /// The configuration is invalid. The model is not loaded.
    fn is_on_demand(&self, config: &ModelConfig) -> Result<bool>;

    /// A note for the index on a model that is not in memory, such as the time of its next load.
    fn note(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether the server may load a model now that no request waits for: at start, or because a poll found it. Otherwise its
    /// first request loads it.
    fn has_room(&self, _spec: &ModelSpec) -> bool {
        true
    }

    /// Whether memory is limited. Models that consist of others are then loaded in turn: two that have some members each would wait
    /// for the room of each other's.
    fn is_limited(&self) -> bool {
        false
    }

    /// Makes room for a model that is about to be loaded, on the calling thread, which may block. Called for models that have no
    /// version in memory, and do not consist of others.
    ///
    /// # Errors
    /// The budget has no room. The model is not loaded.
    fn before_load(&self, _spec: &ModelSpec) -> Result<()> {
        Ok(())
    }

    /// The load that [`before_load`](Self::before_load) allowed has ended.
    fn after_load(&self, _spec: &ModelSpec, _outcome: &Result<()>) {}

    /// Whether there is memory for this number of instances of a loaded model.
    fn has_room_for_instances(&self, _model: &Model, _instances: usize) -> bool {
        true
    }

    /// The memory of these models, loaded or not; `None` if it is unknown.
    fn memory(&self, models: &[ModelId]) -> Vec<Option<ModelMemory>> {
        vec![None; models.len()]
    }

    /// Whether a request to a model that is not served would have it loaded. Resolves within seconds, and loads nothing.
    fn is_offered(
        &self,
        name: ScopedName<'_>,
        models: &ModelTable,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

/// The memory of a model, or its share of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// The measurement of its load, if there was one.
    pub measured: Option<MeasuredMemory>,
    /// Bytes that it takes of the memory budget, or would take if it were loaded.
    pub budget: u64,
    /// The origin of `budget`.
    pub basis: MemoryBasis,
    /// The memory of GPUs.
    pub gpus: Vec<GpuMemory>,
}

/// The memory of a GPU that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// The number of the GPU.
    pub gpu: i32,
    /// Bytes that its backend reports, or else that were measured; `None` if neither is known.
    pub measured: Option<u64>,
    /// Bytes that it takes of the GPU's budget, or would take if it were loaded.
    pub budget: u64,
}

/// Memory that was measured when a model was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// Bytes in the server's process.
    pub server: u64,
    /// Bytes in the processes that the server started.
    pub processes: u64,
    /// The time of the load.
    pub at: SystemTime,
}

/// How the memory of a model is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBasis {
    /// Declared by the model's configuration.
    Declared,
    /// Measured in this run of the server.
    Measured,
    /// Measured in an earlier run of the server.
    Recorded,
    /// Estimated from the sizes of the model's files.
    Files,
}

impl MemoryBasis {
    /// The name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Measured => "measured",
            Self::Recorded => "recorded",
            Self::Files => "files",
        }
    }
}

impl ModelMemory {
    /// The memory of each of `count` versions, which take equal parts.
    #[must_use]
    pub fn divided_by(self, count: u64) -> Self {
        let count = count.max(1);
        let measured = self.measured.map(|MeasuredMemory { server, processes, at }| MeasuredMemory {
            server: server / count,
            processes: processes / count,
            at,
        });
        let gpus = self.gpus.into_iter().map(|GpuMemory { gpu, measured, budget }| GpuMemory {
            gpu,
            measured: measured.map(|bytes| bytes / count),
            budget: budget / count,
        });
        let gpus = gpus.collect();
        Self { measured, budget: self.budget / count, basis: self.basis, gpus }
    }
}

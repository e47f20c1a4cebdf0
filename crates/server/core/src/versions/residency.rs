//! The seam for what decides which models are in memory: models that are loaded on demand, and models that leave to make room.

use std::fmt;
use std::pin::Pin;

use nereid_backend_api::{ModelConfig, Result};

use super::VersionChooser;
use crate::model::Model;
use crate::scope::ScopedName;
use crate::spec::ModelSpec;
use crate::table::ModelTable;

/// Loads models for their requests. As a [`VersionChooser`], it decides about requests whose model or version is not served.
pub trait Residency: VersionChooser + fmt::Debug {
    /// Whether a model with this configuration is loaded for its first request, instead of when the server starts or finds it.
    /// The server's readiness does not need such a model.
    ///
    /// # Errors
    /// The configuration is invalid. The model is not loaded.
    fn is_on_demand(&self, config: &ModelConfig) -> Result<bool>;

    /// Whether the server may load a model now that no request waits for: at start, or because a poll found it. Otherwise its
    /// first request loads it.
    fn has_room(&self, _spec: &ModelSpec) -> bool {
        true
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

    /// Whether a request to a model that is not served would have it loaded. Resolves within seconds, and loads nothing.
    fn is_offered(
        &self,
        name: ScopedName<'_>,
        models: &ModelTable,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

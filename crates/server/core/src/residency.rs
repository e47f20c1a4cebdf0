//! The seam for what decides which models are in memory: models that are loaded on demand, and models that leave to make room.

use std::fmt;
use std::pin::Pin;

use nereid_backend_api::{ModelConfig, Result};

use crate::table::ModelTable;
use crate::versions::VersionChooser;

/// Loads models for their requests. As a [`VersionChooser`], it decides about requests whose model or version is not served.
pub trait Residency: VersionChooser + fmt::Debug {
    /// Whether a model with this configuration is loaded for its first request, instead of when the server starts or finds it.
    /// The server's readiness does not need such a model.
    ///
    /// # Errors
    /// The configuration is invalid. The model is not loaded.
    fn is_on_demand(&self, config: &ModelConfig) -> Result<bool>;

    /// Whether a request to a model that is not served would have it loaded. Resolves within seconds, and loads nothing.
    fn is_offered(&self, name: &str, models: &ModelTable) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

//! The traits that a backend's author implements.

use std::sync::Arc;

use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::context::{BackendContext, InstanceContext, InstanceKind, ModelContext};
use crate::error::Result;

/// A backend: the state that all its models share. One exists for the life of the server.
pub trait Backend: Sized + Send + Sync + 'static {
    /// The type of the backend's models.
    type Model: Model<Backend = Self>;

    /// Attributes that the server reads before it creates instances.
    fn attributes() -> Attributes {
        Attributes::default()
    }

    /// Starts the backend after it is loaded.
    ///
    /// # Errors
    /// The backend cannot work; none of its models is loaded.
    fn start(context: &BackendContext<'_>) -> Result<Self>;
}

/// A loaded model: the state that all its instances share.
pub trait Model: Sized + Send + Sync + 'static {
    /// The type of the backend.
    type Backend: Backend<Model = Self>;
    /// The type of the model's instances.
    type Instance: Instance<Model = Self>;

    /// Completes the configuration, if the operator allows it: typically inputs, outputs and batching, which the
    /// backend reads from the model's files. Called before `load`.
    ///
    /// # Errors
    /// The model cannot be used, and is not loaded.
    fn complete_config(
        _backend: &Arc<Self::Backend>,
        _context: &ModelContext<'_>,
        _config: &mut ModelConfig,
    ) -> Result<()> {
        Ok(())
    }

    /// Loads the model.
    ///
    /// # Errors
    /// The model cannot be used. The operator sees the error.
    fn load(backend: &Arc<Self::Backend>, context: &ModelContext<'_>) -> Result<Self>;

    /// Whether the model can execute requests. Called from any thread, concurrently with executions.
    ///
    /// # Errors
    /// The reason why the model is not ready.
    fn ready(&self) -> Result<()> {
        Ok(())
    }
}

/// One instance of a model. It executes one batch at a time.
pub trait Instance: Sized + Send + 'static {
    /// The type of the model.
    type Model: Model<Instance = Self>;

    /// Creates the instance.
    ///
    /// # Errors
    /// The instance cannot be used; the model is not loaded.
    fn start(model: &Arc<Self::Model>, context: &InstanceContext<'_>) -> Result<Self>;

    /// Executes requests. Requests left in the batch return to the server, and fail if they are unanswered. A panic
    /// fails them, too, and the instance continues with the next batch.
    ///
    /// # Errors
    /// The answer to all unanswered requests in the batch.
    fn execute(&mut self, batch: &mut Batch) -> Result<()>;
}

/// Attributes of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The instances of models whose configuration names none, the most preferred first.
    pub preferred_instances: Vec<InstanceGroup>,
    /// Whether instances of one model may be created concurrently.
    pub parallel_instance_loading: bool,
}

/// Some instances of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceGroup {
    /// The kind of device.
    pub kind: InstanceKind,
    /// Number of instances per device.
    pub count: u64,
    /// The devices; if empty, the server chooses.
    pub devices: Vec<u64>,
}

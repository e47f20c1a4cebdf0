//! What an author implements.

use std::sync::Arc;

use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::context::{BackendContext, InstanceContext, InstanceKind, ModelContext};
use crate::error::Result;

/// A backend: what all models share that it serves. There is one for the life of the server.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Its models.
    type Model: Model<Backend = Self>;

    /// What the server should know of the backend before it makes instances.
    fn attributes() -> Attributes {
        Attributes::default()
    }

    /// The backend is loaded.
    ///
    /// # Errors
    /// Whatever keeps the backend from working; no model of it is loaded then.
    fn start(context: &BackendContext<'_>) -> Result<Self>;
}

/// A model that is loaded: what all its instances share.
pub trait Model: Sized + Send + Sync + 'static {
    /// Its backend.
    type Backend: Backend<Model = Self>;
    /// Its instances.
    type Instance: Instance<Model = Self>;

    /// Completes the configuration, where the operator allows it: typically inputs, outputs and batching, which the
    /// backend reads from the model's files. Called before `load`.
    ///
    /// # Errors
    /// Whatever makes the model unusable; it is not loaded then.
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
    /// Whatever makes the model unusable; the operator reads it.
    fn load(backend: &Arc<Self::Backend>, context: &ModelContext<'_>) -> Result<Self>;

    /// Whether requests would be executed, asked beside executions and from any thread.
    ///
    /// # Errors
    /// Why the model is not ready.
    fn ready(&self) -> Result<()> {
        Ok(())
    }
}

/// One instance of a model. It executes one batch at a time.
pub trait Instance: Sized + Send + 'static {
    /// Its model.
    type Model: Model<Instance = Self>;

    /// Makes the instance ready.
    ///
    /// # Errors
    /// Whatever makes it unusable; the model is not loaded then.
    fn start(model: &Arc<Self::Model>, context: &InstanceContext<'_>) -> Result<Self>;

    /// Executes requests. Those that are still in the batch afterwards go back to the server, and those of them that
    /// have no answer fail. A panic fails them too, and the instance goes on with the next batch.
    ///
    /// # Errors
    /// The answer to all requests that are in the batch and have none.
    fn execute(&mut self, batch: &mut Batch) -> Result<()>;
}

/// What a backend says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The instances of models whose configuration names none, the most preferred first.
    pub preferred_instances: Vec<InstanceGroup>,
    /// Whether instances of one model may be made side by side.
    pub parallel_instance_loading: bool,
}

/// Some instances of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceGroup {
    /// What they run on.
    pub kind: InstanceKind,
    /// How many, on each device.
    pub count: u64,
    /// The devices; none leaves them to the server.
    pub devices: Vec<u64>,
}

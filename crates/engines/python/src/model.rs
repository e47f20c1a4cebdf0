//! The program and the arguments of the processes of a Python model.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{InstanceContext, ModelConfig, ModelContext};
use nereid_python_env::InUse;
use nereid_worker::{Arguments, Program};

use crate::arguments;

/// The file with the model's class, and its environment.
pub(crate) struct Class {
    pub(crate) file: PathBuf,
    /// Whether the model accepts inputs in GPU memory.
    pub(crate) reads_device_memory: bool,
    /// Whether the class is the server's own.
    pub(crate) is_own: bool,
    /// Keeps the environment of the processes alive.
    pub(crate) _environment: Option<Arc<InUse>>,
}

impl Program for Class {
    fn of_model(&self, context: &ModelContext) -> Arguments {
        arguments::of_model(context, &self.file)
    }

    fn of_instance(
        &self,
        context: &ModelContext,
        config: &ModelConfig,
        instance: &InstanceContext,
    ) -> Arguments {
        arguments::of_instance(context, &self.file, config, instance)
    }

    fn reads_device_memory(&self) -> bool {
        self.reads_device_memory
    }

    fn completes_parameters(&self) -> bool {
        self.is_own
    }

    fn returns_states(&self) -> bool {
        self.is_own
    }
}

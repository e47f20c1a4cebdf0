//! The traits a backend implements: backend, model, instance.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_model_config::ModelConfig;
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::SecondaryDevice;

use crate::{BackendCapabilities, Batch, MemoryUsage, ModelCapabilities, Peers, Request, Result};

/// A kind of model the server can run. One object for the whole server.
pub trait Backend: Send + Sync {
    /// Loads one version of a model: reads its files, completes its configuration from them if it
    /// [may](ModelContext::complete), and checks it against them.
    ///
    /// # Errors
    /// Makes the model unavailable; the message is the reason its users see.
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>>;

    /// What it can do.
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities::default()
    }
}

/// Finds backends outside the program, such as shared libraries, and loads models into them.
pub trait BackendFinder: Backend {
    /// Looks for the backend of a model. Whether it can be loaded is not known yet.
    fn find(&self, model: &ModelContext) -> Lookup;

    /// The names of the backends that are installed.
    fn installed(&self) -> Vec<String>;
}

/// Where the backend of a model was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// With the model: in its folder, or because its configuration names it.
    WithModel,
    /// Among the installed backends.
    Installed,
    /// Nowhere.
    Missing {
        /// What was looked for, and where.
        searched: String,
    },
}

/// A loaded version of a model: what its instances share.
pub trait Model: Send + Sync {
    /// The configuration with what its backend completed. Of it, the server takes over the inputs and outputs,
    /// `max_batch_size`, the scheduler where none was chosen, and whether the model is decoupled; it checks the
    /// result before it makes instances. `None` where the backend does not complete configurations, or was not asked
    /// to.
    fn completed_config(&self) -> Option<&ModelConfig> {
        None
    }

    /// The instances to make where the configuration does not say which; none where one on the processor will do.
    fn preferred_groups(&self) -> Vec<ModelInstanceGroup> {
        Vec::new()
    }

    /// The groups of instances are others from here on: their instances were made. The rest of the configuration stays.
    fn instances_changed(&self, _groups: &[ModelInstanceGroup]) {}

    /// Makes one instance. Called once for each instance the configuration asks for.
    ///
    /// # Errors
    /// Makes the model unavailable.
    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>>;

    /// What it can do. Asked once, after loading.
    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities::default()
    }

    /// Whether executing this request takes no longer than it usually does and never blocks: there is nothing to be
    /// loaded, built or waited for. If it usually takes a few microseconds, it may then be executed on the thread
    /// that brought it instead of the instance's own.
    fn runs_at_once(&self, _request: &Request) -> bool {
        false
    }

    /// Checks that its instances would answer requests. It may block, and is called at any time, during executions too,
    /// on a thread of its own; only if the model [reports readiness](ModelCapabilities::reports_readiness).
    ///
    /// # Errors
    /// Why they would not answer.
    fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// How much memory the model and its instances take, as far as the backend knows: an entry for each place.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// Which requests may share a batch, where the backend has a say in that. Asked once, after loading; only dynamic
    /// batching heeds it.
    fn custom_batching(&self) -> Option<Arc<dyn CustomBatching>> {
        None
    }
}

/// A backend's own rules for batches, on top of those of the configuration.
pub trait CustomBatching: Send + Sync {
    /// A batch is begun. The builder is dropped when the batch leaves, or when it is begun anew because the queue has
    /// changed.
    fn begin(&self) -> Box<dyn BatchBuilder>;
}

/// A batch in the making.
///
/// Called while the queue is locked: it must be quick and must not call the server.
pub trait BatchBuilder: Send {
    /// Whether the next request of the queue joins the batch. If not, the batch leaves without it. The first request of
    /// a batch joins it in any case.
    fn include(&mut self, request: &Request) -> bool;
}

/// What executes batches, one at a time, on a thread of its own unless its model
/// [lets it run at once](Model::runs_at_once).
pub trait Instance: Send {
    /// Executes a batch. Every request in it is owned from here on, and answered now or later; whatever is dropped
    /// unanswered is answered with an error. May block.
    fn execute(&mut self, batch: Batch);
}

/// What a backend is told about the model it loads.
#[derive(Clone)]
pub struct ModelContext {
    /// Name of the model.
    pub name: String,
    /// The version to load.
    pub version: u64,
    /// The model's folder, which holds a folder for each version.
    pub directory: PathBuf,
    /// The model's configuration, checked by itself but not yet against the model.
    pub config: ModelConfig,
    /// Whether the backend may complete the configuration: inputs and outputs may then be missing from it. If not,
    /// it has to be whole.
    pub complete: bool,
    /// The server, for what the backend asks of it. [`NoPeers`](crate::NoPeers) where there is none.
    pub peers: Arc<dyn Peers>,
}

impl fmt::Debug for ModelContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut context = f.debug_struct("ModelContext");
        context.field("name", &self.name).field("version", &self.version).field("directory", &self.directory);
        context.field("config", &self.config).field("complete", &self.complete).finish_non_exhaustive()
    }
}

impl ModelContext {
    /// The folder of the version to load.
    pub fn version_directory(&self) -> PathBuf {
        self.directory.join(self.version.to_string())
    }
}

/// What an instance is told about itself.
#[derive(Clone, Debug)]
pub struct InstanceContext {
    /// Name of the instance. Unique within the model, but that a group on several GPUs has the same names on each.
    pub name: String,
    /// What it runs on.
    pub kind: InstanceKind,
    /// Whether it is made and kept, and given no requests.
    pub passive: bool,
    /// The profiles that it is to use, for backends that have any.
    pub profiles: Vec<String>,
    /// The devices that it may use besides the one it runs on.
    pub secondary_devices: Vec<SecondaryDevice>,
    /// Where its threads run, which the server sees to: it is made and executes there.
    pub host_policy: HostPolicy,
}

impl InstanceContext {
    /// An instance that is given requests.
    pub fn new(name: impl Into<String>, kind: InstanceKind) -> Self {
        Self {
            name: name.into(),
            kind,
            passive: false,
            profiles: Vec::new(),
            secondary_devices: Vec::new(),
            host_policy: HostPolicy { name: kind.default_policy(), settings: BTreeMap::new() },
        }
    }
}

/// Which part of the machine an instance belongs to, by a name that operators give it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// Its name.
    pub name: String,
    /// What the operator set for that name; mostly nothing.
    pub settings: BTreeMap<String, String>,
}

/// What an instance runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// The processor.
    Cpu,
    /// The GPU of that number.
    Gpu(i32),
    /// Whatever the model or its backend chooses.
    Model,
}

impl InstanceKind {
    /// The name of the host policy of instances whose configuration names none.
    pub fn default_policy(&self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Gpu(device) => format!("gpu_{device}"),
            Self::Model => "model".to_owned(),
        }
    }
}

impl fmt::Display for InstanceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("CPU"),
            Self::Gpu(device) => write!(f, "GPU device {device}"),
            Self::Model => f.write_str("MODEL"),
        }
    }
}

//! The traits a backend implements: backend, model, instance.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_model_config::ModelConfig;
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::{Kind, SecondaryDevice};

use crate::{
    BackendCapabilities, Batch, Intake, MemoryUsage, ModelCapabilities, Next, Peers, ReadinessAnnouncer,
    Request, Result,
};

/// Runs one kind of model. The server has one object per backend.
pub trait Backend: Send + Sync {
    /// Loads one version of a model: reads its files, completes its configuration from them where
    /// [allowed](ModelContext::complete), and checks it against them.
    ///
    /// # Errors
    /// The model is unavailable. Users see the error's message as the reason.
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>>;

    /// The features that the backend supports.
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities::default()
    }
}

/// Finds backends outside the program, such as shared libraries, and loads models into them.
pub trait BackendFinder: Backend {
    /// Looks for the backend of a model, without checking that it can be loaded.
    fn find(&self, model: &ModelContext) -> Lookup;

    /// The names of the installed backends.
    fn installed(&self) -> Vec<String>;
}

/// The place where a model's backend was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// With the model: in its folder, or because its configuration names it.
    WithModel,
    /// Among the installed backends.
    Installed,
    /// Nowhere.
    Missing {
        /// The names and folders searched.
        searched: String,
    },
}

/// A loaded version of a model: the state that its instances share.
pub trait Model: Send + Sync {
    /// The configuration as completed by the backend. The server adopts its inputs and outputs, `max_batch_size`, the
    /// scheduler if none was configured, and whether the model is decoupled; it validates the result before it
    /// creates instances. `None` if the backend does not complete configurations or may not.
    fn completed_config(&self) -> Option<&ModelConfig> {
        None
    }

    /// The instances to create if the configuration lists none. Empty for one on the CPU.
    fn preferred_groups(&self) -> Vec<ModelInstanceGroup> {
        Vec::new()
    }

    /// Called after the instance groups have changed and their instances were created. The rest of the configuration
    /// is unchanged.
    fn instances_changed(&self, _groups: &[ModelInstanceGroup]) {}

    /// Creates one instance. Called once for each instance in the configuration.
    ///
    /// # Errors
    /// Any error makes the model unavailable.
    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>>;

    /// The features that the model supports. Read once, after loading.
    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities::default()
    }

    /// Whether this request, whose properties may decide, executes in the usual time without blocking: nothing has to
    /// be loaded, built or awaited. If executions usually take a few microseconds, the request may then run on the
    /// thread that sent it instead of the instance's thread.
    fn runs_at_once(&self, _request: &Request) -> bool {
        false
    }

    /// Checks that the model's instances would answer requests. May block; called at any time, even during
    /// executions, on a separate thread, and only if the model [reports readiness](ModelCapabilities::readiness).
    ///
    /// # Errors
    /// The reason why they would not.
    fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// Sets the announcer of changes of [`ready`](Self::ready), for a model that
    /// [announces](crate::ReadinessReports::Announced) them. Called when the model is loaded, and again whenever its
    /// instances are recreated; all these announcers do the same.
    fn announce_readiness(&self, _announcer: ReadinessAnnouncer) {}

    /// Name and release of the framework or library that executes the model, and its execution providers other than the CPU's:
    /// `ONNX Runtime 1.22.0 (CUDA)`. `None` for backends without such an engine.
    fn engine(&self) -> Option<String> {
        None
    }

    /// Memory used by the model and its instances, if the backend knows: one entry per kind and device.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// The ids of the processes that execute the model, apart from the server's own. They change when one is started again.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The backend's own batching rules. Read once, after loading; only dynamic batching uses them.
    fn custom_batching(&self) -> Option<Arc<dyn CustomBatching>> {
        None
    }
}

/// A backend's batching rules, in addition to the configuration's.
pub trait CustomBatching: Send + Sync {
    /// Begins a batch. The builder is dropped when the batch leaves the queue, or when the queue changed and the
    /// batch is formed again.
    fn begin(&self) -> Box<dyn BatchBuilder>;
}

/// A batch being formed.
///
/// Called with the queue locked: must be quick and must not call the server.
pub trait BatchBuilder: Send {
    /// Whether the next request in the queue joins the batch. If not, the batch leaves without it. The first request of
    /// a batch always joins.
    fn include(&mut self, request: &Request) -> bool;
}

/// Executes batches, one at a time, on its own thread unless its model [allows running at once](Model::runs_at_once).
pub trait Instance: Send {
    /// Executes a batch. The instance owns the requests and answers each, now or later; a request dropped unanswered
    /// gets an error. May block.
    fn execute(&mut self, batch: Batch);

    /// Whether the instance takes requests by itself, while others are executing: continuous batching. The server then calls
    /// [`run`](Self::run), and [`execute`](Self::execute) for the warm-up only. Read once, after the instance was created; all
    /// instances of a model must agree.
    ///
    /// The queue of such a model ignores preferred batch sizes, delays and custom batching rules. It cannot have
    /// `sequence_batching`.
    fn executes_continuously(&self) -> bool {
        false
    }

    /// The most requests that an instance with [continuous batching](Self::executes_continuously) holds at a time. A server that runs
    /// it in another process sends no more, so that all others stay in the model's queue.
    fn capacity(&self) -> usize {
        1
    }

    /// Executes requests from `intake` until it has [ended](Next::Ended) and all of them are answered. Called on the instance's
    /// own thread.
    ///
    /// An instance checks between two steps whether its requests were cancelled. One in another process that neither does so nor
    /// responds, for longer than a limit, is considered to hang, and its process is killed.
    ///
    /// If it panics or returns early, the server answers the requests that it took and calls it again.
    fn run(&mut self, mut intake: Intake) {
        loop {
            match intake.try_next(|_| true) {
                Next::Request(batch) => self.execute(batch),
                Next::Ended => return,
                Next::Full | Next::Nothing => intake.wait(),
            }
        }
    }
}

/// The model to load.
#[derive(Clone)]
pub struct ModelContext {
    /// Name of the model.
    pub name: String,
    /// The version to load.
    pub version: u64,
    /// The model's directory, which holds a directory for each version.
    pub directory: PathBuf,
    /// The model's configuration, valid in itself but not yet checked against the model.
    pub config: ModelConfig,
    /// Whether the backend may complete the configuration, which may then lack inputs and outputs. Otherwise it is
    /// complete.
    pub complete: bool,
    /// The server, for calls by the backend; [`NoPeers`](crate::NoPeers) without a server.
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
    /// The directory of the version to load.
    pub fn version_directory(&self) -> PathBuf {
        self.directory.join(self.version.to_string())
    }
}

/// The instance to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceContext {
    /// Name of the instance. Unique within the model, except that a group on several GPUs uses the same names on
    /// each.
    pub name: String,
    /// The device that it runs on.
    pub kind: InstanceKind,
    /// Whether the instance is created and kept but receives no requests.
    pub passive: bool,
    /// The optimization profiles to use, for backends with profiles.
    pub profiles: Vec<String>,
    /// The devices it may use in addition to its own.
    pub secondary_devices: Vec<SecondaryDevice>,
    /// The placement of its threads. The server creates and executes the instance there.
    pub host_policy: HostPolicy,
}

impl InstanceContext {
    /// An instance that receives requests.
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

/// The part of the machine that an instance belongs to, under a name chosen by the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// The policy's name.
    pub name: String,
    /// The operator's settings for that name; usually empty.
    pub settings: BTreeMap<String, String>,
}

/// The device that an instance runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(i32),
    /// The model or its backend chooses.
    Model,
}

impl InstanceKind {
    /// The device of the first instance of a model with this configuration.
    pub fn of_first_instance(config: &ModelConfig) -> Self {
        match config.instance_group.first() {
            Some(group) if group.kind() == Kind::Gpu => {
                Self::Gpu(group.gpus.first().copied().unwrap_or_default())
            }
            Some(group) if group.kind() == Kind::Model => Self::Model,
            _ => Self::Cpu,
        }
    }

    /// The host policy of instances whose configuration names none.
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

//! Repository agents: they see a model before it is loaded, may put other files in its place, and learn what becomes of it.
//!
//! Sources of models run them; the life cycle knows none of them, but reports to their [`LoadGuard`]. An agent is foreign
//! code: it may block, and it may fail.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::Result;
use nereid_model_config::ModelConfig;

use crate::load_guard::LoadGuard;

/// An agent, by which any number of models pass.
pub trait RepositoryAgent: Send + Sync {
    /// A model is about to be loaded. The first action is [`AgentAction::Load`]; the end is the drop of what this returns.
    ///
    /// # Errors
    /// The agent does not take the model, which fails its load.
    fn begin(&self, context: AgentContext) -> Result<Box<dyn AgentModel>>;

    /// Whether the agent needs a model's files on this machine. Files in clouds are fetched before.
    fn needs_files(&self) -> bool {
        false
    }
}

/// A model in an agent's hands.
pub trait AgentModel: Send + Sync {
    /// Notifies the agent of a step of the model. Calls for one model are sequential, in the order of [`AgentAction`].
    ///
    /// # Errors
    /// The agent's own. An error at [`AgentAction::Load`] fails the load; others are only logged.
    fn act(&self, action: AgentAction) -> Result<()>;

    /// Where the model is after the agent has seen it.
    fn location(&self) -> ModelLocation;
}

/// A model, as passed to an agent.
pub struct AgentContext {
    /// The model's name.
    pub model: String,
    /// The location of its files: in the repository, or as changed by the agent before this one.
    pub location: ModelLocation,
    /// The configuration as written there; empty if it has none.
    pub config: ModelConfig,
    /// The agent's parameters in the configuration.
    pub parameters: Vec<(String, String)>,
    /// Where the agent may put files.
    pub folders: AgentFolders,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    /// A folder on this machine.
    Folder(PathBuf),
    /// An address in a cloud, such as `s3://bucket/models/m`.
    Remote(String),
}

impl fmt::Display for ModelLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Remote(address) => f.write_str(address),
        }
    }
}

/// The steps of a model. `LoadFail` may follow `Load` in place of `LoadComplete`, and is then the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// The model is about to be loaded.
    Load,
    /// The model is loaded and serves.
    LoadComplete,
    /// The load failed.
    LoadFail,
    /// The model no longer serves.
    Unload,
    /// The model is unloaded.
    UnloadComplete,
}

/// Makes folders for agents, each for one model. A folder goes with its guard.
#[derive(Clone)]
pub struct AgentFolders(Arc<MakeFolder>);

type MakeFolder = dyn Fn() -> Result<(PathBuf, LoadGuard)> + Send + Sync;

impl AgentFolders {
    /// Folders that a function makes.
    pub fn new(make: impl Fn() -> Result<(PathBuf, LoadGuard)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Makes one.
    ///
    /// # Errors
    /// The system's error.
    pub fn acquire(&self) -> Result<(PathBuf, LoadGuard)> {
        (self.0)()
    }
}

impl fmt::Debug for AgentFolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentFolders").finish_non_exhaustive()
    }
}

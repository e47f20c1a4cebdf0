//! Repository agents: they see a model before it is loaded, may put other files in its place, and learn what becomes of it.
//!
//! What runs them is a source of models; the life cycle knows none of them, but reports to their
//! [`LoadGuard`]. An agent is code of somebody else: it may block, and it may fail.

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

    /// Whether the agent has to find a model's files on this machine. Those of models in clouds are fetched before then.
    fn needs_files(&self) -> bool {
        false
    }
}

/// A model in an agent's hands.
pub trait AgentModel: Send + Sync {
    /// Tells the agent what happens to the model. Calls for one model come one after another, in the order of
    /// [`AgentAction`].
    ///
    /// # Errors
    /// The agent's own. That of [`AgentAction::Load`] fails the load; any other is only logged.
    fn act(&self, action: AgentAction) -> Result<()>;

    /// Where the model is after the agent has seen it.
    fn location(&self) -> ModelLocation;
}

/// What an agent gets of a model.
pub struct AgentContext {
    /// The model's name.
    pub model: String,
    /// Where it is: as its repository has it, or as the agent before this one left it.
    pub location: ModelLocation,
    /// Its configuration as it is written there; an empty one if there is none.
    pub config: ModelConfig,
    /// What the configuration gives the agent.
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

/// What happens to a model. `LoadFail` follows `Load` in place of `LoadComplete`, and is the last then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentAction {
    /// It is about to be loaded.
    Load,
    /// It is loaded, and serves.
    LoadComplete,
    /// It could not be loaded.
    LoadFail,
    /// It serves no longer.
    Unload,
    /// It is unloaded.
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
    /// What the system reports.
    pub fn acquire(&self) -> Result<(PathBuf, LoadGuard)> {
        (self.0)()
    }
}

impl fmt::Debug for AgentFolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentFolders").finish_non_exhaustive()
    }
}

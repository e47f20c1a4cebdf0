//! Repository agents built for Triton: loads their libraries, and offers them the functions of `tritonrepoagent.h`.
//!
//! As in Triton, an agent is initialized for the first model that names it and finalized after the last; its library stays
//! loaded.

mod objects;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Result};
use nereid_core::{AgentAction, AgentContext, AgentModel, ModelLocation, RepositoryAgent};
use nereid_dylib::symbols;
use nereid_plugin::{Kind, PluginError, SearchPath};
use triton_sys::*;

pub(crate) use self::objects::EXPORTS;
pub(crate) use self::objects::{AgentModelObject, AgentObject};
use crate::exports;
use crate::handle::LentHandle;
use crate::thrown::call;

/// The agents in a folder of agents.
pub struct LibraryAgents {
    directory: PathBuf,
    /// Loaded agents, by name.
    loaded: Mutex<BTreeMap<String, Arc<Library>>>,
}

impl LibraryAgents {
    /// The agents in this folder, each in a folder of its own. None is loaded yet.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, loaded: Mutex::default() }
    }

    /// Whether an agent of that name is installed.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// The agent of that name, for one model.
    ///
    /// # Errors
    /// The agent is not installed, its library is not an agent's, or initialization fails.
    pub fn agent(&self, name: &str) -> Result<Arc<dyn RepositoryAgent>> {
        let library = {
            let mut loaded = lock(&self.loaded);
            match loaded.get(name) {
                Some(library) => Arc::clone(library),
                None => {
                    let path = self.find(name).map_err(|error| {
                        Error::invalid_arg(format!("repository agent '{name}' is not installed: {error}"))
                    })?;
                    tracing::info!("loading repository agent '{name}' from '{}'", path.display());
                    let library = Arc::new(Library::open(name, &path)?);
                    Arc::clone(loaded.entry(name.to_owned()).or_insert(library))
                }
            }
        };
        Ok(Arc::new(library.lease()?))
    }

    /// The reason why no agent of that name is installed.
    pub fn missing(&self, name: &str) -> String {
        self.find(name).map_or_else(|error| error.to_string(), |path| path.display().to_string())
    }

    fn find(&self, name: &str) -> std::result::Result<PathBuf, PluginError> {
        let file = Kind::REPOSITORY_AGENT.library_name(name);
        if !nereid_plugin::is_file_name(name) {
            return Err(PluginError::NotFound { file, folders: vec![self.directory.clone()] });
        }
        SearchPath::in_directory(&self.directory, name).find(&file).map(|found| found.library)
    }
}

/// A library, and the agent in it as long as models use it.
struct Library {
    /// The agent's name in messages.
    whose: String,
    functions: Functions,
    /// Locked while the agent is initialized or finalized: neither may overlap with the other.
    agent: Mutex<Users>,
}

symbols! {
    /// The functions of an agent; most are optional.
    struct Functions {
        action = "TRITONREPOAGENT_ModelAction" => signatures::TRITONREPOAGENT_ModelAction,
        ;
        initialize = "TRITONREPOAGENT_Initialize" => signatures::TRITONREPOAGENT_Initialize,
        finalize = "TRITONREPOAGENT_Finalize" => signatures::TRITONREPOAGENT_Finalize,
        model_initialize = "TRITONREPOAGENT_ModelInitialize" => signatures::TRITONREPOAGENT_ModelInitialize,
        model_finalize = "TRITONREPOAGENT_ModelFinalize" => signatures::TRITONREPOAGENT_ModelFinalize,
    }
}

/// The initialized agent, and the number of its leases.
#[derive(Default)]
struct Users {
    count: usize,
    agent: Option<Arc<LentHandle<AgentObject>>>,
}

impl Library {
    fn open(name: &str, path: &Path) -> Result<Self> {
        let refused = |error: PluginError| {
            Error::invalid_arg(error.to_string()).context(format_args!("repository agent '{name}'"))
        };
        let plugin = Kind::REPOSITORY_AGENT.load(path, exports::TABLES).map_err(refused)?;
        // SAFETY: each type matches the function of this name in `tritonrepoagent.h`.
        let functions = unsafe { plugin.table(Functions::of) }.map_err(refused)?;
        Ok(Self { whose: format!("repository agent '{name}'"), functions, agent: Mutex::default() })
    }

    /// The initialized agent. The last lease finalizes it.
    fn lease(self: Arc<Self>) -> Result<Lease> {
        let mut users = lock(&self.agent);
        let agent = match &users.agent {
            Some(agent) => Arc::clone(agent),
            None => {
                let agent = Arc::new(LentHandle::new(Arc::<AgentObject>::default())?);
                if let Some(initialize) = self.functions.initialize {
                    // SAFETY: the argument is a handle of the function's kind.
                    let act = || unsafe { initialize(agent.handle().as_c()) };
                    let outcome = call("TRITONREPOAGENT_Initialize", format_args!("{}", self.whose), act);
                    // As in Triton, an agent that failed to initialize is finalized, too.
                    outcome.inspect_err(|_| self.finalize(&agent))?;
                }
                Arc::clone(users.agent.insert(agent))
            }
        };
        users.count += 1;
        drop(users);
        Ok(Lease { library: self, agent })
    }

    fn finalize(&self, agent: &LentHandle<AgentObject>) {
        let Some(finalize) = self.functions.finalize else { return };
        // SAFETY: the agent's handle, which no model uses.
        let act = || unsafe { finalize(agent.handle().as_c()) };
        if let Err(error) = call("TRITONREPOAGENT_Finalize", format_args!("{}", self.whose), act) {
            tracing::error!("{} failed to finalize: {error}", self.whose);
        }
    }
}

/// A use of an agent.
struct Lease {
    library: Arc<Library>,
    agent: Arc<LentHandle<AgentObject>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut users = lock(&self.library.agent);
        users.count -= 1;
        if users.count > 0 {
            return;
        }
        users.agent = None;
        self.library.finalize(&self.agent);
    }
}

impl RepositoryAgent for Lease {
    fn begin(&self, context: AgentContext) -> Result<Box<dyn AgentModel>> {
        let model = context.model.clone();
        let object = Arc::new(AgentModelObject::new(context)?);
        let handle = LentHandle::new(Arc::clone(&object))?;
        let lease = self.library.clone().lease()?;
        let model = LibraryModel { model, handle, object, lease };
        if let Some(initialize) = self.library.functions.model_initialize {
            // SAFETY: handles of the function's kinds.
            let act = || unsafe { initialize(model.agent(), model.handle.handle().as_c()) };
            call("TRITONREPOAGENT_ModelInitialize", format_args!("{}", self.library.whose), act)?;
        }
        Ok(Box::new(model))
    }
}

/// A model that a library's agent works on.
struct LibraryModel {
    model: String,
    handle: LentHandle<AgentModelObject>,
    object: Arc<AgentModelObject>,
    lease: Lease,
}

impl LibraryModel {
    fn agent(&self) -> *mut TRITONREPOAGENT_Agent {
        self.lease.agent.handle().as_c()
    }
}

impl AgentModel for LibraryModel {
    fn act(&self, action: AgentAction) -> Result<()> {
        self.object.begin(action);
        let (library, model) = (&self.lease.library, self.handle.handle().as_c());
        // SAFETY: handles of the function's kinds, and an action of the header.
        let act = || unsafe { (library.functions.action)(self.agent(), model, objects::to_c(action)) };
        call("TRITONREPOAGENT_ModelAction", format_args!("{}", library.whose), act)
    }

    fn location(&self) -> ModelLocation {
        self.object.location()
    }
}

impl Drop for LibraryModel {
    /// As in Triton, runs even if the library failed to initialize the model.
    fn drop(&mut self) {
        let library = &self.lease.library;
        let Some(finalize) = library.functions.model_finalize else { return };
        // SAFETY: handles of the function's kinds.
        let act = || unsafe { finalize(self.agent(), self.handle.handle().as_c()) };
        if let Err(error) = call("TRITONREPOAGENT_ModelFinalize", format_args!("{}", library.whose), act) {
            tracing::error!("{} failed to finalize '{}': {error}", library.whose, self.model);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

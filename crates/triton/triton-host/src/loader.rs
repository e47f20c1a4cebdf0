//! Backends in libraries: finds them, loads each once, and lets them load models.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Backend, BackendCapabilities, BackendFinder, Error, Lookup, Model, ModelConfig, ModelContext, Result,
};
use nereid_core::Server;
use nereid_cuda::{Cuda, Pools};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::{backend_name, prefer_groups, proto};
use serde_json::json;

use crate::backend::{Attributes, BackendObject};
use crate::find::{self, BackendFiles, Places, PythonBackend};
use crate::handle::{Handle, LentHandle};
use crate::library::{Entries, open_backend};
use crate::loaded::LoadedModel;
use crate::server::ServerObject;
use crate::thrown::call;

/// The setting of a Python model that names its own environment.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";

/// Options of backends in libraries.
#[derive(Clone, Debug)]
pub struct LibraryOptions {
    /// The folder with a folder for each backend.
    pub directory: PathBuf,
    /// Settings: the backend (`None` for all), the key, the value. The last one wins.
    pub settings: Vec<(Option<String>, String, String)>,
    /// Whether backends may complete configurations.
    pub complete: bool,
    /// The driver of the GPUs, if there is one.
    pub cuda: Option<Arc<Cuda>>,
    /// Memory that backends may borrow.
    pub pools: Arc<Pools>,
    /// The numbers of the GPUs that instances may run on.
    pub gpus: Vec<i32>,
    /// The lowest compute capability of usable GPUs.
    pub min_compute_capability: f64,
    /// Runs backends written in Python, in place of an installed Python backend.
    pub python: Option<PythonRunner>,
}

/// The backend that runs models in Python.
#[derive(Clone)]
pub struct PythonRunner(pub Arc<dyn Backend>);

impl fmt::Debug for PythonRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PythonRunner").finish_non_exhaustive()
    }
}

impl LibraryOptions {
    /// The reference's default for the lowest compute capability.
    pub const MIN_COMPUTE_CAPABILITY: f64 = 6.0;
}

impl Default for LibraryOptions {
    fn default() -> Self {
        Self {
            directory: PathBuf::default(),
            settings: Vec::default(),
            complete: false,
            cuda: None,
            python: None,
            pools: Arc::default(),
            gpus: Vec::new(),
            min_compute_capability: Self::MIN_COMPUTE_CAPABILITY,
        }
    }
}

/// All backends in libraries as one: each model names the one that it uses.
pub struct LibraryBackends {
    options: LibraryOptions,
    server: LentHandle<ServerObject>,
    server_object: Arc<ServerObject>,
    loaded: Mutex<HashMap<(PathBuf, String), Slot>>,
}

/// A backend's slot, locked while the backend is loaded; others that need it wait.
type Slot = Arc<Mutex<Option<Arc<LoadedBackend>>>>;

impl LibraryBackends {
    /// Creates the table of backends, without loading any.
    ///
    /// # Errors
    /// Too many C objects exist.
    pub fn new(options: LibraryOptions) -> Result<Self> {
        let server_object = Arc::new(ServerObject::new(options.cuda.clone()));
        let server = LentHandle::new(Arc::clone(&server_object))?;
        Ok(Self { options, server, server_object, loaded: Mutex::default() })
    }

    /// Sets the server that backends may call, and the text format of its metrics. Without a server, calls fail.
    pub fn attach(&self, server: &Arc<Server>, metrics: impl Fn(&Server) -> String + Send + Sync + 'static) {
        self.server_object.attach(server, Box::new(move |server| Ok(metrics(server))));
    }

    fn places(&self, context: &ModelContext, backend: &str) -> Places {
        Places::new(&context.directory, context.version, &self.options.directory, backend)
    }

    fn backend(&self, name: &str, found: &BackendFiles) -> Result<Arc<LoadedBackend>> {
        // A backend in Python shares its library with others, but not its folder.
        let key = (found.directory.join(found.library.file_name().unwrap_or_default()), name.to_owned());
        let slot = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry(key).or_default())
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = &*slot {
            return Ok(Arc::clone(backend));
        }
        let settings = self.settings(if found.python.is_some() { "python" } else { name });
        let backend = Arc::new(LoadedBackend::load(name, found, settings, &self.options)?);
        *slot = Some(Arc::clone(&backend));
        Ok(backend)
    }

    /// The settings of a backend as the reference passes them: all as strings.
    fn settings(&self, backend: &str) -> String {
        let mut settings = BTreeMap::from([
            ("auto-complete-config", self.options.complete.to_string()),
            ("backend-directory", self.options.directory.to_string_lossy().into_owned()),
            ("default-max-batch-size", "4".to_owned()),
            ("min-compute-capability", format!("{:.6}", self.options.min_compute_capability)),
        ]);
        for of in [None, Some(backend)] {
            let its = self.options.settings.iter().filter(|(named, ..)| named.as_deref() == of);
            settings.extend(its.map(|(_, key, value)| (key.as_str(), value.clone())));
        }
        json!({ "cmdline": settings }).to_string()
    }
}

impl LibraryBackends {
    /// The runner of the model's backend, if the backend is written in Python and needs no library.
    fn python_backend(&self, model: &ModelContext, backend: &str) -> Option<(&dyn Backend, PythonBackend)> {
        let PythonRunner(runner) = self.options.python.as_ref()?;
        Some((&**runner, self.places(model, backend).written_in_python(&model.config, backend)?))
    }
}

impl Backend for LibraryBackends {
    /// Some backends complete configurations. They run on GPUs, unless they [prefer](Model::preferred_groups) the CPU.
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, runs_on_gpus: true, ..BackendCapabilities::default() }
    }

    fn load(&self, mut context: ModelContext) -> Result<Box<dyn Model>> {
        let name = backend_name(&context.config).unwrap_or_default().to_owned();
        if let Some((runner, python)) = self.python_backend(&context, &name) {
            describe_python(&mut context.config, &python);
            return runner.load(context);
        }
        let found = self.places(&context, &name).find(&context.config, &name)?;
        let backend = self.backend(&name, &found)?;
        let batcher = self.places(&context, &name).batcher(&context.config)?;
        if let Some(python) = &found.python {
            describe_python(&mut context.config, python);
        }
        prefer_groups(&mut context.config, backend.preferred_groups());
        let model = LoadedModel::load(backend, &context, self.server.handle(), batcher.as_deref())?;
        Ok(Box::new(model))
    }
}

impl BackendFinder for LibraryBackends {
    fn find(&self, model: &ModelContext) -> Lookup {
        let backend = backend_name(&model.config).unwrap_or_default();
        let places = self.places(model, backend);
        if places.has_own_library(&model.config, backend) {
            return Lookup::WithModel;
        }
        if self.python_backend(model, backend).is_some() {
            return Lookup::Installed;
        }
        match places.find(&model.config, backend) {
            Ok(_) => Lookup::Installed,
            Err(error) => Lookup::Missing { searched: error.message().to_owned() },
        }
    }

    fn installed(&self) -> Vec<String> {
        find::installed(&self.options.directory)
    }
}

/// Describes the model to the backend `python` as one of a backend written in Python.
fn describe_python(config: &mut ModelConfig, python: &PythonBackend) {
    config.runtime.clone_from(&python.runtime);
    if let Some(environment) = &python.environment {
        let value = proto::ModelParameter { string_value: environment.to_string_lossy().into_owned() };
        config.parameters.entry(ENVIRONMENT.to_owned()).or_insert(value);
    }
}

/// An initialized backend, finalized after its last model and the server are dropped.
pub(crate) struct LoadedBackend {
    pub entries: Entries,
    pub object: Arc<BackendObject>,
    pub attributes: Arc<Attributes>,
    lent: LentHandle<BackendObject>,
    gpus: Vec<i32>,
}

impl LoadedBackend {
    fn load(name: &str, found: &BackendFiles, settings: String, options: &LibraryOptions) -> Result<Self> {
        let BackendFiles { library, directory, .. } = found;
        tracing::info!("loading backend '{name}' from '{}'", library.display());
        let failed = |error: Error| error.context(format_args!("backend '{name}'"));
        let entries = open_backend(library).map_err(failed)?;
        let object = Arc::new(BackendObject::new(name, directory, settings, &options.pools)?);
        let (lent, attributes) = (LentHandle::new(Arc::clone(&object))?, Arc::<Attributes>::default());
        // Finalized from here on, even if initialization fails, as in the reference.
        let backend = Self { entries, object, attributes, lent, gpus: options.gpus.clone() };
        if let Some(initialize) = backend.entries.initialize {
            // SAFETY: a handle of the function's kind, alive until the backend is finalized.
            let act = || unsafe { initialize(backend.handle().as_c()) };
            call("TRITONBACKEND_Initialize", format_args!("backend '{name}'"), act).map_err(failed)?;
        }
        if let Some(describe) = backend.entries.attributes {
            let lent = LentHandle::new(Arc::clone(&backend.attributes))?;
            // SAFETY: handles of the function's kinds, alive until it returns.
            let act = || unsafe { describe(backend.handle().as_c(), lent.handle().as_c()) };
            let outcome = call("TRITONBACKEND_GetBackendAttribute", format_args!("backend '{name}'"), act);
            // As in the reference, the backend serves without them.
            if let Err(error) = outcome {
                tracing::warn!("backend '{name}' failed to report its attributes: {error}");
            }
        }
        Ok(backend)
    }

    /// The instance groups for configurations without any.
    pub(crate) fn preferred_groups(&self) -> Vec<ModelInstanceGroup> {
        self.attributes.preferred(&self.gpus)
    }

    pub(crate) fn handle(&self) -> Handle<BackendObject> {
        self.lent.handle()
    }
}

impl Drop for LoadedBackend {
    fn drop(&mut self) {
        let Some(finalize) = self.entries.finalize else { return };
        // SAFETY: the handle is alive; no model of the backend is left, since each holds it.
        let act = || unsafe { finalize(self.handle().as_c()) };
        if let Err(error) = call("TRITONBACKEND_Finalize", format_args!("a backend"), act) {
            tracing::warn!("a backend failed to finalize: {error}");
        }
    }
}

//! The backends that come as libraries: finds them, loads each once, and has them load models.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Backend, Error, Model, ModelConfig, ModelContext, Result};
use nereid_core::Server;
use nereid_model_config::{backend_name, proto};
use serde_json::json;

use crate::backend::{Attributes, BackendObject};
use crate::error;
use crate::find::{Found, Places, PythonBackend};
use crate::handle::{Handle, Lent};
use crate::library::{Entries, open_backend};
use crate::loaded::LoadedModel;
use crate::server::ServerObject;

/// The setting of a Python model that names what it brings along.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";

/// What operators say of backends that are libraries.
#[derive(Clone, Debug, Default)]
pub struct LibraryOptions {
    /// The folder with a folder for each backend.
    pub directory: PathBuf,
    /// Settings: of the backend that is named, or of all; the key; the value. Of the same ones, the last counts.
    pub settings: Vec<(Option<String>, String, String)>,
    /// Whether backends may complete configurations.
    pub complete: bool,
}

/// All backends that are libraries, as one: each model says which it takes.
pub struct LibraryBackends {
    options: LibraryOptions,
    server: Lent<ServerObject>,
    server_object: Arc<ServerObject>,
    loaded: Mutex<HashMap<(PathBuf, String), Slot>>,
}

/// A backend's place, locked while it is loaded: those who want it at the same time wait for it.
type Slot = Arc<Mutex<Option<Arc<LoadedBackend>>>>;

impl LibraryBackends {
    /// Loads nothing yet.
    ///
    /// # Errors
    /// There is no room for its objects.
    pub fn new(options: LibraryOptions) -> Result<Self> {
        let server_object = Arc::<ServerObject>::default();
        let server = Lent::new(Arc::clone(&server_object))?;
        Ok(Self { options, server, server_object, loaded: Mutex::default() })
    }

    /// Says which server it is that backends may ask, and how its metrics are told. Without a server they get an error.
    pub fn attach(&self, server: &Arc<Server>, metrics: impl Fn(&Server) -> String + Send + Sync + 'static) {
        self.server_object.attach(server, Box::new(metrics));
    }

    /// Whether a model has a library of its own for its backend, in its folder or by its configuration.
    pub fn is_brought_along(&self, context: &ModelContext) -> bool {
        let backend = backend_name(&context.config).unwrap_or_default();
        self.places(context, backend).brings_its_own(&context.config, backend)
    }

    /// The library of a model's backend.
    ///
    /// # Errors
    /// `InvalidArg` that says what was looked for, and where.
    pub fn find(&self, directory: &Path, version: u64, config: &ModelConfig) -> Result<PathBuf> {
        let backend = backend_name(config).unwrap_or_default();
        let places = Places::new(directory, version, &self.options.directory, backend);
        places.find(config, backend).map(|found| found.library)
    }

    fn places(&self, context: &ModelContext, backend: &str) -> Places {
        Places::new(&context.directory, context.version, &self.options.directory, backend)
    }

    fn backend(&self, name: &str, found: &Found) -> Result<Arc<LoadedBackend>> {
        // A backend in Python has its library in common with others, but not its folder.
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
        let backend = Arc::new(LoadedBackend::load(name, &found.library, &found.directory, settings)?);
        *slot = Some(Arc::clone(&backend));
        Ok(backend)
    }

    /// The settings of a backend as the reference hands them over: all of them texts.
    fn settings(&self, backend: &str) -> String {
        let mut settings = BTreeMap::from([
            ("auto-complete-config", self.options.complete.to_string()),
            ("backend-directory", self.options.directory.to_string_lossy().into_owned()),
            ("default-max-batch-size", "4".to_owned()),
            ("min-compute-capability", "6.000000".to_owned()),
        ]);
        for of in [None, Some(backend)] {
            let its = self.options.settings.iter().filter(|(named, ..)| named.as_deref() == of);
            settings.extend(its.map(|(_, key, value)| (key.as_str(), value.clone())));
        }
        json!({ "cmdline": settings }).to_string()
    }
}

impl Backend for LibraryBackends {
    /// Some do.
    fn completes(&self) -> bool {
        true
    }

    fn load(&self, mut context: ModelContext) -> Result<Box<dyn Model>> {
        let name = backend_name(&context.config).unwrap_or_default().to_owned();
        let found = self.places(&context, &name).find(&context.config, &name)?;
        let backend = self.backend(&name, &found)?;
        let batcher = self.places(&context, &name).batcher(&context.config)?;
        if let Some(python) = &found.python {
            describe_python(&mut context.config, python);
        }
        let model = LoadedModel::load(backend, &context, self.server.handle(), batcher.as_deref())?;
        Ok(Box::new(model))
    }
}

/// Tells the backend `python` that the model belongs to a backend that is written in Python.
fn describe_python(config: &mut ModelConfig, python: &PythonBackend) {
    config.runtime.clone_from(&python.runtime);
    if let Some(environment) = &python.environment {
        let value = proto::ModelParameter { string_value: environment.to_string_lossy().into_owned() };
        config.parameters.entry(ENVIRONMENT.to_owned()).or_insert(value);
    }
}

/// A backend that was initialised, and is finalised when its last model has gone and the server ends.
pub(crate) struct LoadedBackend {
    pub entries: Entries,
    pub object: Arc<BackendObject>,
    pub attributes: Arc<Attributes>,
    lent: Lent<BackendObject>,
}

impl LoadedBackend {
    fn load(name: &str, library: &Path, directory: &Path, settings: String) -> Result<Self> {
        tracing::info!("loading backend '{name}' from '{}'", library.display());
        let failed = |error: Error| error.context(format_args!("backend '{name}'"));
        let entries = open_backend(library).map_err(failed)?;
        let object = Arc::new(BackendObject::new(name, directory, settings)?);
        let (lent, attributes) = (Lent::new(Arc::clone(&object))?, Arc::<Attributes>::default());
        // From here on it is finalised, also where its initialisation fails, as the reference does it.
        let backend = Self { entries, object, attributes, lent };
        if let Some(initialize) = backend.entries.initialize {
            // SAFETY: a handle of the kind that the function takes, alive until the backend is finalised.
            let outcome = unsafe { initialize(backend.handle().as_c()) };
            error::from_c(Handle::of(outcome)).map_err(failed)?;
        }
        if let Some(describe) = backend.entries.attributes {
            let lent = Lent::new(Arc::clone(&backend.attributes))?;
            // SAFETY: handles of the kinds that the function takes, alive until it returns.
            let outcome = unsafe { describe(backend.handle().as_c(), lent.handle().as_c()) };
            // It serves all the same, as with the reference.
            if let Err(error) = error::from_c(Handle::of(outcome)) {
                tracing::warn!("backend '{name}' does not tell its attributes: {error}");
            }
        }
        Ok(backend)
    }

    pub(crate) fn handle(&self) -> Handle<BackendObject> {
        self.lent.handle()
    }
}

impl Drop for LoadedBackend {
    fn drop(&mut self) {
        let Some(finalize) = self.entries.finalize else { return };
        // SAFETY: the handle is alive; no model of the backend is left, since each holds it.
        let outcome = unsafe { finalize(self.handle().as_c()) };
        if let Err(error) = error::from_c(Handle::of(outcome)) {
            tracing::warn!("a backend was not finalised in order: {error}");
        }
    }
}

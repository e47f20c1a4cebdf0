//! Models written in Python: each instance runs in a separate process, with the user's interpreter.
//!
//! This crate is the server's side: it chooses the interpreter, its options and arguments, and completes a model's
//! configuration. `nereid-worker` runs the processes. `module/` runs within the interpreter.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod arguments;
mod library;
mod model;
pub mod module;
mod options;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, BackendSettings, Error, Model, ModelContext, Result};
use nereid_model_config::backend_name;
use nereid_model_files::{FileError, hint_at_missing};
use nereid_python_env::{Environments, InUse, Requested};
use nereid_worker::{Launch, WorkerModel};

use crate::library::Library;
use crate::model::Class;
use crate::options::Options;

/// The backend's name.
const PYTHON: &str = "python";

/// The default file of a model.
const MODEL_FILE: &str = "model.py";

/// The parameter of a configuration that names an environment.
const EXECUTION_ENVIRONMENT: &str = "EXECUTION_ENV_PATH";

/// The parameter that forces inputs into host memory.
const HOST_INPUTS: &str = "FORCE_CPU_ONLY_INPUT_TENSORS";

/// Runs models that are written in Python.
pub struct PythonBackend {
    options: Options,
    /// The folder of backends, some of which may be written in Python.
    directory: PathBuf,
    environments: Environments,
    library: Library,
    /// The name of CUDA's driver library; empty without one.
    cuda_driver: String,
}

impl PythonBackend {
    /// The backend's capabilities.
    pub const CAPABILITIES: BackendCapabilities =
        BackendCapabilities { completes_config: true, runs_on_gpus: true, is_isolated: true };

    /// The setting that limits how long an execution may take.
    pub const EXECUTE_TIMEOUT: &str = options::EXECUTE_TIMEOUT;

    /// Names of settings, without [the sandbox's](nereid_worker::SandboxSettings::NAMES).
    pub fn settings() -> impl Iterator<Item = &'static str> {
        Options::names()
    }

    /// The backend with these settings; `directory` is the folder of backends, some of which may be written in
    /// Python.
    ///
    /// # Errors
    /// A setting is invalid, or the interpreters' module cannot be stored in memory.
    pub fn new(settings: &BackendSettings, directory: &Path) -> Result<Self> {
        let options = Options::new(settings)?;
        let environments = Environments::new(options.environments.clone());
        let library = Library::new()?;
        Ok(Self {
            options,
            directory: directory.to_owned(),
            environments,
            library,
            cuda_driver: String::new(),
        })
    }

    /// Sets the driver library through which models access GPU memory. Without one, they cannot.
    #[must_use]
    pub fn with_cuda_driver(mut self, library: impl Into<String>) -> Self {
        self.cuda_driver = library.into();
        self
    }

    /// Checks the interpreter of a model, unless the model names its own environment.
    ///
    /// # Errors
    /// The interpreter that is missing or unsuitable.
    pub fn check_interpreter(&self, model: &ModelContext) -> Result<()> {
        let environment = model.config.parameters.get(EXECUTION_ENVIRONMENT);
        if environment.is_some_and(|environment| !environment.string_value.is_empty()) {
            return Ok(());
        }
        self.environments.check_default().map_err(|error| Error::unavailable(error.to_string()))
    }

    /// Whether the default interpreter has these packages. Starts the interpreter, and imports no package.
    pub fn has_packages(&self, names: &[&str]) -> bool {
        self.environments.has_packages(names)
    }

    /// The interpreter of a model, started with the module, and a guard of its environment.
    fn launch(&self, context: &ModelContext, file: &Path) -> Result<(Launch, Option<Arc<InUse>>)> {
        let folder = file.parent().unwrap_or(file).to_owned();
        let mut policy = self.options.sandbox.of_model(context, vec![folder])?;
        let parameter = context.config.parameters.get(EXECUTION_ENVIRONMENT);
        let requested = Requested {
            model_folder: &context.directory,
            execution_env_path: parameter.map(|parameter| parameter.string_value.as_str()),
            policy: &policy,
        };
        let name = &context.name;
        let environment = self
            .environments
            .prepare(&requested, &|line| tracing::info!("model '{name}': {line}"))
            .map_err(|error| Error::invalid_arg(format!("model '{name}': {error}")))?;
        tracing::info!("model '{name}' runs with {}", environment.origin);
        policy.readable.extend(environment.folders);
        let launch = Launch {
            program: environment.interpreter,
            arguments: vec![
                "-I".into(),
                "-c".into(),
                module::BOOTSTRAP.into(),
                self.library.path().into(),
                self.cuda_driver.clone().into(),
            ],
            variables: environment.variables,
            inherited: vec![self.library.descriptor()],
            policy,
        };
        Ok((launch, environment.in_use))
    }

    /// The file with the model's class: the model's own, or its backend's if the backend is written in Python.
    fn model_file(&self, context: &ModelContext) -> Result<PathBuf> {
        let backend = backend_name(&context.config).unwrap_or(PYTHON);
        let named = context.config.default_model_filename.as_str();
        let name = if named.is_empty() { MODEL_FILE } else { named };
        let (folder, name) = if backend == PYTHON {
            (context.version_directory(), name)
        } else {
            (self.directory.join(backend), MODEL_FILE)
        };
        let path = nereid_model_files::inside(&folder, name);
        let checked = path.and_then(|path| nereid_model_files::check(&path).map(|()| path));
        checked.map_err(|error: FileError| {
            let path = folder.join(name);
            let hint = if error.is_missing() { hint_at_missing(&path) } else { String::new() };
            let (model, path) = (&context.name, path.display());
            Error::not_found(format!("model '{model}': cannot use {path}: {error}{hint}"))
        })
    }
}

impl PythonBackend {
    /// Loads a model whose class is the server's own, in a file outside the model. Responses of such a class contain the states
    /// of their sequences among their outputs, and configurations that it completes may have further parameters.
    ///
    /// # Errors
    /// As [`Backend::load`].
    pub fn load_class(&self, context: ModelContext, file: PathBuf) -> Result<Box<dyn Model>> {
        self.load_file(context, file, true)
    }

    fn load_file(&self, context: ModelContext, file: PathBuf, is_own: bool) -> Result<Box<dyn Model>> {
        let reads_device_memory = reads_device_memory(&context)?;
        let (launch, environment) = self.launch(&context, &file)?;
        let class = Class { file, reads_device_memory, is_own, _environment: environment };
        Ok(Box::new(WorkerModel::load(context, launch, self.options.limits, Box::new(class))?))
    }
}

impl Backend for PythonBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let file = self.model_file(&context)?;
        self.load_file(context, file, false)
    }

    fn capabilities(&self) -> BackendCapabilities {
        Self::CAPABILITIES
    }
}

/// Whether the model accepts inputs in GPU memory.
fn reads_device_memory(context: &ModelContext) -> Result<bool> {
    let parameter =
        context.config.parameters.get(HOST_INPUTS).map(|parameter| parameter.string_value.as_str());
    match parameter {
        None | Some("yes") => Ok(false),
        Some("no") => Ok(true),
        Some(other) => Err(Error::unsupported(format!(
            "model '{}': parameter '{HOST_INPUTS}' is '{other}', expected yes or no",
            context.name
        ))),
    }
}

#[cfg(test)]
mod tests;

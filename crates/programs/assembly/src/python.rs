//! The implementation of backend `python` and of backends written in Python: the built-in one, or the installed
//! library.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nereid_backend_api::{Backend, BackendCapabilities, BackendSettings, Error, Model, ModelContext, Result};
use nereid_python::PythonBackend;

use crate::backends::BackendsConfig;
use crate::gpus::DriverLibrary;

/// The built-in backend, unless the setting `engine` selects the installed library. A library in a model's folder
/// overrides both. Models access GPU memory through the driver library.
///
/// # Errors
/// The setting has an unknown value.
pub(crate) fn built_in(config: &BackendsConfig, driver: &DriverLibrary) -> Result<Option<Arc<dyn Backend>>> {
    let settings = config.settings_of("python");
    match settings.get("engine") {
        None | Some("auto" | "builtin") => {
            let directory = config.directory.clone();
            let cuda_driver = driver.name().unwrap_or_default().to_owned();
            Ok(Some(Arc::new(BuiltIn { settings, directory, cuda_driver, backend: OnceLock::new() })))
        }
        Some("library") => Ok(None),
        Some(other) => Err(Error::invalid_arg(format!(
            "the setting 'engine' of backend 'python' is '{other}', but must be auto, builtin or library"
        ))),
    }
}

/// Checks the interpreter of a model, unless the model has its own environment.
///
/// # Errors
/// The interpreter to install or to name.
pub(crate) fn check(settings: &BackendSettings, directory: &Path, model: &ModelContext) -> Result<()> {
    match settings.get("engine") {
        Some("library") => Ok(()),
        _ => PythonBackend::new(settings, directory)?.check_interpreter(model),
    }
}

/// Opened when the first model needs it.
struct BuiltIn {
    settings: BackendSettings,
    directory: PathBuf,
    cuda_driver: String,
    backend: OnceLock<Result<PythonBackend>>,
}

impl Backend for BuiltIn {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let open = || {
            let backend = PythonBackend::new(&self.settings, &self.directory)?;
            Ok(backend.with_cuda_driver(&self.cuda_driver))
        };
        let backend = self.backend.get_or_init(open);
        backend.as_ref().map_err(Clone::clone)?.load(context)
    }

    fn capabilities(&self) -> BackendCapabilities {
        PythonBackend::CAPABILITIES
    }
}

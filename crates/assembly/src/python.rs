//! What runs the models of backend `python`, and backends that are written in Python: the built-in one, or the library that is
//! installed for it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use nereid_backend_api::{Backend, BackendCapabilities, BackendSettings, Error, Model, ModelContext, Result};
use nereid_python::PythonBackend;

use crate::backends::BackendsConfig;

/// The built-in backend, unless the setting `engine` asks for the installed library. A library in a model's folder goes
/// before both.
///
/// # Errors
/// The setting has an unknown value.
pub(crate) fn built_in(config: &BackendsConfig) -> Result<Option<Arc<dyn Backend>>> {
    let settings = config.settings_of("python");
    match settings.get("engine") {
        None | Some("auto" | "builtin") => {
            let directory = config.directory.clone();
            Ok(Some(Arc::new(BuiltIn { settings, directory, backend: OnceLock::new() })))
        }
        Some("library") => Ok(None),
        Some(other) => Err(Error::invalid_arg(format!(
            "the setting 'engine' of backend 'python' is '{other}', but takes auto, builtin or library"
        ))),
    }
}

/// Opened when the first model needs it.
struct BuiltIn {
    settings: BackendSettings,
    directory: PathBuf,
    backend: OnceLock<Result<PythonBackend>>,
}

impl Backend for BuiltIn {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let backend = self.backend.get_or_init(|| PythonBackend::new(&self.settings, &self.directory));
        backend.as_ref().map_err(Clone::clone)?.load(context)
    }

    fn capabilities(&self) -> BackendCapabilities {
        PythonBackend::CAPABILITIES
    }
}

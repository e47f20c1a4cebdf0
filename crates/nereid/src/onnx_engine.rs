//! Which engine runs the models of backend `onnxruntime`: ONNX Runtime where its library is at hand, or else the
//! embedded one.
//!
//! Decided when the first such model is loaded, so that a server without any looks for no library.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use nereid_backend_api::{Backend, BackendCapabilities, BackendSettings, Error, Model, ModelContext, Result};
use nereid_onnxruntime::{OnnxRuntime, OnnxRuntimeBackend, OpenError, Place, Places, find};
use nereid_tract::TractBackend;

const MISSING: &str = "no ONNX Runtime library was found: not by the setting 'library' or ORT_DYLIB_PATH, nor in the \
                       backend directory, the active Python environment or the system";

/// The backend `onnxruntime`.
pub(crate) struct OnnxEngine {
    settings: BackendSettings,
    /// Where backends are installed.
    backends: Option<PathBuf>,
    /// Whether the machine has a GPU.
    has_gpus: bool,
    chosen: OnceLock<Result<Arc<dyn Backend>>>,
}

impl OnnxEngine {
    /// With the backend's settings, of which it knows `engine` and `library`, and the folder where backends are
    /// installed.
    pub(crate) fn new(settings: BackendSettings, backends: Option<PathBuf>, has_gpus: bool) -> Self {
        Self { settings, backends, has_gpus, chosen: OnceLock::new() }
    }

    fn choose(&self) -> Result<Arc<dyn Backend>> {
        let embedded =
            |why: &str| -> Arc<dyn Backend> { Arc::new(TractBackend::new(self.settings.clone(), why)) };
        let only_ort = match self.settings.get("engine") {
            None | Some("auto") => false,
            Some("ort") => true,
            Some("tract") => return Ok(embedded("the setting engine=tract asks for it")),
            Some(other) => {
                return Err(Error::invalid_arg(format!(
                    "the backend setting 'engine' is '{other}', but takes auto, ort or tract"
                )));
            }
        };
        let library = self.settings.get("library").map(PathBuf::from);
        let found = find(&Places::of_process(library, self.backends.clone()));
        match OnnxRuntime::open(&found.path, &self.settings) {
            Ok(runtime) => {
                tracing::info!(
                    "ONNX Runtime {} {}: {}; execution providers: {}",
                    runtime.version(),
                    found.place,
                    found.path.display(),
                    runtime.providers().join(", ")
                );
                Ok(Arc::new(OnnxRuntimeBackend::new(runtime, self.settings.clone())))
            }
            // Nothing was found, then: no more than a name was left to try.
            Err(OpenError::Unloadable { .. }) if found.place == Place::System => {
                if only_ort {
                    return Err(Error::unavailable(format!(
                        "the setting engine=ort asks for ONNX Runtime, but {MISSING}"
                    )));
                }
                tracing::info!("{MISSING}; the embedded engine serves ONNX models");
                Ok(embedded("no ONNX Runtime library is at hand"))
            }
            Err(error) if only_ort => Err(Error::unavailable(format!(
                "the setting engine=ort asks for ONNX Runtime, but the library {} cannot be used: {error}",
                found.place
            ))),
            Err(error) => {
                tracing::warn!(
                    "the ONNX Runtime library {} cannot be used: {error}; the embedded engine serves ONNX models",
                    found.place
                );
                Ok(embedded("the ONNX Runtime library that was found cannot be used"))
            }
        }
    }
}

impl Backend for OnnxEngine {
    fn capabilities(&self) -> BackendCapabilities {
        // Both engines complete configurations, so the choice has to be made only where there is a GPU.
        let runs_on_gpus = self.has_gpus
            && matches!(self.chosen.get_or_init(|| self.choose()), Ok(engine) if engine.capabilities().runs_on_gpus);
        BackendCapabilities { completes_config: true, runs_on_gpus }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        match self.chosen.get_or_init(|| self.choose()) {
            Ok(engine) => engine.load(context),
            Err(error) => Err(error.clone().context(format_args!("model '{}'", context.name))),
        }
    }
}

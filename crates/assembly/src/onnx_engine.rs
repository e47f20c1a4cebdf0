//! Chooses the engine for ONNX graphs, of the backend `onnxruntime` and of models converted to ONNX: ONNX Runtime where
//! its library can be loaded, or else the embedded engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Model, ModelContext, Result};
use nereid_onnxruntime::{OnnxRuntime, OnnxRuntimeBackend, OpenError, Place, find};
use nereid_tract::TractBackend;

const MISSING: &str = "no ONNX Runtime library was found: not by the setting 'library' or ORT_DYLIB_PATH, nor in the \
                       backend directory, the active Python environment or the system";

/// An engine that is open.
pub(crate) enum Engine {
    OnnxRuntime(Arc<OnnxRuntimeBackend>),
    Embedded(Arc<TractBackend>),
}

impl Engine {
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::OnnxRuntime(backend) => Arc::clone(backend) as _,
            Self::Embedded(backend) => Arc::clone(backend) as _,
        }
    }

    /// Loads an ONNX model from memory. `origin` is the path of its source file.
    pub(crate) fn load_onnx(
        &self,
        context: &ModelContext,
        onnx: Vec<u8>,
        origin: PathBuf,
    ) -> Result<Box<dyn Model>> {
        match self {
            Self::OnnxRuntime(backend) => backend.load_onnx(context, onnx, origin),
            Self::Embedded(backend) => backend.load_onnx(context, &onnx, origin),
        }
    }
}

/// Opens the engine that the settings `engine` and `library` choose. `directory` is where backends are installed.
///
/// # Errors
/// The settings are invalid, or choose an engine that is not available.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Engine> {
    let embedded = |why: &str| Engine::Embedded(Arc::new(TractBackend::new(settings.clone(), why)));
    let only_ort = match settings.get("engine") {
        None | Some("auto") => false,
        Some("ort") => true,
        Some("tract") => return Ok(embedded("the setting engine=tract asks for it")),
        Some(other) => {
            return Err(Error::invalid_arg(format!(
                "the backend setting 'engine' is '{other}', but takes auto, ort or tract"
            )));
        }
    };
    let library = settings.get("library").map(PathBuf::from);
    let found = find(library, Some(directory.to_owned()));
    match OnnxRuntime::open(&found.path, settings) {
        Ok(runtime) => {
            tracing::info!(
                "ONNX Runtime {} {}: {}; execution providers: {}",
                runtime.version(),
                found.place,
                found.path.display(),
                runtime.providers().join(", ")
            );
            Ok(Engine::OnnxRuntime(Arc::new(OnnxRuntimeBackend::new(runtime, settings.clone()))))
        }
        // The search found nothing: only the library's bare name was left to try.
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

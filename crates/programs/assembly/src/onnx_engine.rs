//! Chooses the engine for ONNX graphs, of the backend `onnxruntime` and of models converted to ONNX: ONNX Runtime where
//! its library can be loaded, or else the embedded engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Model, ModelContext, Result};
use nereid_onnxruntime::{OnnxRuntime, OnnxRuntimeBackend, OpenError, Place, find};
#[cfg(feature = "embedded-engine")]
use nereid_tract::TractBackend;

use crate::installed;

const MISSING: &str = "no ONNX Runtime library was found: not by the setting 'library' or ORT_DYLIB_PATH, nor in the \
                       backend directory, the active Python environment or the system";

const BY_SETTING: &str = "the setting engine=tract selects the embedded engine";

/// A backend for ONNX models, which may also come from memory.
pub(crate) trait Engine: Backend {
    /// Loads an ONNX model from memory. `origin` is the path of its source file.
    fn load_onnx(&self, context: &ModelContext, onnx: Vec<u8>, origin: PathBuf) -> Result<Box<dyn Model>>;
}

impl Engine for OnnxRuntimeBackend {
    fn load_onnx(&self, context: &ModelContext, onnx: Vec<u8>, origin: PathBuf) -> Result<Box<dyn Model>> {
        self.load_onnx(context, onnx, origin)
    }
}

#[cfg(feature = "embedded-engine")]
impl Engine for TractBackend {
    fn load_onnx(&self, context: &ModelContext, onnx: Vec<u8>, origin: PathBuf) -> Result<Box<dyn Model>> {
        self.load_onnx(context, &onnx, origin)
    }
}

/// Constructor of the embedded engine; the text is the reason for using it.
type Embedded = fn(BackendSettings, &str) -> Arc<dyn Engine>;

/// The embedded engine, if the server is built with it.
#[cfg(feature = "embedded-engine")]
const EMBEDDED: Option<Embedded> = Some(|settings, why| Arc::new(TractBackend::new(settings, why)));
#[cfg(not(feature = "embedded-engine"))]
const EMBEDDED: Option<Embedded> = None;

/// The values of the setting `engine`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    OnnxRuntime,
    Embedded,
}

impl Choice {
    fn of(settings: &BackendSettings) -> Result<Self> {
        match settings.get("engine") {
            None | Some("auto") => Ok(Self::Auto),
            Some("ort") => Ok(Self::OnnxRuntime),
            Some("tract") => Ok(Self::Embedded),
            Some(other) => Err(Error::invalid_arg(format!(
                "the backend setting 'engine' is '{other}', but must be auto, ort or tract"
            ))),
        }
    }
}

/// An engine that [`open`] would choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    OnnxRuntime,
    Embedded,
}

/// The engine that [`open`] would choose if the library that it finds can be used. Loads nothing.
///
/// # Errors
/// The settings are invalid, or select an unavailable engine.
pub(crate) fn expected(settings: &BackendSettings, directory: &Path) -> Result<Expected> {
    let embedded = |reason: &str| match EMBEDDED {
        Some(_) => Ok(Expected::Embedded),
        None => Err(without_embedded(reason)),
    };
    let choice = Choice::of(settings)?;
    if choice == Choice::Embedded {
        return embedded(BY_SETTING);
    }
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    match installed::check(&found, "ONNX Runtime library", MISSING) {
        Ok(()) => Ok(Expected::OnnxRuntime),
        Err(missing) if choice == Choice::OnnxRuntime => Err(only_onnx_runtime(missing.message())),
        Err(missing) => embedded(missing.message()),
    }
}

fn only_onnx_runtime(reason: &str) -> Error {
    Error::unavailable(format!("the setting engine=ort selects ONNX Runtime, but {reason}"))
}

fn without_embedded(reason: &str) -> Error {
    Error::unavailable(format!("{reason}; this server is built without the embedded engine"))
}

/// Checks that the embedded engine has the operators of a model's file.
#[cfg(feature = "embedded-engine")]
pub(crate) use nereid_tract::check_operators as check_embedded;

/// Without an embedded engine, no model gets this far.
#[cfg(not(feature = "embedded-engine"))]
pub(crate) fn check_embedded(_: &ModelContext) -> Result<()> {
    Ok(())
}

/// Opens the engine selected by the settings `engine` and `library`. `directory` contains the installed backends.
///
/// # Errors
/// The settings are invalid, or select an unavailable engine.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Arc<dyn Engine>> {
    open_with(EMBEDDED, settings, directory)
}

fn open_with(
    embedded: Option<Embedded>,
    settings: &BackendSettings,
    directory: &Path,
) -> Result<Arc<dyn Engine>> {
    let embedded = |reason: &str, why: &str| match embedded {
        Some(embedded) => Ok(embedded(settings.clone(), why)),
        None => Err(without_embedded(reason)),
    };
    let choice = Choice::of(settings)?;
    if choice == Choice::Embedded {
        return embedded(BY_SETTING, "the setting engine=tract selects it");
    }
    let only_ort = choice == Choice::OnnxRuntime;
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
            Ok(Arc::new(OnnxRuntimeBackend::new(runtime, settings.clone())))
        }
        // The search found nothing: only the library's bare name was left to try.
        Err(OpenError::Unloadable { .. }) if found.place == Place::System => {
            if only_ort {
                return Err(only_onnx_runtime(MISSING));
            }
            let engine = embedded(MISSING, "no ONNX Runtime library is at hand")?;
            tracing::info!("{MISSING}; the embedded engine serves ONNX models");
            Ok(engine)
        }
        Err(error) if only_ort => {
            Err(only_onnx_runtime(&format!("the library {} cannot be used: {error}", found.place)))
        }
        Err(error) => {
            let reason = format!("the ONNX Runtime library {} cannot be used: {error}", found.place);
            let engine = embedded(&reason, "the ONNX Runtime library that was found cannot be used")?;
            tracing::warn!("{reason}; the embedded engine serves ONNX models");
            Ok(engine)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_onnx_runtime_is_reported_without_the_embedded_engine() {
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("libonnxruntime.so");
        std::fs::write(&broken, "not a library").unwrap();
        let absent = folder.path().join("absent.so");
        let embedded: Embedded = |_, why| panic!("opened because {why}");
        let cases: [(Option<Embedded>, &str, &Path, &[&str]); 6] = [
            (None, "tract", &absent, &["engine=tract selects the embedded engine", "is built without"]),
            (None, "auto", &absent, &["given by the setting 'library' cannot be used", "is built without"]),
            (None, "auto", &broken, &["given by the setting 'library' cannot be used", "is built without"]),
            (None, "ort", &broken, &["engine=ort selects ONNX Runtime", "cannot be used"]),
            (Some(embedded), "ort", &absent, &["engine=ort selects ONNX Runtime", "cannot be used"]),
            (None, "other", &absent, &["must be auto, ort or tract"]),
        ];
        for (embedded, engine, library, expected) in cases {
            let library = library.to_str().unwrap();
            let settings: BackendSettings = [("engine", engine), ("library", library)].into_iter().collect();
            let error = open_with(embedded, &settings, folder.path()).err().unwrap().to_string();
            assert!(expected.iter().all(|words| error.contains(words)), "{engine} {library}: {error}");
        }
    }
}

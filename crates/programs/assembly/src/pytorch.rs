//! The backend `pytorch`: on libtorch, where it can be loaded with a shim for it, or else with PyTorch's own Python.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, BackendSettings, Error, Model, ModelContext, Result};
use nereid_python::PythonBackend;
use nereid_pytorch::{OpenError, Place, Torch, TorchBackend, check_config, check_file, class_file, find};

use crate::installed;

const MISSING: &str = "no libtorch was found: not by the setting 'library', nor in the backend directory, the active Python \
                       environment or the system; `pip install torch` in that environment is enough, with a C++ compiler \
                       beside it";

/// The values of the setting `engine`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    Library,
    Python,
}

impl Choice {
    fn of(settings: &BackendSettings) -> Result<Self> {
        match settings.get("engine") {
            None | Some("auto") => Ok(Self::Auto),
            Some("library") => Ok(Self::Library),
            Some("python") => Ok(Self::Python),
            Some(other) => Err(Error::invalid_arg(format!(
                "the backend setting 'engine' is '{other}', but must be auto, library or python"
            ))),
        }
    }
}

/// Checks that libtorch is installed, unless PyTorch's own Python is selected. Loads nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn check(settings: &BackendSettings, directory: &Path) -> Result<()> {
    if Choice::of(settings)? == Choice::Python {
        return Ok(());
    }
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    installed::check(&found, "libtorch", MISSING)
}

/// Opens the engine selected by the setting `engine`: libtorch, from the setting `library` or a search, or the Python
/// configured for backend `python`. `directory` contains the installed backends.
///
/// # Errors
/// No engine is available; the error contains a remedy.
pub(crate) fn open(
    settings: &BackendSettings,
    python: &BackendSettings,
    directory: &Path,
) -> Result<Arc<dyn Backend>> {
    let in_python = |why: &str| InPython::open(python, directory, why);
    let choice = Choice::of(settings)?;
    if choice == Choice::Python {
        return in_python("the setting engine=python selects it");
    }
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    let torch = match Torch::open(&found.path) {
        Ok(torch) => torch,
        // The search found nothing: only the library's bare name was left to try.
        Err(OpenError::Unloadable(_)) if found.place == Place::System => {
            return Err(Error::unavailable(MISSING));
        }
        Err(OpenError::NoShim(error)) if choice != Choice::Library => return in_python(&error.to_string()),
        Err(error) => {
            return Err(Error::unavailable(format!("the libtorch {} cannot be used: {error}", found.place)));
        }
    };
    tracing::info!("libtorch {}: {}", found.place, found.path.display());
    Ok(Arc::new(TorchBackend::new(torch)))
}

/// TorchScript models and packages of AOTInductor on PyTorch's own Python.
struct InPython {
    python: PythonBackend,
    class: PathBuf,
    why: String,
}

impl InPython {
    fn open(settings: &BackendSettings, directory: &Path, why: &str) -> Result<Arc<dyn Backend>> {
        let python = PythonBackend::new(settings, directory)?;
        let class = class_file().map_err(|error| Error::unavailable(error.to_string()))?;
        tracing::info!("PyTorch's own Python serves TorchScript models and packages: {why}");
        Ok(Arc::new(Self { python, class, why: why.to_owned() }))
    }
}

impl Backend for InPython {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let name = context.name.clone();
        check_config(&context.config)
            .and_then(|()| check_file(&context))
            .map_err(|error| error.context(format_args!("model '{name}'")))?;
        self.python.load_class(context, self.class.clone()).map_err(|error| {
            error.context(format_args!("model '{name}' needs PyTorch's own Python ({})", self.why))
        })
    }

    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { is_isolated: true, ..BackendCapabilities::default() }
    }
}

//! The backend `transformers`, with the settings of the backend `python` where it has none of its own.

use std::path::Path;
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, ModelContext, Result};
use nereid_python::PythonBackend;
use nereid_transformers::TransformersBackend;

/// The name of the backend.
pub(crate) const NAME: &str = "transformers";

/// The backends whose settings apply. Later ones override earlier ones.
pub(crate) const LAYERS: [&str; 2] = ["python", NAME];

/// Packages that the interpreter needs.
const PACKAGES: [&str; 2] = ["torch", "transformers"];

/// Names and values of settings. Of duplicates, the last one applies.
pub(crate) type Layered<'a> = Vec<(&'a str, &'a str)>;

/// Opens the backend. `directory` contains the installed backends.
///
/// # Errors
/// A setting is invalid.
pub(crate) fn open(settings: Layered<'_>, directory: &Path) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(TransformersBackend::new(python(settings, directory)?)))
}

/// Checks the interpreter of a model, unless the model has its own environment.
///
/// # Errors
/// The interpreter to install or to name.
pub(crate) fn check(settings: Layered<'_>, directory: &Path, model: &ModelContext) -> Result<()> {
    python(settings, directory)?.check_interpreter(model)
}

/// Whether the interpreter has the packages.
pub(crate) fn is_here(settings: Layered<'_>, directory: &Path) -> bool {
    python(settings, directory).is_ok_and(|python| python.has_packages(&PACKAGES))
}

/// The names of the backend's settings: all of `python` but the limit of executions. An execution ends when its request
/// starts to run, so it may last as long as other requests.
pub(crate) fn settings() -> impl Iterator<Item = &'static str> {
    PythonBackend::settings().filter(|name| *name != PythonBackend::EXECUTE_TIMEOUT)
}

fn python(settings: Layered<'_>, directory: &Path) -> Result<PythonBackend> {
    let settings = settings.into_iter().filter(|(key, _)| *key != PythonBackend::EXECUTE_TIMEOUT);
    PythonBackend::new(&settings.collect::<BackendSettings>(), directory)
}

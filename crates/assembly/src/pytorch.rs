//! The backend `pytorch`, where libtorch can be loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_pytorch::{OpenError, Place, Torch, TorchBackend, find};

/// Opens the libtorch that the setting `library` names, or the one that is found. `directory` is where backends are
/// installed.
///
/// # Errors
/// There is none that can be used, and what to do about it.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Arc<dyn Backend>> {
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    let torch = Torch::open(&found.path).map_err(|error| match error {
        // Nothing was found, then: no more than a name was left to try.
        OpenError::Unloadable(_) if found.place == Place::System => Error::unavailable(
            "no libtorch was found: not by the setting 'library', nor in the backend directory, the active Python \
             environment or the system; `pip install torch` in that environment is enough, with a C++ compiler beside it",
        ),
        error => Error::unavailable(format!("the libtorch {} cannot be used: {error}", found.place)),
    })?;
    tracing::info!("libtorch {}: {}", found.place, found.path.display());
    Ok(Arc::new(TorchBackend::new(torch)))
}

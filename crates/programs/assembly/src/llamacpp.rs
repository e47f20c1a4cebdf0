//! The backend `llamacpp`, where llama.cpp's library can be loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_llamacpp::{LibraryLocation, LlamaCpp, LlamaCppBackend, OpenError, Place, find};

use crate::installed;

const MISSING: &str = "no llama.cpp library was found: not by the setting 'library', nor in the backend directory, the active Python \
                       environment, the Node.js packages or the system; `npm install -g @node-llama-cpp/linux-x64@3.22.1` is enough";

fn locate(settings: &BackendSettings, directory: &Path) -> LibraryLocation {
    find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()))
}

/// Checks that the library is installed. Loads nothing.
///
/// # Errors
/// The library is missing, and what to do about it.
pub(crate) fn check(settings: &BackendSettings, directory: &Path) -> Result<()> {
    installed::check(&locate(settings, directory), "llama.cpp library", MISSING)
}

/// Opens the library that the setting `library` names, or the one that is found. `directory` is where backends are installed.
///
/// # Errors
/// No usable library was found, and what to do about it.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Arc<dyn Backend>> {
    let found = locate(settings, directory);
    let library = LlamaCpp::open(&found.path).map_err(|error| match error {
        // The search found nothing: only the library's bare name was left to try.
        OpenError::Unloadable(_) if found.place == Place::System => Error::unavailable(MISSING),
        error => Error::unavailable(format!("the llama.cpp library {} cannot be used: {error}", found.place)),
    })?;
    tracing::info!("llama.cpp {} {}: {}", library.version(), found.place, found.path.display());
    Ok(Arc::new(LlamaCppBackend::new(library)))
}

//! The backends `openvino` and `tensorflow`, where the library of OpenVINO can be loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_openvino::{Dialect, LibraryLocation, OpenError, OpenVino, OpenVinoBackend, Place, find};

use crate::installed;

const MISSING: &str = "no OpenVINO library was found: not by the setting 'library', nor in the backend directory, the active \
                       Python environment or the system; `pip install openvino` in that environment is enough";

const FOR_TENSORFLOW: &str = "TensorFlow models are served by OpenVINO";

/// The library that [`open`] opens.
fn locate(settings: &BackendSettings, directory: &Path) -> LibraryLocation {
    find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()))
}

/// Checks that the library is installed. Loads nothing.
///
/// # Errors
/// The library is missing, and what to do about it.
pub(crate) fn check(settings: &BackendSettings, directory: &Path) -> Result<()> {
    installed::check(&locate(settings, directory), "OpenVINO library", MISSING)
}

/// Checks that the library is installed, which would serve TensorFlow models. Loads nothing.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_for_tensorflow(openvino: &BackendSettings, directory: &Path) -> Result<()> {
    check(openvino, directory).map_err(|error| error.context(FOR_TENSORFLOW))
}

/// The backend `openvino`: opens the library that the setting `library` names, or the one that is found. `directory` is
/// where backends are installed.
///
/// # Errors
/// There is none that can be used, and what to do about it.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Arc<dyn Backend>> {
    let library = library(settings, directory)?;
    Ok(Arc::new(OpenVinoBackend::new(library, settings.clone(), Dialect::OpenVino)?))
}

/// The backend `tensorflow` with its `settings`, on the library of the backend `openvino` with the settings `openvino`.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_for_tensorflow(
    settings: &BackendSettings,
    openvino: &BackendSettings,
    directory: &Path,
) -> Result<Arc<dyn Backend>> {
    let library = library(openvino, directory).map_err(|error| error.context(FOR_TENSORFLOW))?;
    tracing::info!("OpenVINO {} serves TensorFlow models", library.version());
    Ok(Arc::new(OpenVinoBackend::new(library, settings.clone(), Dialect::TensorFlow)?))
}

fn library(settings: &BackendSettings, directory: &Path) -> Result<Arc<OpenVino>> {
    let found = locate(settings, directory);
    let library = OpenVino::open(&found.path).map_err(|error| match error {
        // The search found nothing: only the library's bare name was left to try.
        OpenError::Unloadable(_) if found.place == Place::System => Error::unavailable(MISSING),
        error => Error::unavailable(format!("the OpenVINO library {} cannot be used: {error}", found.place)),
    })?;
    tracing::info!("OpenVINO {} {}: {}", library.version(), found.place, found.path.display());
    Ok(library)
}

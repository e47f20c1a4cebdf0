//! The backends `openvino` and `tensorflow`, where the library of OpenVINO can be loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_openvino::{Dialect, OpenError, OpenVino, OpenVinoBackend, Place, find};

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
    let library = library(openvino, directory)
        .map_err(|error| error.context("TensorFlow models are served by OpenVINO"))?;
    tracing::info!("OpenVINO {} serves TensorFlow models", library.version());
    Ok(Arc::new(OpenVinoBackend::new(library, settings.clone(), Dialect::TensorFlow)?))
}

fn library(settings: &BackendSettings, directory: &Path) -> Result<Arc<OpenVino>> {
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    let library = OpenVino::open(&found.path).map_err(|error| match error {
        // The search found nothing: only the library's bare name was left to try.
        OpenError::Unloadable(_) if found.place == Place::System => Error::unavailable(
            "no OpenVINO library was found: not by the setting 'library', nor in the backend directory, the active \
             Python environment or the system; `pip install openvino` in that environment is enough",
        ),
        error => Error::unavailable(format!("the OpenVINO library {} cannot be used: {error}", found.place)),
    })?;
    tracing::info!("OpenVINO {} {}: {}", library.version(), found.place, found.path.display());
    Ok(library)
}

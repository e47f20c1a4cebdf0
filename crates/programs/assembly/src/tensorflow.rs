//! The backend `tensorflow`: on TensorFlow's own library where it can be loaded, or else on OpenVINO's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_tensorflow::{OpenError, Place, TensorFlow, TensorFlowBackend, find};

use crate::openvino;

/// Opens the library that the settings `engine` and `library` choose: TensorFlow's, or OpenVINO's with the settings
/// `openvino`. `directory` is where backends are installed.
///
/// # Errors
/// Neither library can be opened, or the settings are invalid.
pub(crate) fn open(
    settings: &BackendSettings,
    openvino: &BackendSettings,
    directory: &Path,
) -> Result<Arc<dyn Backend>> {
    let by_openvino = || openvino::open_for_tensorflow(settings, openvino, directory);
    let only_tensorflow = match settings.get("engine") {
        None | Some("auto") => settings.get("library").is_some(),
        Some("tensorflow") => true,
        Some("openvino") => return by_openvino(),
        Some(other) => {
            return Err(Error::invalid_arg(format!(
                "the backend setting 'engine' is '{other}', but must be auto, tensorflow or openvino"
            )));
        }
    };
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    let why = match TensorFlow::open(&found.path) {
        Ok(library) => {
            tracing::info!("TensorFlow {} {}: {}", library.version(), found.place, found.path.display());
            return Ok(Arc::new(TensorFlowBackend::new(library, settings.clone())));
        }
        // The search found nothing: only the library's bare name was left to try.
        Err(OpenError::Unloadable(_)) if found.place == Place::System => {
            "no TensorFlow library was found: not by the setting 'library', nor in the backend directory, the active \
             Python environment or the system; `pip install tensorflow` in that environment is enough"
                .to_owned()
        }
        Err(error) => format!("the TensorFlow library {} cannot be used: {error}", found.place),
    };
    if only_tensorflow {
        return Err(Error::unavailable(why));
    }
    tracing::info!("{why}; OpenVINO serves TensorFlow models");
    by_openvino().map_err(|error| error.context(why))
}

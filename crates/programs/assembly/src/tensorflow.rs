//! The backend `tensorflow`: on TensorFlow's own library where it can be loaded, or else on OpenVINO's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Error, Result};
use nereid_tensorflow::{OpenError, Place, TensorFlow, TensorFlowBackend, find};

use crate::{installed, openvino};

const MISSING: &str = "no TensorFlow library was found: not by the setting 'library', nor in the backend directory, the active \
                       Python environment or the system; `pip install tensorflow` in that environment is enough";

/// The engine that the settings `engine` and `library` select.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    TensorFlow,
    OpenVino,
}

impl Choice {
    fn of(settings: &BackendSettings) -> Result<Self> {
        match settings.get("engine") {
            None | Some("auto") if settings.get("library").is_none() => Ok(Self::Auto),
            None | Some("auto" | "tensorflow") => Ok(Self::TensorFlow),
            Some("openvino") => Ok(Self::OpenVino),
            Some(other) => Err(Error::invalid_arg(format!(
                "the backend setting 'engine' is '{other}', but must be auto, tensorflow or openvino"
            ))),
        }
    }
}

/// Checks that one of the libraries that [`open`] would choose from is installed. Loads nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn check(settings: &BackendSettings, openvino: &BackendSettings, directory: &Path) -> Result<()> {
    let by_openvino = || openvino::check_for_tensorflow(openvino, directory);
    let choice = Choice::of(settings)?;
    if choice == Choice::OpenVino {
        return by_openvino();
    }
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    match installed::check(&found, "TensorFlow library", MISSING) {
        Err(missing) if choice == Choice::Auto => {
            by_openvino().map_err(|error| error.context(missing.message()))
        }
        outcome => outcome,
    }
}

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
    let choice = Choice::of(settings)?;
    if choice == Choice::OpenVino {
        return by_openvino();
    }
    let only_tensorflow = choice == Choice::TensorFlow;
    let found = find(settings.get("library").map(PathBuf::from), Some(directory.to_owned()));
    let why = match TensorFlow::open(&found.path) {
        Ok(library) => {
            tracing::info!("TensorFlow {} {}: {}", library.version(), found.place, found.path.display());
            return Ok(Arc::new(TensorFlowBackend::new(library, settings.clone())));
        }
        // The search found nothing: only the library's bare name was left to try.
        Err(OpenError::Unloadable(_)) if found.place == Place::System => MISSING.to_owned(),
        Err(error) => format!("the TensorFlow library {} cannot be used: {error}", found.place),
    };
    if only_tensorflow {
        return Err(Error::unavailable(why));
    }
    tracing::warn!("{why}; OpenVINO serves TensorFlow models");
    by_openvino().map_err(|error| error.context(why))
}

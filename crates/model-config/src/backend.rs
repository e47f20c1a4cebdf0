//! From a platform to the backend that runs it, and to the file it expects.
//!
//! Knows the names the reference gives to its own backends; any other backend goes by its own name alone.

use crate::proto::ModelConfig;

/// The platform of a model that is a graph of other models. It has no backend.
pub const ENSEMBLE_PLATFORM: &str = "ensemble";

/// A platform, its backend, and the model's file where the configuration names none.
struct Platform {
    name: &'static str,
    backend: &'static str,
    filename: &'static str,
}

/// The first platform of a backend is what the backend runs where no platform is given.
const PLATFORMS: &[Platform] = &[
    Platform { name: "onnxruntime_onnx", backend: "onnxruntime", filename: "model.onnx" },
    Platform { name: "tensorrt_plan", backend: "tensorrt", filename: "model.plan" },
    Platform { name: "pytorch_libtorch", backend: "pytorch", filename: "model.pt" },
    Platform { name: "libtorch", backend: "pytorch", filename: "model.pt" },
    Platform { name: "torch_aoti", backend: "pytorch", filename: "model.pt2" },
    Platform { name: "tensorflow_savedmodel", backend: "tensorflow", filename: "model.savedmodel" },
    Platform { name: "tensorflow_graphdef", backend: "tensorflow", filename: "model.graphdef" },
];

/// Backends that have no platform of their own.
const FILENAMES: &[(&str, &str)] = &[("openvino", "model.xml"), ("python", "model.py")];

fn platform(name: &str) -> Option<&'static Platform> {
    PLATFORMS.iter().find(|platform| platform.name == name)
}

/// The backend that runs the model: the one it names, or else its platform's. `None` for an ensemble, and where
/// neither is known.
pub fn backend_name(config: &ModelConfig) -> Option<&str> {
    if config.backend.is_empty() {
        platform(&config.platform).map(|platform| platform.backend)
    } else {
        Some(&config.backend)
    }
}

/// The platform as metadata names it: the one the configuration names, or else the first one of its backend, or else
/// the backend.
pub fn platform_name(config: &ModelConfig) -> &str {
    if !config.platform.is_empty() {
        return &config.platform;
    }
    platform_of(&config.backend).unwrap_or(&config.backend)
}

/// What a backend runs where no platform is given; `None` if it has no platform of its own.
pub(crate) fn platform_of(backend: &str) -> Option<&'static str> {
    PLATFORMS.iter().find(|platform| platform.backend == backend).map(|platform| platform.name)
}

/// The backend that expects a file of this name.
pub(crate) fn backend_of_file(filename: &str) -> Option<&'static str> {
    let of_platforms = PLATFORMS.iter().map(|platform| (platform.backend, platform.filename));
    let mut known = of_platforms.chain(FILENAMES.iter().copied());
    known.find(|&(_, expected)| expected == filename).map(|(backend, _)| backend)
}

/// The model's file in a version's folder: the one it names, or else what its platform or its backend expects.
/// `None` where the backend has no such habit.
pub fn default_model_filename(config: &ModelConfig) -> Option<&str> {
    if !config.default_model_filename.is_empty() {
        return Some(&config.default_model_filename);
    }
    let backend = backend_name(config)?;
    let named = platform(&config.platform).filter(|platform| platform.backend == backend);
    named
        .or_else(|| PLATFORMS.iter().find(|platform| platform.backend == backend))
        .map(|platform| platform.filename)
        .or_else(|| FILENAMES.iter().find(|(name, _)| *name == backend).map(|(_, filename)| *filename))
}

/// Whether a backend can run a platform. Only the pairs in the table are known to be wrong: a backend from
/// elsewhere may call its platforms as it likes.
pub(crate) fn is_pair(backend: &str, platform_name: &str) -> bool {
    match platform(platform_name) {
        Some(platform) => platform.backend == backend || !is_known(backend),
        None => !is_known(backend),
    }
}

fn is_known(backend: &str) -> bool {
    PLATFORMS.iter().any(|platform| platform.backend == backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(platform: &str, backend: &str) -> ModelConfig {
        ModelConfig { platform: platform.to_owned(), backend: backend.to_owned(), ..ModelConfig::default() }
    }

    #[test]
    fn platforms_lead_to_a_backend_and_a_file() {
        for (platform, backend, filename) in [
            ("onnxruntime_onnx", "onnxruntime", "model.onnx"),
            ("tensorrt_plan", "tensorrt", "model.plan"),
            ("pytorch_libtorch", "pytorch", "model.pt"),
            ("libtorch", "pytorch", "model.pt"),
            ("torch_aoti", "pytorch", "model.pt2"),
            ("tensorflow_savedmodel", "tensorflow", "model.savedmodel"),
            ("tensorflow_graphdef", "tensorflow", "model.graphdef"),
        ] {
            let config = config(platform, "");
            assert_eq!(backend_name(&config), Some(backend), "{platform}");
            assert_eq!(default_model_filename(&config), Some(filename), "{platform}");
        }
    }

    #[test]
    fn metadata_names_the_platform_the_backends_or_the_backend() {
        assert_eq!(platform_name(&config("pytorch_libtorch", "")), "pytorch_libtorch");
        assert_eq!(platform_name(&config("", "onnxruntime")), "onnxruntime_onnx");
        assert_eq!(platform_name(&config("", "identity")), "identity");
    }

    #[test]
    fn a_backend_goes_before_the_platform() {
        assert_eq!(backend_name(&config("onnxruntime_onnx", "mine")), Some("mine"));
        assert_eq!(default_model_filename(&config("onnxruntime_onnx", "mine")), None);
    }

    #[test]
    fn backends_without_a_platform_have_a_file_too() {
        for (backend, filename) in [
            ("onnxruntime", "model.onnx"),
            ("pytorch", "model.pt"),
            ("tensorrt", "model.plan"),
            ("openvino", "model.xml"),
            ("python", "model.py"),
        ] {
            assert_eq!(default_model_filename(&config("", backend)), Some(filename), "{backend}");
        }
        assert_eq!(default_model_filename(&config("", "mine")), None);
        assert_eq!(default_model_filename(&config("torch_aoti", "pytorch")), Some("model.pt2"));
    }

    #[test]
    fn a_given_filename_stands() {
        let mut config = config("onnxruntime_onnx", "");
        config.default_model_filename = "other.onnx".to_owned();
        assert_eq!(default_model_filename(&config), Some("other.onnx"));
    }

    #[test]
    fn an_ensemble_and_the_unknown_have_no_backend() {
        for platform in [ENSEMBLE_PLATFORM, "", "nonsense"] {
            assert_eq!(backend_name(&config(platform, "")), None, "{platform}");
            assert_eq!(default_model_filename(&config(platform, "")), None, "{platform}");
        }
    }

    #[test]
    fn wrong_pairs_are_known() {
        assert!(is_pair("onnxruntime", "onnxruntime_onnx"));
        assert!(is_pair("mine", "onnxruntime_onnx"));
        assert!(is_pair("mine", "anything"));
        assert!(!is_pair("onnxruntime", "tensorrt_plan"));
        assert!(!is_pair("onnxruntime", "anything"));
    }
}

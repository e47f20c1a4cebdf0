//! Maps a platform to its backend and to its default model file.
//!
//! Knows the names of Triton's own backends; other backends have no platforms.

use crate::proto::ModelConfig;

/// The platform of a model that is a graph of other models. It has no backend.
pub const ENSEMBLE_PLATFORM: &str = "ensemble";

/// The only platform with profiles, shape tensors and non-linear formats.
pub(crate) const TENSORRT_PLATFORM: &str = "tensorrt_plan";

const TENSORFLOW: &str = "tensorflow";

/// A platform, its backend, and its default model file.
struct Platform {
    name: &'static str,
    backend: &'static str,
    filename: &'static str,
}

/// The first platform of a backend is its default, except for TensorFlow, which requires a platform. The order is the
/// reference's: if a platform and a file name contradict each other, the earlier entry wins.
const PLATFORMS: &[Platform] = &[
    Platform { name: "tensorflow_savedmodel", backend: TENSORFLOW, filename: "model.savedmodel" },
    Platform { name: "tensorflow_graphdef", backend: TENSORFLOW, filename: "model.graphdef" },
    Platform { name: TENSORRT_PLATFORM, backend: "tensorrt", filename: "model.plan" },
    Platform { name: "onnxruntime_onnx", backend: "onnxruntime", filename: "model.onnx" },
    Platform { name: "pytorch_libtorch", backend: "pytorch", filename: "model.pt" },
    Platform { name: "libtorch", backend: "pytorch", filename: "model.pt" },
    Platform { name: "torch_aoti", backend: "pytorch", filename: "model.pt2" },
    Platform { name: "caffe2_netdef", backend: "caffe2", filename: "model.netdef" },
    Platform { name: "gguf", backend: "llamacpp", filename: "model.gguf" },
];

/// Backends without platforms.
const FILENAMES: &[(&str, &str)] = &[("openvino", "model.xml"), ("python", "model.py")];

/// Backends without platforms and default files.
const OTHERS: &[&str] = &["dali", "fil", "identity"];

fn platform(name: &str) -> Option<&'static Platform> {
    PLATFORMS.iter().find(|platform| platform.name == name)
}

/// A backend's default platform.
fn first_platform(backend: &str) -> Option<&'static Platform> {
    PLATFORMS.iter().find(|platform| platform.backend == backend && backend != TENSORFLOW)
}

fn platforms_of(backend: &str) -> Vec<&'static str> {
    PLATFORMS.iter().filter(|platform| platform.backend == backend).map(|platform| platform.name).collect()
}

/// The names of all platforms that imply a backend.
pub(crate) fn platform_names() -> impl Iterator<Item = &'static str> {
    PLATFORMS.iter().map(|platform| platform.name)
}

/// Whether this is the name of one of the reference's own backends.
pub(crate) fn is_known_backend(name: &str) -> bool {
    let of_platforms = PLATFORMS.iter().map(|platform| platform.backend);
    let by_file = FILENAMES.iter().map(|&(backend, _)| backend);
    of_platforms.chain(by_file).chain(OTHERS.iter().copied()).any(|known| known == name)
}

/// The backend that runs the model: the configured one, or else the platform's. `None` for an ensemble, and if
/// neither is known.
pub fn backend_name(config: &ModelConfig) -> Option<&str> {
    if config.backend.is_empty() {
        platform(&config.platform).map(|platform| platform.backend)
    } else {
        Some(&config.backend)
    }
}

/// The platform in metadata: the configured one, or else the backend's first one, or else the backend.
pub fn platform_name(config: &ModelConfig) -> &str {
    if !config.platform.is_empty() {
        return &config.platform;
    }
    first_platform(&config.backend).map_or(&config.backend, |platform| platform.name)
}

/// The model's file in a version's folder: the configured one, or else the default of its platform or backend. `None`
/// if the backend has no default.
pub fn default_model_filename(config: &ModelConfig) -> Option<&str> {
    if !config.default_model_filename.is_empty() {
        return Some(&config.default_model_filename);
    }
    let backend = backend_name(config)?;
    let named = platform(&config.platform);
    // TensorFlow's platforms keep their file for any backend.
    named
        .filter(|platform| platform.backend == backend || platform.backend == TENSORFLOW)
        .or_else(|| first_platform(backend))
        .map(|platform| platform.filename)
        .or_else(|| FILENAMES.iter().find(|(name, _)| *name == backend).map(|(_, filename)| *filename))
}

/// Fills in backend, platform and file: each may follow from the others, and if none is set, from the model's name.
/// The contents of a version's folder take precedence over the name; callers that know them must fill them in first.
pub(crate) fn fill(config: &mut ModelConfig) {
    let by_file = PLATFORMS.iter().find(|platform| platform.filename == config.default_model_filename);
    let by_file = by_file.filter(|platform| [platform.backend, ""].contains(&config.backend.as_str()));
    if config.backend.is_empty() {
        let backend = backend_of(&config.platform, &config.default_model_filename);
        config.backend = backend.unwrap_or_default().to_owned();
    }
    if config.platform.is_empty() {
        let platform = by_file.or_else(|| first_platform(&config.backend));
        config.platform = platform.map_or("", |platform| platform.name).to_owned();
    }
    config.default_model_filename = default_model_filename(config).unwrap_or_default().to_owned();
    if config.backend.is_empty()
        && config.platform.is_empty()
        && config.default_model_filename.is_empty()
        && let Some((_, backend)) = config.name.split_once('.')
    {
        config.default_model_filename = format!("model.{backend}");
        config.backend = backend.to_owned();
    }
}

/// The first backend with either the platform or the file.
fn backend_of(platform: &str, filename: &str) -> Option<&'static str> {
    let tensorflow = |known: &Platform| known.backend == TENSORFLOW && !platform.is_empty();
    let of_platforms = PLATFORMS.iter().find(|known| {
        // A TensorFlow file is ignored if another platform is set.
        known.name == platform || (known.filename == filename && !tensorflow(known))
    });
    let by_file = || FILENAMES.iter().find(|&&(_, expected)| expected == filename);
    of_platforms.map(|known| known.backend).or_else(|| by_file().map(|&(backend, _)| backend))
}

/// Checks that a backend can run a platform, which may be empty. Only the pairs in the table can be wrong: other
/// backends may use any platform name.
///
/// # Errors
/// The platforms that the backend runs.
pub(crate) fn check_pair(backend: &str, platform_name: &str) -> Result<(), Vec<&'static str>> {
    let platforms = platforms_of(backend);
    let left_out = platform_name.is_empty() && first_platform(backend).is_some();
    if platforms.is_empty() || left_out || platforms.contains(&platform_name) {
        return Ok(());
    }
    Err(platforms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(platform: &str, backend: &str) -> ModelConfig {
        ModelConfig { platform: platform.to_owned(), backend: backend.to_owned(), ..ModelConfig::default() }
    }

    #[test]
    fn platform_implies_backend_and_file() {
        for (platform, backend, filename) in [
            ("onnxruntime_onnx", "onnxruntime", "model.onnx"),
            ("tensorrt_plan", "tensorrt", "model.plan"),
            ("pytorch_libtorch", "pytorch", "model.pt"),
            ("libtorch", "pytorch", "model.pt"),
            ("caffe2_netdef", "caffe2", "model.netdef"),
            ("torch_aoti", "pytorch", "model.pt2"),
            ("gguf", "llamacpp", "model.gguf"),
            ("tensorflow_savedmodel", "tensorflow", "model.savedmodel"),
            ("tensorflow_graphdef", "tensorflow", "model.graphdef"),
        ] {
            let config = config(platform, "");
            assert_eq!(backend_name(&config), Some(backend), "{platform}");
            assert_eq!(default_model_filename(&config), Some(filename), "{platform}");
        }
    }

    #[test]
    fn metadata_platform_falls_back_to_the_backend() {
        assert_eq!(platform_name(&config("pytorch_libtorch", "")), "pytorch_libtorch");
        assert_eq!(platform_name(&config("", "onnxruntime")), "onnxruntime_onnx");
        assert_eq!(platform_name(&config("", "identity")), "identity");
    }

    #[test]
    fn backend_takes_precedence_over_platform() {
        assert_eq!(backend_name(&config("onnxruntime_onnx", "mine")), Some("mine"));
        assert_eq!(default_model_filename(&config("onnxruntime_onnx", "mine")), None);
    }

    #[test]
    fn backends_without_platform_have_a_default_file() {
        for (backend, filename) in [
            ("onnxruntime", "model.onnx"),
            ("pytorch", "model.pt"),
            ("tensorrt", "model.plan"),
            ("openvino", "model.xml"),
            ("python", "model.py"),
            ("llamacpp", "model.gguf"),
        ] {
            assert_eq!(default_model_filename(&config("", backend)), Some(filename), "{backend}");
        }
        assert_eq!(default_model_filename(&config("", "mine")), None);
        assert_eq!(default_model_filename(&config("torch_aoti", "pytorch")), Some("model.pt2"));
    }

    #[test]
    fn configured_filename_is_kept() {
        let mut config = config("onnxruntime_onnx", "");
        config.default_model_filename = "other.onnx".to_owned();
        assert_eq!(default_model_filename(&config), Some("other.onnx"));
    }

    #[test]
    fn ensembles_and_unknown_platforms_have_no_backend() {
        for platform in [ENSEMBLE_PLATFORM, "", "nonsense"] {
            assert_eq!(backend_name(&config(platform, "")), None, "{platform}");
            assert_eq!(default_model_filename(&config(platform, "")), None, "{platform}");
        }
    }

    #[test]
    fn mismatched_platform_and_backend_are_refused() {
        for (backend, platform) in [
            ("onnxruntime", "onnxruntime_onnx"),
            ("onnxruntime", ""),
            ("pytorch", "torch_aoti"),
            ("mine", "onnxruntime_onnx"),
            ("mine", "anything"),
            ("python", "anything"),
            ("", "tensorrt_plan"),
        ] {
            assert_eq!(check_pair(backend, platform), Ok(()), "{backend} {platform}");
        }
        assert_eq!(check_pair("onnxruntime", "tensorrt_plan"), Err(vec!["onnxruntime_onnx"]));
        assert_eq!(check_pair("onnxruntime", "anything"), Err(vec!["onnxruntime_onnx"]));
        let tensorflow = vec!["tensorflow_savedmodel", "tensorflow_graphdef"];
        assert_eq!(check_pair("tensorflow", ""), Err(tensorflow));
    }
}

//! Which engines this machine has, without loading their libraries: they decide between the formats of a hub's models, and
//! `nereid --version` lists them.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_object_stores::Engines;
use nereid_openvino::LibraryLocation;

use crate::backends::BackendsConfig;
use crate::installed;
use crate::transformers;

/// The engines that these backends would find.
pub fn engines(config: &BackendsConfig) -> Engines {
    let config = config.clone();
    Arc::new(move |engine| is_here(engine, &config))
}

/// The library of a framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameworkLibrary {
    /// The framework's name.
    pub name: &'static str,
    /// The library's path, or its name if the system's loader finds it; `None` if it is not installed.
    pub path: Option<PathBuf>,
}

/// The frameworks' libraries that these backends would find.
pub fn libraries(config: &BackendsConfig) -> Vec<FrameworkLibrary> {
    let all: [(&str, &str, Find); 4] = [
        ("ONNX Runtime", "onnxruntime", nereid_onnxruntime::find),
        ("OpenVINO", "openvino", nereid_openvino::find),
        ("TensorFlow", "tensorflow", nereid_tensorflow::find),
        ("libtorch", "pytorch", nereid_pytorch::find),
    ];
    all.map(|(name, backend, find)| FrameworkLibrary { name, path: library(config, backend, find) }).into()
}

type Find = fn(Option<PathBuf>, Option<PathBuf>) -> LibraryLocation;

/// The library that a backend would load, if it is installed.
fn library(config: &BackendsConfig, backend: &str, find: Find) -> Option<PathBuf> {
    let setting = config.settings_of(backend).get("library").map(PathBuf::from);
    let found = find(setting, Some(config.directory.clone()));
    installed::check(&found, backend, "").ok().map(|()| found.path)
}

fn is_here(engine: &str, config: &BackendsConfig) -> bool {
    let has_library = |backend, find: Find| library(config, backend, find).is_some();
    match engine {
        "onnxruntime" => {
            config.settings_of("onnxruntime").get("engine") != Some("tract")
                && has_library("onnxruntime", nereid_onnxruntime::find)
        }
        "llamacpp" => has_library("llamacpp", nereid_llamacpp::find),
        "openvino" => has_library("openvino", nereid_openvino::find),
        // OpenVINO runs TensorFlow's models, too.
        "tensorflow" => {
            has_library("tensorflow", nereid_tensorflow::find)
                || has_library("openvino", nereid_openvino::find)
        }
        "pytorch" => has_library("pytorch", nereid_pytorch::find),
        transformers::NAME => {
            transformers::is_here(config.layered_settings(&transformers::LAYERS), &config.directory)
        }
        "embedded" => cfg!(feature = "embedded-engine"),
        other => config.directory.join(other).join(format!("libtriton_{other}.so")).exists(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::backends::BackendSetting;
    use crate::installed::library_head;

    #[test]
    fn engine_is_here_if_its_library_is() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libopenvino_c.so");
        let backends = folder.path().join("backends");
        fs::create_dir_all(backends.join("tensorrt")).unwrap();
        let setting = |backend: &str, key: &str, value: &Path| BackendSetting {
            backend: Some(backend.to_owned()),
            key: key.to_owned(),
            value: value.to_str().unwrap().to_owned(),
        };
        let config = BackendsConfig {
            directory: backends.clone(),
            settings: vec![
                setting("openvino", "library", &library),
                setting("tensorflow", "library", &folder.path().join("none.so")),
                setting("onnxruntime", "library", &folder.path().join("none.so")),
            ],
            program: None,
        };
        let found =
            || ["onnxruntime", "openvino", "tensorflow", "tensorrt"].map(|engine| is_here(engine, &config));
        assert_eq!(found(), [false, false, false, false]);
        fs::write(&library, "").unwrap();
        assert_eq!(found(), [false, false, false, false]);
        fs::write(&library, library_head()).unwrap();
        assert_eq!(found(), [false, true, true, false]);
        fs::write(backends.join("tensorrt/libtriton_tensorrt.so"), "").unwrap();
        assert_eq!(found(), [false, true, true, true]);
    }
}

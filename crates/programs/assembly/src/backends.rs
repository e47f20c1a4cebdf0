//! The built-in backends, by the names that configurations use, and Triton's shared libraries for all others.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, BackendFinder as _, BackendSettings, Error, Result};
use nereid_core::Backends;
use nereid_cuda::Pools;
use nereid_forest::ForestBackend;
use nereid_identity::IdentityBackend;
use nereid_triton_host::{LibraryBackends, LibraryOptions, PythonRunner};

use crate::backend_settings::ineffective_settings;
use crate::gpus::Gpus;
use crate::isolation;
use crate::llamacpp;
use crate::netdef;
use crate::onnx_engine;
use crate::openvino;
use crate::platform::PlatformConfig;
use crate::python;
use crate::pytorch;
use crate::tensorflow;
use crate::transformers;

/// Backends that are not built in, and what to install.
const MISSING: &[(&str, &str)] = &[
    (
        "tensorrt",
        "TensorRT plans need NVIDIA's TensorRT and Triton's backend for it: install TensorRT's libraries, and put \
         libtriton_tensorrt.so into the folder 'tensorrt' of the backend directory (--backend-directory)",
    ),
    (
        "dali",
        "DALI pipelines need NVIDIA DALI and Triton's backend for it: `pip install nvidia-dali-cuda120`, and put \
         libtriton_dali.so into the folder 'dali' of the backend directory (--backend-directory)",
    ),
    (
        "vllm",
        "vLLM's backend is written in Python: put its model.py and the files beside it into the folder 'vllm' of the \
         backend directory (--backend-directory), and install vLLM in the Python environment of the models",
    ),
    (
        "tensorrtllm",
        "TensorRT-LLM engines need NVIDIA's TensorRT-LLM and Triton's backend for it: put libtriton_tensorrtllm.so into the \
         folder 'tensorrtllm' of the backend directory (--backend-directory)",
    ),
];

/// Backends on framework libraries, and whether their models complete configurations.
const LAZY: &[(&str, bool)] = &[
    ("onnxruntime", true),
    ("openvino", true),
    ("tensorflow", true),
    ("pytorch", false),
    ("caffe2", true),
    ("llamacpp", true),
];

/// Opens a backend on a framework library, in this process.
///
/// # Errors
/// No usable library was found.
pub(crate) fn open(name: &str, config: &BackendsConfig) -> Result<Arc<dyn Backend>> {
    let (settings, directory) = (config.settings_of(name), &config.directory);
    match name {
        "onnxruntime" => Ok(onnx_engine::open(&settings, directory)?),
        "caffe2" => netdef::open(&config.settings_of("onnxruntime"), directory),
        "llamacpp" => llamacpp::open(&settings, directory),
        "openvino" => openvino::open(&settings, directory),
        "tensorflow" => tensorflow::open(&settings, &config.settings_of("openvino"), directory),
        "pytorch" => pytorch::open(&settings, &config.settings_of("python"), directory),
        _ => Err(Error::internal(format!("'{name}' is not a backend on a library"))),
    }
}

/// Location of the installed backends, and their settings.
#[derive(Clone, Debug, Default)]
pub struct BackendsConfig {
    /// The folder with a folder for each installed backend.
    pub directory: PathBuf,
    /// Settings. Of duplicates, the last one applies.
    pub settings: Vec<BackendSetting>,
    /// The program for processes that host a backend, as [`host`](crate::host) does: `nereid` itself, if this process
    /// runs it.
    pub program: Option<PathBuf>,
}

/// A setting for one backend, or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSetting {
    /// The backend; `None` for all.
    pub backend: Option<String>,
    /// The setting's name.
    pub key: String,
    /// The setting's value.
    pub value: String,
}

impl BackendsConfig {
    /// The settings of a backend: its own override those for all.
    pub fn settings_of(&self, backend: &str) -> BackendSettings {
        self.layered_settings(&[backend]).into_iter().collect()
    }

    /// Names and values of the settings for all backends, and then of each of these. Of duplicates, the last one applies.
    pub(crate) fn layered_settings(&self, backends: &[&str]) -> Vec<(&str, &str)> {
        let layers = [None].into_iter().chain(backends.iter().copied().map(Some));
        let of = |layer| self.settings.iter().filter(move |it| it.backend.as_deref() == layer);
        layers.flat_map(of).map(|setting| (&*setting.key, &*setting.value)).collect()
    }
}

/// The backends of a server.
pub struct InstalledBackends {
    /// All backends, as the server's registry.
    pub registry: Backends,
    /// The libraries built for Triton.
    pub libraries: Arc<LibraryBackends>,
}

impl InstalledBackends {
    /// Registers all backends, each with its settings.
    pub(crate) fn new(
        config: &PlatformConfig,
        complete: bool,
        gpus: &Gpus,
        pools: Arc<Pools>,
    ) -> Result<Self> {
        let PlatformConfig { backends: config, gpus: gpu_config } = config;
        let all = config.settings.iter().cloned();
        let python = python::built_in(config, &gpu_config.driver)?;
        let libraries = Arc::new(LibraryBackends::new(LibraryOptions {
            directory: config.directory.clone(),
            settings: all.map(|BackendSetting { backend, key, value }| (backend, key, value)).collect(),
            complete,
            cuda: gpus.cuda.clone(),
            pools,
            gpus: gpus.numbers.clone(),
            min_compute_capability: gpu_config.min_compute_capability,
            python: python.clone().map(PythonRunner),
        })?);
        let mut registry = Backends::default();
        registry.register("identity", Arc::new(IdentityBackend));
        // Frameworks are located when the first model needs one, so a server without such models never searches.
        for (name, completes_config) in LAZY {
            let config = config.clone();
            let capabilities =
                BackendCapabilities { completes_config: *completes_config, ..BackendCapabilities::default() };
            registry.register_lazy(*name, *completes_config, move || {
                isolation::open(name, &config, capabilities)
            });
        }
        let installed = libraries.installed();
        for ineffective in ineffective_settings(config, &installed) {
            tracing::warn!("{ineffective}");
        }
        // Triton's own library, if it is installed, runs forests on GPUs, too.
        if !installed.iter().any(|name| name == "fil") {
            registry.register("fil", Arc::new(ForestBackend::new(config.settings_of("fil"))));
        }
        // Somebody's own backend of this name, if it is installed, keeps its models.
        if !installed.iter().any(|name| name == transformers::NAME) {
            let config = config.clone();
            registry.register_lazy(transformers::NAME, true, move || {
                transformers::open(config.layered_settings(&transformers::LAYERS), &config.directory)
            });
        }
        for (backend, reason) in
            MISSING.iter().filter(|(backend, _)| !installed.iter().any(|name| name == backend))
        {
            registry.refuse(*backend, Error::unavailable(*reason));
        }
        if let Some(python) = python {
            registry.register("python", python);
        }
        registry.set_finder(Arc::clone(&libraries) as _);
        Ok(Self { registry, libraries })
    }
}

/// The GPUs of the machine for models. Whether a backend uses them may require loading a library.
pub(crate) fn gpus(machine: &[i32], backends: &Backends) -> nereid_repository::Gpus {
    let backends = backends.clone();
    nereid_repository::Gpus::new(machine.to_vec(), move |backend| backends.runs_on_gpus(backend))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_settings_override_global_ones() {
        let setting = |backend: Option<&str>, key: &str, value: &str| BackendSetting {
            backend: backend.map(str::to_owned),
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let config = BackendsConfig {
            settings: vec![
                setting(Some("onnxruntime"), "default-max-batch-size", "8"),
                setting(None, "default-max-batch-size", "2"),
                setting(None, "path", "/a=b"),
                setting(Some("python"), "path", "/c,d"),
            ],
            ..BackendsConfig::default()
        };
        let of = |backend: &str, key: &str| config.settings_of(backend).get(key).map(str::to_owned);
        assert_eq!(of("onnxruntime", "default-max-batch-size").as_deref(), Some("8"));
        assert_eq!(of("python", "default-max-batch-size").as_deref(), Some("2"));
        assert_eq!(of("onnxruntime", "path").as_deref(), Some("/a=b"));
        assert_eq!(of("python", "path").as_deref(), Some("/c,d"));
        let layers = config.layered_settings(&["onnxruntime", "python"]);
        let expected = [("default-max-batch-size", "2"), ("path", "/a=b"), ("default-max-batch-size", "8")];
        assert_eq!(layers, [&expected[..], &[("path", "/c,d")]].concat());
    }
}

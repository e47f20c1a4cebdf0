//! Checks of models before they are loaded: whether their engine is installed, and whether it would refuse them.
//!
//! Loads neither libraries nor models. An interpreter of Python is started, to learn its version.

use std::sync::Arc;

use nereid_backend_api::{BackendFinder as _, BackendSettings, Lookup, ModelConfig, ModelContext, Result};
use nereid_core::model_config::backend_name;
use nereid_triton_host::LibraryBackends;

use crate::backends::{BackendsConfig, InstalledBackends};
use crate::onnx_engine::{self, Expected};
use crate::{llamacpp, openvino, python, pytorch, tensorflow, transformers};

/// The engines of this machine.
pub struct EngineCheck {
    config: BackendsConfig,
    libraries: Arc<LibraryBackends>,
}

impl EngineCheck {
    /// The engines that these backends would find.
    pub fn new(config: &BackendsConfig, backends: &InstalledBackends) -> Self {
        Self { config: config.clone(), libraries: Arc::clone(&backends.libraries) }
    }

    /// Checks that the library of a model's framework is installed.
    ///
    /// # Errors
    /// The library to install, if no engine would serve the model.
    pub fn check_engine(&self, model: &ModelContext) -> Result<()> {
        match self.check_built_in(model) {
            Err(_) if self.is_of_library(model) => Ok(()),
            outcome => outcome,
        }
    }

    /// Checks that the configuration lists what the engine cannot find out.
    ///
    /// # Errors
    /// The part that is missing.
    pub fn check_config(&self, model: &ModelContext) -> Result<()> {
        match name(&model.config) {
            "pytorch" if !self.is_of_library(model) => nereid_pytorch::check_config(&model.config),
            _ => Ok(()),
        }
    }

    /// Checks the file of a version, as far as that is quick.
    ///
    /// # Errors
    /// The reason why the engine would refuse the file, and what to do.
    pub fn check_file(&self, model: &ModelContext) -> Result<()> {
        if self.is_of_library(model) {
            return Ok(());
        }
        match name(&model.config) {
            "pytorch" => nereid_pytorch::check_file(model),
            "fil" => nereid_forest::check_file(model),
            transformers::NAME => nereid_transformers::check_file(model),
            "onnxruntime" if self.onnx().ok() == Some(Expected::Embedded) => {
                onnx_engine::check_embedded(model)
            }
            _ => Ok(()),
        }
    }

    /// Whether a backend in a library serves the model: one in the model's folder, or an installed one if the built-in
    /// backend is unavailable.
    fn is_of_library(&self, model: &ModelContext) -> bool {
        match self.libraries.find(model) {
            Lookup::WithModel => true,
            Lookup::Installed => self.check_built_in(model).is_err(),
            Lookup::Missing { .. } => false,
        }
    }

    fn check_built_in(&self, model: &ModelContext) -> Result<()> {
        let directory = &self.config.directory;
        match name(&model.config) {
            "onnxruntime" | "caffe2" => self.onnx().map(|_| ()),
            "llamacpp" => llamacpp::check(&self.settings("llamacpp"), directory),
            "openvino" => openvino::check(&self.settings("openvino"), directory),
            "tensorflow" => {
                tensorflow::check(&self.settings("tensorflow"), &self.settings("openvino"), directory)
            }
            "pytorch" => pytorch::check(&self.settings("pytorch"), directory),
            "python" => python::check(&self.settings("python"), directory, model),
            transformers::NAME => {
                transformers::check(self.config.layered_settings(&transformers::LAYERS), directory, model)
            }
            _ => Ok(()),
        }
    }

    fn onnx(&self) -> Result<Expected> {
        onnx_engine::expected(&self.settings("onnxruntime"), &self.config.directory)
    }

    fn settings(&self, backend: &str) -> BackendSettings {
        self.config.settings_of(backend)
    }
}

fn name(config: &ModelConfig) -> &str {
    backend_name(config).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use nereid_backend_api::NoPeers;
    use nereid_core::model_config::parse_text;
    use nereid_triton_host::LibraryOptions;
    use tempfile::TempDir;

    use super::*;
    use crate::backends::BackendSetting;
    use crate::installed::library_head;

    const TENSORS: &str =
        "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";

    /// A backend directory, a model's folder, and a folder of libraries.
    struct Machine(TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for folder in ["backends", "model/1", "libraries"] {
                fs::create_dir_all(machine.path(folder)).unwrap();
            }
            machine
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, contents: &[u8]) {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), contents).unwrap();
        }

        /// The engines with these settings of backends, `backend,key=value`. Libraries are in the folder `libraries`.
        fn engines(&self, settings: &[&str]) -> EngineCheck {
            let libraries = ["llamacpp", "onnxruntime", "openvino", "tensorflow", "pytorch"];
            let libraries = libraries
                .map(|name| format!("{name},library={}/{name}.so", self.path("libraries").display()));
            let all = libraries.iter().map(String::as_str).chain(settings.iter().copied());
            let settings = all.map(|setting| {
                let (backend, setting) = setting.split_once(',').unwrap();
                let (key, value) = setting.split_once('=').unwrap();
                BackendSetting { backend: Some(backend.into()), key: key.into(), value: value.into() }
            });
            let directory = self.path("backends");
            let config =
                BackendsConfig { directory: directory.clone(), settings: settings.collect(), program: None };
            let options = LibraryOptions { directory, ..LibraryOptions::default() };
            EngineCheck { config, libraries: Arc::new(LibraryBackends::new(options).unwrap()) }
        }

        fn model(&self, config: &str) -> ModelContext {
            ModelContext {
                name: "model".into(),
                version: 1,
                directory: self.path("model"),
                config: parse_text(config).unwrap(),
                complete: true,
                peers: Arc::new(NoPeers),
            }
        }
    }

    fn text(outcome: Result<()>) -> String {
        outcome.err().map(|error| error.message().to_owned()).unwrap_or_default()
    }

    #[test]
    fn engine_is_required_unless_its_library_is_installed() {
        for (config, settings, library, reason) in [
            (
                "backend: 'openvino'",
                &[][..],
                "openvino",
                "the OpenVINO library given by the setting 'library' cannot be used",
            ),
            (
                "backend: 'pytorch'",
                &[],
                "pytorch",
                "the libtorch given by the setting 'library' cannot be used",
            ),
            ("platform: 'torch_aoti'", &[], "pytorch", "the libtorch given by the setting"),
            (
                "platform: 'tensorflow_graphdef'",
                &[],
                "tensorflow",
                "the TensorFlow library given by the setting",
            ),
            (
                "backend: 'tensorflow'",
                &["tensorflow,engine=openvino"],
                "openvino",
                "TensorFlow models are served by OpenVINO",
            ),
            (
                "backend: 'onnxruntime'",
                &["onnxruntime,engine=ort"],
                "onnxruntime",
                "engine=ort selects ONNX Runtime, but",
            ),
            ("platform: 'gguf'", &[], "llamacpp", "the llama.cpp library given by the setting"),
            (
                "platform: 'caffe2_netdef'",
                &["onnxruntime,engine=ort"],
                "onnxruntime",
                "engine=ort selects ONNX Runtime, but",
            ),
        ] {
            let machine = Machine::new();
            let (engines, model) = (machine.engines(settings), machine.model(config));
            let found = text(engines.check_engine(&model));
            assert!(found.contains(reason), "{config}: {found}");
            machine.write(&format!("libraries/{library}.so"), b"<html>not a library</html>");
            assert!(text(engines.check_engine(&model)).contains("is not a library"), "{config}");
            machine.write(&format!("libraries/{library}.so"), &library_head());
            assert_eq!(text(engines.check_engine(&model)), "", "{config}");
        }
    }

    #[test]
    fn engine_without_a_library_is_installed() {
        let machine = Machine::new();
        for (config, settings) in [
            ("backend: 'python'", &[][..]),
            ("backend: 'identity'", &[]),
            ("backend: 'pytorch'", &["pytorch,engine=python"]),
            ("backend: 'unheard_of'", &[]),
            ("platform: 'ensemble'", &[]),
        ] {
            assert_eq!(text(machine.engines(settings).check_engine(&machine.model(config))), "", "{config}");
        }
        let onnx = machine.engines(&[]).check_engine(&machine.model("backend: 'onnxruntime'"));
        assert_eq!(onnx.is_ok(), cfg!(feature = "embedded-engine"));
    }

    #[test]
    fn model_without_an_environment_of_its_own_needs_an_interpreter() {
        let machine = Machine::new();
        let environment = "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: 'env.tar.gz' } }";
        for (setting, rest, reason) in [
            ("python,python=/no/such/python3", "", "/no/such/python3"),
            ("python,python=no-such-python", "", "'no-such-python' is not in the folders of PATH"),
            ("python,python=no-such-python", environment, ""),
            ("python,engine=library", "", ""),
        ] {
            let model = machine.model(&format!("backend: 'python' {rest}"));
            let found = text(machine.engines(&[setting]).check_engine(&model));
            assert!(
                found.contains(reason) && found.is_empty() == reason.is_empty(),
                "{setting} {rest}: {found}"
            );
        }
    }

    #[test]
    fn settings_are_checked() {
        for (config, setting, reason) in [
            ("backend: 'onnxruntime'", "onnxruntime,engine=tensorrt", "must be auto, ort or tract"),
            ("backend: 'tensorflow'", "tensorflow,engine=x", "must be auto, tensorflow or openvino"),
            ("backend: 'pytorch'", "pytorch,engine=", "must be auto, library or python"),
        ] {
            let machine = Machine::new();
            let found = text(machine.engines(&[setting]).check_engine(&machine.model(config)));
            assert!(found.contains(reason), "{config}: {found}");
        }
    }

    #[test]
    fn backend_in_a_library_serves_models_without_an_engine() {
        for library in ["backends/pytorch/libtriton_pytorch.so", "model/libtriton_pytorch.so"] {
            let machine = Machine::new();
            let (engines, model) = (machine.engines(&[]), machine.model("backend: 'pytorch'"));
            assert!(engines.check_engine(&model).is_err());
            machine.write("model/1/model.pt", b"\x80\x02the start of a pickle");
            assert!(engines.check_config(&model).is_err() && engines.check_file(&model).is_err());
            machine.write(library, b"");
            for outcome in
                [engines.check_engine(&model), engines.check_config(&model), engines.check_file(&model)]
            {
                assert_eq!(text(outcome), "", "{library}");
            }
        }
    }

    #[test]
    fn torchscript_needs_tensors_and_a_file_of_its_format() {
        let machine = Machine::new();
        machine.write("libraries/pytorch.so", &library_head());
        let engines = machine.engines(&[]);
        let model = machine.model("backend: 'pytorch'");
        assert!(text(engines.check_config(&model)).contains("list all inputs and outputs in config.pbtxt"));
        assert!(text(engines.check_file(&model)).contains("cannot read"));
        machine.write("model/1/model.pt", b"\x80\x02the start of a pickle");
        let model = machine.model(&format!("backend: 'pytorch' {TENSORS}"));
        assert_eq!(text(engines.check_config(&model)), "");
        assert!(text(engines.check_file(&model)).contains("pickled Python objects"));
    }

    #[cfg(feature = "embedded-engine")]
    #[test]
    fn operators_are_checked_only_for_the_embedded_engine() {
        let machine = Machine::new();
        let model = machine.model("backend: 'onnxruntime'");
        // A graph with one node of the operator Loop.
        let (node, name) = (b"\x0a\x06\x22\x04Loop", b"\x12\x01g");
        let graph = [&node[..], name].concat();
        let contents = [&[0x3a, u8::try_from(graph.len()).unwrap()][..], &graph].concat();
        machine.write("model/1/model.onnx", &contents);
        for settings in [&["onnxruntime,engine=tract"][..], &[]] {
            let found = text(machine.engines(settings).check_file(&model));
            assert!(found.contains("does not serve: Loop; install ONNX Runtime"), "{found}");
        }
        machine.write("libraries/onnxruntime.so", &library_head());
        assert_eq!(text(machine.engines(&[]).check_file(&model)), "");
        assert_ne!(text(machine.engines(&["onnxruntime,engine=tract"]).check_file(&model)), "");
        // The backend reports a damaged file when it loads it.
        machine.write("model/1/model.onnx", &contents[..contents.len() - 3]);
        assert_eq!(text(machine.engines(&["onnxruntime,engine=tract"]).check_file(&model)), "");
    }
}

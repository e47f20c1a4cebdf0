//! Language models in GGUF files, on llama.cpp's library, which is found and loaded at run time.
//!
//! Requests are batched continuously ([`scheduler`]): they join and leave between two tokens. Tokens are chosen here and not in the
//! library ([`sampler`]), and text is cut here ([`text`]); the library evaluates batches ([`context`]). The tensors have the
//! names of Triton's vLLM backend ([`contract`]).
//!
//! The library ends the process when one of its assertions fails, so instances belong into processes of their own. This crate knows
//! neither the server nor chats: it completes configurations with the model's chat template, for those who render it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]

mod api;
mod context;
mod contract;
mod engine;
mod instance;
mod library;
mod options;
mod parameters;
mod sampler;
mod scheduler;
#[cfg(test)]
mod testing;
mod text;
mod weights;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Backend, BackendCapabilities, Error, Instance, InstanceContext, InstanceKind, Model, ModelConfig,
    ModelContext, Result,
};
use nereid_dylib::{Framework, SearchPlaces};
use nereid_model_config::default_model_filename;
use nereid_model_files as model_files;

use crate::context::Context;
use crate::instance::LanguageInstance;
use crate::options::Options;
use crate::scheduler::Scheduler;
use crate::weights::Weights;

pub use crate::library::{LlamaCpp, OpenError};
pub use nereid_dylib::{LibraryLocation, Place};

const DEFAULT_FILENAME: &str = "model.gguf";

/// The first bytes of every GGUF file.
const MAGIC: &[u8] = b"GGUF";

const FRAMEWORK: Framework = Framework {
    library: "libllama",
    variable: None,
    backend: "llamacpp",
    python_packages: &["llama_cpp/lib"],
    node_packages: if cfg!(target_arch = "aarch64") {
        &["@node-llama-cpp/linux-arm64/bins/linux-arm64"]
    } else {
        &["@node-llama-cpp/linux-x64/bins/linux-x64"]
    },
};

/// Finds llama.cpp's library: by the backend's setting `library`, in the backend directory, in the active Python environment, in the
/// Node.js packages installed for all programs, or in the system's places.
pub fn find(setting: Option<PathBuf>, backends: Option<PathBuf>) -> LibraryLocation {
    FRAMEWORK.find(&SearchPlaces::of_process(&FRAMEWORK, setting, backends))
}

/// The backend over an open library.
pub struct LlamaCppBackend {
    library: Arc<LlamaCpp>,
}

impl LlamaCppBackend {
    /// The backend's capabilities.
    pub const CAPABILITIES: BackendCapabilities =
        BackendCapabilities { completes_config: true, runs_on_gpus: false, is_isolated: false };

    /// The backend over an open library.
    pub fn new(library: Arc<LlamaCpp>) -> Self {
        Self { library }
    }

    fn load_model(&self, context: &ModelContext) -> Result<LanguageModel> {
        let mut config = context.config.clone();
        if context.complete {
            contract::complete(&mut config);
        }
        contract::check(&config)?;
        let options = Options::of(&config)?;
        let path = model_file(context)?;
        let kind = InstanceKind::of_first_instance(&config);
        let weights = self.weights(&path, options.gpu_layers(kind))?;
        if !weights.generates() {
            return Err(Error::unsupported(format!(
                "{}: '{}' is not a model that generates text",
                path.display(),
                weights.description()
            )));
        }
        if context.complete {
            contract::complete_chat(&mut config, &weights);
        }
        let weights = Mutex::new((options.gpu_layers(kind), Arc::new(weights)));
        let completed = context.complete.then_some(config);
        Ok(LanguageModel { library: Arc::clone(&self.library), options, path, weights, completed })
    }

    fn weights(&self, path: &Path, gpu_layers: i32) -> Result<Weights> {
        weights(&self.library, path, gpu_layers)
    }
}

fn weights(library: &Arc<LlamaCpp>, path: &Path, gpu_layers: i32) -> Result<Weights> {
    Weights::load(library, path, gpu_layers)
        .map_err(|reason| Error::invalid_arg(format!("llama.cpp cannot load {}: {reason}", path.display())))
}

impl Backend for LlamaCppBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = self
            .load_model(&context)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        tracing::info!(
            "model '{}' version {} is served by llama.cpp {} with {} thread(s) per instance",
            context.name,
            context.version,
            self.library.version(),
            model.options.threads
        );
        Ok(Box::new(model))
    }

    fn capabilities(&self) -> BackendCapabilities {
        Self::CAPABILITIES
    }
}

struct LanguageModel {
    library: Arc<LlamaCpp>,
    options: Options,
    path: PathBuf,
    /// The loaded file, and how many of its layers are on a GPU. Instances share it.
    weights: Mutex<(i32, Arc<Weights>)>,
    completed: Option<ModelConfig>,
}

impl LanguageModel {
    /// The weights for an instance on a device of this kind.
    fn weights_for(&self, kind: InstanceKind) -> Result<Arc<Weights>> {
        let mut loaded = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu_layers = self.options.gpu_layers(kind);
        if loaded.0 != gpu_layers {
            *loaded = (gpu_layers, Arc::new(weights(&self.library, &self.path, gpu_layers)?));
        }
        Ok(Arc::clone(&loaded.1))
    }
}

impl Model for LanguageModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let weights = self.weights_for(context.kind)?;
        let limits = self.options.limits(weights.trained_context());
        let engine = Context::new(&weights, limits, self.options.threads).map_err(|reason| {
            Error::unavailable(format!(
                "instance '{}': llama.cpp cannot make a context of {} sequences with {} tokens each: {reason}",
                context.name, limits.sequences, limits.context
            ))
        })?;
        let longest_text = weights.longest_text(limits.context);
        let scheduler = Scheduler::new(engine, Arc::<Weights>::clone(&weights), self.options.time_limit);
        Ok(Box::new(LanguageInstance::new(scheduler, weights, longest_text)))
    }
}

/// The path of the GGUF file, which has the format's first bytes.
fn model_file(context: &ModelContext) -> Result<PathBuf> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    let version = context.version_directory();
    let read = model_files::model_file(&version, filename, DEFAULT_FILENAME).and_then(|path| {
        let mut start = Vec::new();
        model_files::open(&path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
        Ok((path, start))
    });
    let (path, start) = read.map_err(|error| Error::cannot_read(&version.join(filename), &error))?;
    if start != MAGIC {
        return Err(Error::invalid_arg(format!("{} is not a GGUF file", path.display())));
    }
    Ok(path)
}

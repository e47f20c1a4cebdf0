//! Language models in GGUF files, on llama.cpp's library, which is found and loaded at run time.
//!
//! Requests are batched continuously (`scheduler`): they join and leave between two tokens. Tokens are chosen here and not in the
//! library (`sampler`), and text is cut here (`text`); the library evaluates batches (`context`). The tensors have the
//! names of Triton's vLLM backend (`contract`).
//!
//! The library ends the process when one of its assertions fails, so instances belong into processes of their own. This crate knows
//! neither the server nor chats: it completes configurations with the model's chat template, for those who render it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]

mod adapters;
mod api;
mod context;
mod contract;
mod embedding;
mod engine;
mod guide;
mod instance;
mod library;
mod metrics;
mod model;
mod options;
mod parameters;
mod sampler;
mod scheduler;
mod speculation;
mod structure;
#[cfg(test)]
mod testing;
mod text;
mod tokens;
mod weights;

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, Model, ModelContext, Result};
use nereid_dylib::{Framework, SearchPlaces};

use crate::model::GgufModel;

pub use crate::library::{LlamaCpp, OpenError};
pub use nereid_dylib::{LibraryLocation, Place};

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
    /// The backend over an open library.
    pub fn new(library: Arc<LlamaCpp>) -> Self {
        Self { library }
    }
}

impl Backend for LlamaCppBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let model = GgufModel::load(&self.library, &context)
            .map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        tracing::info!(
            "model '{}' version {} is served by llama.cpp {} with {} thread(s) per instance",
            context.name,
            context.version,
            self.library.version(),
            model.threads()
        );
        Ok(Box::new(model))
    }

    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities { completes_config: true, ..BackendCapabilities::default() }
    }
}

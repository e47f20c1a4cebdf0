//! Language models in the layout of Hugging Face's hub, on the Python package `transformers`.
//!
//! The engine is a class for the backend `python`, in the folder `python` of this crate: continuous batching, with the tensors
//! of Triton's vLLM backend. The code in Rust checks models before a process starts, and writes the class to a file for the
//! interpreter. Neither knows the server or chats: completed configurations have the model's chat template, for those who
//! render it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod folder;

use nereid_backend_api::{Backend, BackendCapabilities, Error, Model, ModelContext, Result};
use nereid_python::PythonBackend;
use nereid_python_env::keep_sources;

pub use crate::folder::check_file;

/// The files of the class. The first one has it.
const FILES: [(&str, &str); 12] = [
    ("model.py", include_str!("../python/model.py")),
    ("cache.py", include_str!("../python/cache.py")),
    ("contract.py", include_str!("../python/contract.py")),
    ("folder.py", include_str!("../python/folder.py")),
    ("literal.py", include_str!("../python/literal.py")),
    ("network.py", include_str!("../python/network.py")),
    ("options.py", include_str!("../python/options.py")),
    ("parameters.py", include_str!("../python/parameters.py")),
    ("refusal.py", include_str!("../python/refusal.py")),
    ("sampler.py", include_str!("../python/sampler.py")),
    ("scheduler.py", include_str!("../python/scheduler.py")),
    ("text.py", include_str!("../python/text.py")),
];

/// Runs language models with the interpreter of the backend `python`.
pub struct TransformersBackend {
    python: PythonBackend,
}

impl TransformersBackend {
    /// The backend over the one that runs the interpreters.
    pub fn new(python: PythonBackend) -> Self {
        Self { python }
    }
}

impl Backend for TransformersBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        check_file(&context).map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        let folder =
            keep_sources("transformers", &FILES).map_err(|error| Error::unavailable(error.to_string()))?;
        self.python.load_class(context, folder.join(FILES[0].0))
    }

    fn capabilities(&self) -> BackendCapabilities {
        // Without a group, the class takes a GPU if PyTorch finds one.
        BackendCapabilities { runs_on_gpus: false, ..PythonBackend::CAPABILITIES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_the_class_are_in_the_list() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/python")).unwrap();
        let mut names: Vec<_> = folder
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".py"))
            .collect();
        let mut listed = FILES.map(|(name, _)| name.to_owned());
        names.sort();
        listed.sort();
        assert_eq!(names, listed);
    }
}

//! The backends of this binary, by the names that configurations use, and Triton's shared libraries for all others.

use std::sync::Arc;

use nereid_backend_api::Result;
use nereid_core::Backends;
use nereid_cuda::Pools;
use nereid_identity::IdentityBackend;
use nereid_triton_host::{LibraryBackends, LibraryOptions};

use crate::gpus::Gpus;
use crate::onnx_engine;
use crate::options::ConfigurationOptions;

/// The backends that the server has.
pub(crate) struct Installed {
    /// As a server takes them.
    pub registry: Backends,
    /// Those that are built for Triton, as libraries.
    pub libraries: Arc<LibraryBackends>,
}

impl Installed {
    /// The one place where backends are registered, each with its settings.
    /// `pools` is what they may borrow memory from.
    pub(crate) fn new(options: &ConfigurationOptions, gpus: &Gpus, pools: Arc<Pools>) -> Result<Self> {
        let libraries = LibraryOptions {
            cuda: gpus.cuda.clone(),
            pools,
            gpus: gpus.numbers.clone(),
            ..options.libraries()
        };
        let libraries = Arc::new(LibraryBackends::new(libraries)?);
        let mut registry = Backends::default();
        registry.register("identity", Arc::new(IdentityBackend));
        let (settings, directory) = (options.backend_settings("onnxruntime"), options.backend_directory());
        // Both engines complete configurations. Which one it is shows when the first model needs it, so a server without
        // any looks for no library.
        registry.register_lazy("onnxruntime", true, move || onnx_engine::open(&settings, &directory));
        registry.set_finder(Arc::clone(&libraries) as _);
        Ok(Self { registry, libraries })
    }
}

/// Which of the machine's GPUs the models of each backend may use: all, if it uses any.
pub(crate) fn gpus(machine: &[i32], backends: &Backends) -> nereid_repository::Gpus {
    let (machine, backends) = (machine.to_vec(), backends.clone());
    nereid_repository::Gpus::new(move |backend| {
        // Not asked for nothing: the answer may take loading a library.
        if !machine.is_empty() && backends.runs_on_gpus(backend) { machine.clone() } else { Vec::new() }
    })
}

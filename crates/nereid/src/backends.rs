//! The backends this binary has, by the names that configurations use; and all others, which are libraries.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, Model, ModelContext, Result};
use nereid_core::Backends;
use nereid_cuda::Pools;
use nereid_identity::IdentityBackend;
use nereid_triton_host::{LibraryBackends, LibraryOptions};

use crate::gpus::Gpus;
use crate::onnx_engine::OnnxEngine;
use crate::options::ConfigurationOptions;

/// The backends there are.
pub(crate) struct Installed {
    /// Those of this program, by name.
    pub named: BTreeMap<String, Arc<dyn Backend>>,
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
        let directory = Some(options.backend_directory());
        let onnxruntime =
            OnnxEngine::new(options.backend_settings("onnxruntime"), directory, !gpus.numbers.is_empty());
        let own: [(&str, Arc<dyn Backend>); 2] =
            [("identity", Arc::new(IdentityBackend)), ("onnxruntime", Arc::new(onnxruntime))];
        let named = own.into_iter().map(|(name, own)| {
            let backend: Arc<dyn Backend> = Arc::new(OwnBackend { own, libraries: Arc::clone(&libraries) });
            (name.to_owned(), backend)
        });
        Ok(Self { named: named.collect(), libraries })
    }

    /// As a server takes them.
    pub(crate) fn backends(&self) -> Backends {
        Backends::new(self.named.clone(), Some(Arc::clone(&self.libraries) as _))
    }
}

/// A backend of this program. It goes before a library of the same name among the backends that are installed: it is
/// what this program was tested with. A model that brings a library along, or names one, gets that.
struct OwnBackend {
    own: Arc<dyn Backend>,
    libraries: Arc<LibraryBackends>,
}

impl Backend for OwnBackend {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        if self.libraries.is_brought_along(&context) {
            return self.libraries.load(context);
        }
        self.own.load(context)
    }

    fn capabilities(&self) -> BackendCapabilities {
        self.own.capabilities()
    }
}

/// Which of the machine's GPUs the models of each backend may use: all, if it uses any.
pub(crate) fn gpus(
    machine: &[i32],
    backends: &BTreeMap<String, Arc<dyn Backend>>,
) -> nereid_repository::Gpus {
    let (machine, backends) = (machine.to_vec(), backends.clone());
    nereid_repository::Gpus::new(move |backend| {
        // Not asked for nothing: the answer may take loading a library.
        let uses = !machine.is_empty()
            && backends.get(backend).is_some_and(|backend| backend.capabilities().runs_on_gpus);
        if uses { machine.clone() } else { Vec::new() }
    })
}

//! The backends this binary has, by the names that configurations use.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_backend_api::Backend;
use nereid_identity::IdentityBackend;
use nereid_repository::Gpus;

use crate::onnx_engine::OnnxEngine;
use crate::options::ConfigurationOptions;

/// The one place where backends are registered, each with its settings.
pub(crate) fn all(options: &ConfigurationOptions) -> BTreeMap<String, Arc<dyn Backend>> {
    let backends: [(&str, Arc<dyn Backend>); 2] = [
        ("identity", Arc::new(IdentityBackend)),
        (
            "onnxruntime",
            Arc::new(OnnxEngine::new(options.backend_settings("onnxruntime"), options.backend_directory())),
        ),
    ];
    backends.into_iter().map(|(name, backend)| (name.to_owned(), backend)).collect()
}

/// Which of the machine's GPUs the models of each backend may use: all, if it uses any.
pub(crate) fn gpus(machine: &[i32], backends: &BTreeMap<String, Arc<dyn Backend>>) -> Gpus {
    let (machine, backends) = (machine.to_vec(), backends.clone());
    Gpus::new(move |backend| {
        // Not asked for nothing: the answer may take loading a library.
        let uses = !machine.is_empty() && backends.get(backend).is_some_and(|backend| backend.uses_gpus());
        if uses { machine.clone() } else { Vec::new() }
    })
}

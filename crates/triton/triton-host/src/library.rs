//! The functions of a backend's library and of a batching library.

use std::path::Path;

use nereid_backend_api::{Error, Result};
use nereid_dylib::symbols;
use nereid_plugin::{Kind, Plugin, PluginError};
use triton_sys::signatures as entry;

use crate::exports;

symbols! {
    /// The functions of a backend; most are optional.
    pub(crate) struct Entries {
        execute = "TRITONBACKEND_ModelInstanceExecute" => entry::TRITONBACKEND_ModelInstanceExecute,
        ;
        initialize = "TRITONBACKEND_Initialize" => entry::TRITONBACKEND_Initialize,
        finalize = "TRITONBACKEND_Finalize" => entry::TRITONBACKEND_Finalize,
        attributes = "TRITONBACKEND_GetBackendAttribute" => entry::TRITONBACKEND_GetBackendAttribute,
        model_initialize = "TRITONBACKEND_ModelInitialize" => entry::TRITONBACKEND_ModelInitialize,
        model_finalize = "TRITONBACKEND_ModelFinalize" => entry::TRITONBACKEND_ModelFinalize,
        instance_initialize = "TRITONBACKEND_ModelInstanceInitialize" => entry::TRITONBACKEND_ModelInstanceInitialize,
        instance_finalize = "TRITONBACKEND_ModelInstanceFinalize" => entry::TRITONBACKEND_ModelInstanceFinalize,
        instance_ready = "TRITONBACKEND_ModelInstanceReady" => entry::TRITONBACKEND_ModelInstanceReady,
    }
}

/// The functions of a batching library: all of them are required.
pub(crate) struct BatchEntries {
    pub initialize: entry::TRITONBACKEND_ModelBatcherInitialize,
    pub finalize: entry::TRITONBACKEND_ModelBatcherFinalize,
    pub begin: entry::TRITONBACKEND_ModelBatchInitialize,
    pub include: entry::TRITONBACKEND_ModelBatchIncludeRequest,
    pub end: entry::TRITONBACKEND_ModelBatchFinalize,
}

/// Loads a backend.
///
/// # Errors
/// The file cannot be loaded or is not a backend.
pub(crate) fn open_backend(path: &Path) -> Result<Entries> {
    let library = open(Kind::BACKEND, path)?;
    // SAFETY: each type matches the function of this name in `tritonbackend.h`.
    unsafe { library.table(Entries::of) }.map_err(refused)
}

/// Loads a batching library; `None` if it has no batching functions.
///
/// # Errors
/// As [`open_backend`], and if it has only some of the functions.
pub(crate) fn open_batcher(path: &Path) -> Result<Option<BatchEntries>> {
    let library = open(Kind::BATCHING_STRATEGY, path)?;
    macro_rules! function {
        ($name:ident) => {
            // SAFETY: as in `open_backend`.
            unsafe { library.require::<entry::$name>(stringify!($name)) }
        };
    }
    let found = (
        function!(TRITONBACKEND_ModelBatcherInitialize),
        function!(TRITONBACKEND_ModelBatcherFinalize),
        function!(TRITONBACKEND_ModelBatchInitialize),
        function!(TRITONBACKEND_ModelBatchIncludeRequest),
        function!(TRITONBACKEND_ModelBatchFinalize),
    );
    if let (Err(_), Err(_), Err(_), Err(_), Err(_)) = found {
        return Ok(None);
    }
    Ok(Some(BatchEntries {
        initialize: found.0.map_err(refused)?,
        finalize: found.1.map_err(refused)?,
        begin: found.2.map_err(refused)?,
        include: found.3.map_err(refused)?,
        end: found.4.map_err(refused)?,
    }))
}

fn open(kind: Kind, path: &Path) -> Result<Plugin> {
    kind.load(path, exports::TABLES).map_err(refused)
}

/// The error of a load: the library's fault, unless this program does not export what it should.
fn refused(error: PluginError) -> Error {
    match error {
        PluginError::NotExported(_) | PluginError::StandIn { .. } => Error::internal(error.to_string()),
        _ => Error::invalid_arg(error.to_string()),
    }
}

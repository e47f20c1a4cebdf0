//! The functions of a backend's library and of a batching library.

use std::path::Path;

use nereid_backend_api::{Error, Result};
use nereid_plugin::{Kind, Plugin, PluginError};
use triton_sys::signatures as entry;

use crate::exports;

/// The functions of a backend; most are optional.
pub(crate) struct Entries {
    pub initialize: Option<entry::TRITONBACKEND_Initialize>,
    pub finalize: Option<entry::TRITONBACKEND_Finalize>,
    pub attributes: Option<entry::TRITONBACKEND_GetBackendAttribute>,
    pub model_initialize: Option<entry::TRITONBACKEND_ModelInitialize>,
    pub model_finalize: Option<entry::TRITONBACKEND_ModelFinalize>,
    pub instance_initialize: Option<entry::TRITONBACKEND_ModelInstanceInitialize>,
    pub instance_finalize: Option<entry::TRITONBACKEND_ModelInstanceFinalize>,
    pub instance_ready: Option<entry::TRITONBACKEND_ModelInstanceReady>,
    pub execute: entry::TRITONBACKEND_ModelInstanceExecute,
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
    let entries = unsafe {
        Entries {
            initialize: library.function("TRITONBACKEND_Initialize"),
            finalize: library.function("TRITONBACKEND_Finalize"),
            attributes: library.function("TRITONBACKEND_GetBackendAttribute"),
            model_initialize: library.function("TRITONBACKEND_ModelInitialize"),
            model_finalize: library.function("TRITONBACKEND_ModelFinalize"),
            instance_initialize: library.function("TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: library.function("TRITONBACKEND_ModelInstanceFinalize"),
            instance_ready: library.function("TRITONBACKEND_ModelInstanceReady"),
            execute: library.require("TRITONBACKEND_ModelInstanceExecute").map_err(refused)?,
        }
    };
    Ok(entries)
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

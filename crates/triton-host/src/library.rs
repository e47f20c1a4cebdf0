//! A backend's library and the functions in it.

use std::ffi::{CString, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nereid_backend_api::{Error, Result};
use triton_sys::signatures as entry;

use crate::{exports, soname};

/// The functions of a backend; most may be missing.
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

/// The functions of a library that chooses batches: all of them have to be there.
pub(crate) struct BatchEntries {
    pub initialize: entry::TRITONBACKEND_ModelBatcherInitialize,
    pub finalize: entry::TRITONBACKEND_ModelBatcherFinalize,
    pub begin: entry::TRITONBACKEND_ModelBatchInitialize,
    pub include: entry::TRITONBACKEND_ModelBatchIncludeRequest,
    pub end: entry::TRITONBACKEND_ModelBatchFinalize,
}

/// Loads a backend. The library stays for as long as the process: threads of its own may be at work in it.
///
/// # Errors
/// `InvalidArg` that says what is wrong with the file.
pub(crate) fn open_backend(path: &Path) -> Result<Entries> {
    let library = open(path)?;
    let execute = "TRITONBACKEND_ModelInstanceExecute";
    // SAFETY: each type is that of the function of this name, as the header has it; the library is never unloaded.
    let entries = unsafe {
        Entries {
            initialize: find(library, "TRITONBACKEND_Initialize"),
            finalize: find(library, "TRITONBACKEND_Finalize"),
            attributes: find(library, "TRITONBACKEND_GetBackendAttribute"),
            model_initialize: find(library, "TRITONBACKEND_ModelInitialize"),
            model_finalize: find(library, "TRITONBACKEND_ModelFinalize"),
            instance_initialize: find(library, "TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: find(library, "TRITONBACKEND_ModelInstanceFinalize"),
            instance_ready: find(library, "TRITONBACKEND_ModelInstanceReady"),
            execute: find(library, execute).ok_or_else(|| missing(path, execute))?,
        }
    };
    Ok(entries)
}

/// Loads a library that chooses batches; nothing if it has none of the functions for that.
///
/// # Errors
/// As [`open_backend`], and where it has some of the functions only.
pub(crate) fn open_batcher(path: &Path) -> Result<Option<BatchEntries>> {
    let library = open(path)?;
    macro_rules! sought {
        ($name:ident) => {
            // SAFETY: as in `open_backend`.
            unsafe { find::<entry::$name>(library, stringify!($name)) }.ok_or(stringify!($name))
        };
    }
    let found = (
        sought!(TRITONBACKEND_ModelBatcherInitialize),
        sought!(TRITONBACKEND_ModelBatcherFinalize),
        sought!(TRITONBACKEND_ModelBatchInitialize),
        sought!(TRITONBACKEND_ModelBatchIncludeRequest),
        sought!(TRITONBACKEND_ModelBatchFinalize),
    );
    if let (Err(_), Err(_), Err(_), Err(_), Err(_)) = found {
        return Ok(None);
    }
    let absent = |name| missing(path, name);
    Ok(Some(BatchEntries {
        initialize: found.0.map_err(absent)?,
        finalize: found.1.map_err(absent)?,
        begin: found.2.map_err(absent)?,
        include: found.3.map_err(absent)?,
        end: found.4.map_err(absent)?,
    }))
}

fn open(path: &Path) -> Result<&'static Library> {
    exports::check()?;
    soname::provide_for(path)?;
    // SAFETY: it is the operator who puts backends into the folders of backends and models: they run what they find
    // there, with all rights of the server. Its initialisers are trusted like the rest of its code.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        Error::invalid_arg(format!("cannot load the library '{}': {error}", path.display()))
    })?;
    Ok(Box::leak(Box::new(library)))
}

fn missing(path: &Path, name: &str) -> Error {
    Error::invalid_arg(format!("the library '{}' has no function {name}", path.display()))
}

/// The function of that name.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn find<F: Copy>(library: &'static Library, name: &str) -> Option<F> {
    // SAFETY: the caller's promise; the library is never unloaded.
    unsafe { library.get::<F>(CString::new(name).ok()?.as_bytes_with_nul()) }.ok().map(|function| *function)
}

/// The address of a function that this process offers to the libraries it loads.
pub(crate) fn offered(name: &str) -> Option<*mut c_void> {
    let process = Library::this();
    let name = CString::new(name).ok()?;
    // SAFETY: the symbol is taken as an address and not used otherwise.
    let address = unsafe { process.get::<*mut c_void>(name.as_bytes_with_nul()) };
    address.ok().map(|symbol| symbol.as_raw_ptr())
}

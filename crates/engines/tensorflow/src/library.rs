//! Opens TensorFlow's library, and turns the status of its calls into results.
//!
//! Does not know where to find the library.

use std::ffi::CStr;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_dylib::{Binding, InUse, LoadError, open};

use crate::api::{self, Api};

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The dynamic loader rejects it.
    #[error(transparent)]
    Unloadable(#[from] LoadError),
    /// The file is another library, or too old.
    #[error("{path} is not the library of TensorFlow 2: it does not export {function}")]
    Foreign {
        /// The library.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
}

/// The library in use.
pub struct TensorFlow {
    pub(crate) api: Api,
    version: String,
}

impl TensorFlow {
    /// Loads a library, which stays open for the life of the process.
    ///
    /// # Errors
    /// Says why this library cannot be used.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let _in_use = InUse::new();
        // SAFETY: loading runs the library's initialisers. The operator named or installed this file as TensorFlow, and
        // it is trusted like any backend library.
        let library = unsafe { open(path, Binding::Lazy) }?;
        // SAFETY: a library that exports these names claims to be TensorFlow's C interface. It is never closed: its
        // handle is forgotten below.
        let api = unsafe { Api::of(&library) };
        let api = api.map_err(|function| OpenError::Foreign { path: path.to_owned(), function })?;
        mem::forget(library);
        // SAFETY: the function takes no arguments, and returns a static string that ends with a zero byte.
        let version = unsafe { CStr::from_ptr((api.version)()) }.to_string_lossy().into_owned();
        Ok(Arc::new(Self { api, version }))
    }

    /// The library's version, such as `2.21.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Calls a function that reports to a status, and returns its result.
    ///
    /// # Errors
    /// The library's message, on one line.
    pub(crate) fn call<T>(&self, call: impl FnOnce(*mut api::Status) -> T) -> Result<T, String> {
        // SAFETY: the functions take no arguments, or a status that is alive. The message belongs to the status, and
        // ends with a zero byte.
        unsafe {
            let status = (self.api.new_status)();
            let result = call(status);
            let outcome = match (self.api.code)(status) {
                0 => Ok(result),
                _ => Err(one_line(&CStr::from_ptr((self.api.message)(status)).to_string_lossy())),
            };
            (self.api.delete_status)(status);
            outcome
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_of_something_else_names_the_missing_function() {
        let error = TensorFlow::open(Path::new("libc.so.6")).err().unwrap().to_string();
        assert!(error.starts_with("libc.so.6 is not the library of TensorFlow"), "{error}");
        assert!(error.ends_with("does not export TF_Version"), "{error}");
    }
}

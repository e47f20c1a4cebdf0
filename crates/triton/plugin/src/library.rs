//! A plugin's library and the functions in it.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_dylib::{Binding, Library, LoadError, open, symbol};

use crate::kind::Kind;
use crate::soname;

/// The reason why a plugin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No folder contains the library.
    #[error("cannot find '{file}' (searched {})", list(folders))]
    NotFound {
        /// The library's file name.
        file: String,
        /// The folders that were searched.
        folders: Vec<PathBuf>,
    },
    /// The file cannot be read, or is not a library.
    #[error("{} is not a shared library: {reason}", path.display())]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The dynamic loader rejects the library.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library lacks a function that its kind must export.
    #[error("{} is not a Triton {kind}: it does not export {function}", path.display())]
    MissingFunction {
        /// The library.
        path: PathBuf,
        /// The expected kind.
        kind: Kind,
        /// The function.
        function: String,
    },
    /// The program was linked without exporting a function, or another function of that name hides it.
    #[error("this program does not export {0} to the libraries it loads")]
    NotExported(String),
    /// The stand-in for the server's library cannot be created.
    #[error("cannot create a stand-in for {name}: {reason}")]
    StandIn {
        /// The server's library.
        name: String,
        /// The reason.
        reason: String,
    },
}

fn list(folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| format!("'{}'", folder.display())).collect();
    folders.join(", ")
}

/// A plugin's library, which stays loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Plugin {
    kind: Kind,
    path: PathBuf,
    library: Arc<ManuallyDrop<Library>>,
}

impl Plugin {
    pub(crate) fn open(kind: Kind, path: &Path) -> Result<Self, PluginError> {
        soname::provide_for(path)?;
        // SAFETY: the operator puts plugins into the plugin and model folders and trusts them with all rights of the
        // server, as documented at `Kind::load`.
        let library = unsafe { open(path, Binding::Now) }?;
        Ok(Self { kind, path: path.to_owned(), library: Arc::new(ManuallyDrop::new(library)) })
    }

    /// A function of the library, if it exports it.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of that name.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller's promise; the library is never unloaded.
        unsafe { symbol(&self.library, name) }
    }

    /// A function that the library must export.
    ///
    /// # Errors
    /// The function is missing; the error names it.
    ///
    /// # Safety
    /// As [`function`](Self::function).
    pub unsafe fn require<F: Copy>(&self, name: &str) -> Result<F, PluginError> {
        // SAFETY: the caller's promise.
        unsafe { self.function(name) }.ok_or_else(|| self.missing(name))
    }

    /// A table of functions, declared with [`symbols!`](nereid_dylib::symbols).
    ///
    /// # Errors
    /// A required function is missing; the error names it.
    ///
    /// # Safety
    /// The table's types are those of pointers to the functions.
    pub unsafe fn table<T>(
        &self,
        look_up: unsafe fn(&Library) -> Result<T, &'static str>,
    ) -> Result<T, PluginError> {
        // SAFETY: the caller's promise; the library is never unloaded.
        unsafe { look_up(&self.library) }.map_err(|name| self.missing(name))
    }

    /// Checks that the library has a function.
    pub(crate) fn check(&self, name: &str) -> Result<(), PluginError> {
        // SAFETY: the function is only used as an address.
        unsafe { self.require::<*const c_void>(name) }.map(drop)
    }

    fn missing(&self, name: &str) -> PluginError {
        let (path, kind) = (self.path.clone(), self.kind);
        PluginError::MissingFunction { path, kind, function: name.to_owned() }
    }
}

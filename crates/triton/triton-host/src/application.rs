//! Servers that an application creates: their life, and their repositories.
//!
//! Knows the C interface, but not how a server is built: an [`Embedder`] builds it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::path::PathBuf;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use nereid_backend_api::{Error, Result};
use nereid_core::Server;
use nereid_cuda::Cuda;
use triton_sys::*;

use crate::boundary::{Out, exports};
use crate::handle::Handle;
use crate::options::Settings;
use crate::parameter::Parameter;
use crate::server::ServerObject;

/// Builds servers for applications that link or load this library.
pub trait Embedder: Send + Sync {
    /// Starts a server, and waits until the models to load at start are loaded or have failed. Only the settings decide
    /// what it serves and whether it opens ports.
    ///
    /// # Errors
    /// The options are invalid, or the server did not start.
    fn start(&self, settings: Settings) -> Result<Arc<dyn Embedded>>;

    /// Starts the process's log. Called once, before the first server or message.
    fn start_log(&self);
}

/// An application's server. Calls may come from any thread.
pub trait Embedded: Send + Sync {
    /// The server.
    fn server(&self) -> &Arc<Server>;

    /// The driver of the GPUs, if there is one.
    fn cuda(&self) -> Option<Arc<Cuda>>;

    /// Listening addresses, with the names of their protocols.
    fn addresses(&self) -> Vec<(&'static str, String)>;

    /// The server's metrics, as text.
    ///
    /// # Errors
    /// `Unsupported` if metrics are off.
    fn metrics(&self) -> Result<String>;

    /// Stops gracefully: answers requests in progress, and unloads the models. Has no effect on a stopped server.
    ///
    /// # Errors
    /// Stopping takes longer than the exit timeout. The call may be repeated.
    fn stop(&self) -> Result<()>;

    /// Sets the time that stopping may take.
    fn set_exit_timeout(&self, timeout: Duration);

    /// Polls the repositories for changes.
    ///
    /// # Errors
    /// `Unavailable` unless models are controlled by polling; otherwise the reason why the repositories cannot be read.
    fn poll(&self) -> Result<()>;

    /// Adds a repository. `names` maps names of models to their folders, where they differ.
    ///
    /// # Errors
    /// `Unsupported` unless models are controlled explicitly; otherwise the reason why it cannot be added.
    fn register(&self, repository: PathBuf, names: BTreeMap<String, String>) -> Result<()>;

    /// Removes a repository.
    ///
    /// # Errors
    /// As [`register`](Self::register), and if the repository is not registered.
    fn unregister(&self, repository: PathBuf) -> Result<()>;
}

static EMBEDDER: OnceLock<&'static dyn Embedder> = OnceLock::new();

/// Registers the `embedder` that builds applications' servers, and makes the functions of the library that calls this visible
/// to all libraries of the process. Only the first call has an effect.
pub fn embed(embedder: &'static dyn Embedder) {
    EMBEDDER.get_or_init(|| {
        nereid_plugin::make_visible(embed as *const ());
        embedder
    });
}

/// Starts the process's log, if it belongs to an application.
pub(crate) fn start_log() {
    static STARTED: Once = Once::new();
    if let Some(embedder) = EMBEDDER.get() {
        STARTED.call_once(|| embedder.start_log());
    }
}

/// The models of a repository to be registered, by their new names.
fn names(mapping: &Out<*const TRITONSERVER_Parameter>, count: u32) -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for parameter in mapping.elements(count.into())? {
        let parameter = Handle::<Parameter>::of(parameter.cast_mut()).get()?;
        let folder = parameter.name().to_string_lossy().into_owned();
        let no_text = || Error::invalid_arg(format!("the name of the model in '{folder}' is not a string"));
        let name = parameter.as_text().ok_or_else(no_text)?;
        if let Some(other) = names.insert(name.clone(), folder.clone()) {
            return Err(Error::invalid_arg(format!("both '{other}' and '{folder}' are mapped to '{name}'")));
        }
    }
    Ok(names)
}

exports! {
    fn TRITONSERVER_ServerNew(
        server: *mut *mut TRITONSERVER_Server,
        options: *mut TRITONSERVER_ServerOptions,
    ) {
        server.check()?;
        let settings = options.get()?.settings();
        let none = || Error::unsupported("this program runs its own server and cannot create others");
        let embedder = EMBEDDER.get().ok_or_else(none)?;
        server.give(Arc::new(ServerObject::owned(embedder.start(settings)?)))?;
    }

    fn TRITONSERVER_ServerDelete(server: *mut TRITONSERVER_Server) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.stop()?;
        server.take()?;
    }

    fn TRITONSERVER_ServerStop(server: *mut TRITONSERVER_Server) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.stop()?;
    }

    fn TRITONSERVER_ServerSetExitTimeout(server: *mut TRITONSERVER_Server, timeout: c_uint) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.set_exit_timeout(Duration::from_secs(timeout.into()));
    }

    fn TRITONSERVER_ServerRegisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
        name_mapping: *mut *const TRITONSERVER_Parameter,
        mapping_count: u32,
    ) {
        let (path, names) = (PathBuf::from(&*repository_path.read()?), names(&name_mapping, mapping_count)?);
        server.get()?.as_owner()?.register(path, names)?;
    }

    fn TRITONSERVER_ServerUnregisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
    ) {
        let path = PathBuf::from(&*repository_path.read()?);
        server.get()?.as_owner()?.unregister(path)?;
    }

    fn TRITONSERVER_ServerPollModelRepository(server: *mut TRITONSERVER_Server) {
        server.get()?.as_owner()?.poll()?;
    }
}

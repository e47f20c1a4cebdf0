//! The program or library that builds servers for applications.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use nereid_backend_api::Result;
use nereid_core::Server;
use nereid_cuda::Cuda;

/// The settings of a new server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options: the names of the command line without their dashes, and values.
    pub options: Vec<(Cow<'static, str>, String)>,
    /// Whether options without an effect are refused, as on the command line.
    pub is_strict: bool,
    /// Whether the server opens ports.
    pub listens: bool,
}

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

/// The registered embedder; `None` in a program that runs its own server.
pub(crate) fn embedder() -> Option<&'static dyn Embedder> {
    EMBEDDER.get().copied()
}

/// Starts the process's log, if it belongs to an application.
pub(crate) fn start_log() {
    static STARTED: Once = Once::new();
    if let Some(embedder) = EMBEDDER.get() {
        STARTED.call_once(|| embedder.start_log());
    }
}

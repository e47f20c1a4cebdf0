//! A server within a program: its life, its models and its requests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nereid_assembly::{
    Config, LoadOutcome, LocalAddress, Process, Registration, RunningServer, StartError, StopError, start,
};
use nereid_core::backend_api::{Error, Overrides, RequestTrace, Response, Result};
use nereid_core::model_config::ModelConfig;
use nereid_core::{Caller, ModelControl, ScopedName, Server as Core, Work};
use nereid_cuda::Cuda;
use nereid_metrics::Exposition;
use nereid_net::io_runtime::{self, IoRuntime};
use nereid_options::Options;
use nereid_protocol::documents::{
    IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata, Statistics, blocking_repository_index,
};
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::builder::Builder;
use crate::inference::{Request, Responses};
use crate::overrides::ModelOverrides;

/// The interval between checks for work in progress while the server stops.
const WORK_CHECK: Duration = Duration::from_millis(10);

/// An inference server that runs within this program. [`stop`](Self::stop) shuts it down gracefully; dropping it ends
/// it at once.
pub struct Server {
    core: Arc<Core>,
    registration: Registration,
    exposition: Option<Arc<Exposition>>,
    cuda: Option<Arc<Cuda>>,
    addresses: Vec<(&'static str, LocalAddress)>,
    exit_timeout: Mutex<Duration>,
    /// Taken by the thread that stops it.
    running: Mutex<Option<RunningServer>>,
    runtime: OwnRuntime,
}

/// The runtime of the faces and of stopping. It ends with the server.
struct OwnRuntime(Option<IoRuntime>);

impl OwnRuntime {
    fn new(threads: usize) -> Result<Self> {
        let runtime = io_runtime::start(threads).map_err(StartError::Runtime);
        runtime.map(|runtime| Self(Some(runtime))).map_err(refused)
    }

    fn get(&self) -> Result<&Runtime> {
        self.0.as_deref().ok_or_else(|| Error::unavailable("the server has ended"))
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Does not block, so it may happen on any thread.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Server {
    /// Configures a server.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a server with `threads` for I/O, and waits for the models to load at start.
    pub(crate) async fn start(
        options: &Options,
        mut config: Config,
        process: Process,
        threads: usize,
    ) -> Result<Self> {
        let control = config.server.model_control;
        if control == ModelControl::Poll && config.faces.is_empty() {
            // The program calls `poll` itself.
            config.poll = None;
        }
        let runtime = OwnRuntime::new(threads)?;
        let process = Process { runtime: Some(runtime.get()?.handle().clone()), ..process };
        let running = start(config, process).map_err(refused)?;
        let server = Self {
            core: Arc::clone(running.server()),
            registration: running.registration(),
            exposition: options.keeps_metrics().then(|| Arc::clone(running.exposition())),
            cuda: running.cuda().cloned(),
            addresses: running.addresses().collect(),
            exit_timeout: Mutex::new(options.exit_timeout()),
            running: Mutex::default(),
            runtime,
        };
        let loaded = running.loaded().await;
        *server.running() = Some(running);
        if let Err(error) = check(loaded, options.exits_on_error()) {
            // Report the failure to load rather than one to stop.
            let _ = server.stop().await;
            return Err(error);
        }
        Ok(server)
    }

    /// Sends a request, and waits for its single response.
    ///
    /// # Errors
    /// The model fails, the request does not match the model, or the model is not served.
    pub async fn infer(&self, request: Request) -> Result<Response> {
        self.infer_stream(request).await?.0.single().await
    }

    /// Sends a request to a model that may send several responses.
    ///
    /// # Errors
    /// The request cannot be queued. Later failures arrive through the stream.
    pub async fn infer_stream(&self, request: Request) -> Result<Responses> {
        let Request { model, version, mut inner } = request;
        inner.trace = self.core.trace().draw(&model, || None).map(RequestTrace::new);
        let model = self.core.resolve(ScopedName::everywhere(&model), version).await?;
        self.core.infer(&model, inner, Caller::default()).map(Responses)
    }

    /// Whether the server accepts requests and, unless `strict-readiness` is false, all models are ready.
    pub async fn is_ready(&self) -> bool {
        self.core.ready().await
    }

    /// Whether a version of a model is ready; without a number, the one that its version policy serves.
    ///
    /// # Errors
    /// The reason why it is not ready.
    pub async fn model_ready(&self, name: &str, version: Option<u64>) -> Result<()> {
        self.core.model_ready(ScopedName::everywhere(name), version).await
    }

    /// Loads or reloads a model.
    ///
    /// # Errors
    /// The reason why it is not served, or that models are not controlled explicitly.
    pub async fn load_model(&self, name: &str) -> Result<()> {
        self.core.peers_of_application().load(name, Overrides::default()).await
    }

    /// Loads or reloads a model with another configuration, or from files in memory.
    ///
    /// # Errors
    /// See [`load_model`](Self::load_model); or the overrides are invalid.
    pub async fn load_model_with(&self, name: &str, overrides: ModelOverrides) -> Result<()> {
        self.core.peers_of_application().load(name, overrides.into()).await
    }

    /// Unloads a model after its requests are answered.
    ///
    /// # Errors
    /// The model is not loaded, or the control mode is not explicit.
    pub async fn unload_model(&self, name: &str) -> Result<()> {
        self.core.peers_of_application().unload(name, false).await
    }

    /// Polls the repositories, with `model-control-mode` at `poll`. Blocks until changed models are loaded. An
    /// incomplete change waits for the next poll.
    ///
    /// # Errors
    /// `Unavailable` in other modes; otherwise why the repositories cannot be read.
    pub fn poll(&self) -> Result<()> {
        if self.core.options().model_control != ModelControl::Poll {
            return Err(Error::unavailable("polling is disabled"));
        }
        // A change is applied when two polls have seen the same files.
        let again = self.core.poll(Duration::MAX)?;
        if again {
            self.core.poll(Duration::MAX)?;
        }
        Ok(())
    }

    /// Adds a model repository, a folder or an address such as `s3://bucket/models`. Requires `model-control-mode`
    /// `explicit`. `names` maps model names to folders, where they differ.
    ///
    /// # Errors
    /// `Unsupported` in other modes; otherwise the reason why it cannot be added.
    pub async fn register_repository(
        &self,
        location: impl AsRef<Path>,
        names: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.check_registration("registration")?;
        self.registration.add(location.as_ref(), names).await
    }

    /// Removes a model repository. Models from it stay available until they are unloaded.
    ///
    /// # Errors
    /// `Unsupported` unless `model-control-mode` is `explicit`; `InvalidArg` for an unknown repository.
    pub fn unregister_repository(&self, location: impl AsRef<Path>) -> Result<()> {
        self.check_registration("unregistration")?;
        self.registration.remove(location.as_ref())
    }

    fn check_registration(&self, what: &str) -> Result<()> {
        if self.core.options().model_control == ModelControl::Explicit {
            return Ok(());
        }
        Err(Error::unsupported(format!("repository {what} needs model control mode EXPLICIT")))
    }

    /// The server's name, version and extensions.
    pub fn metadata(&self) -> ServerMetadata<'_> {
        ServerMetadata::of(&self.core)
    }

    /// A model's inputs, outputs and versions that are ready.
    ///
    /// # Errors
    /// The model is not served.
    pub fn model_metadata(&self, name: &str, version: Option<u64>) -> Result<ModelMetadata> {
        ModelMetadata::of(&self.core, ScopedName::everywhere(name), version)
    }

    /// The completed configuration of a model.
    ///
    /// # Errors
    /// The model is not served.
    pub fn model_config(&self, name: &str, version: Option<u64>) -> Result<ModelConfig> {
        Ok(self.core.models().find(ScopedName::everywhere(name), version)?.config().clone())
    }

    /// The statistics of a model's ready versions, or of one of them.
    ///
    /// # Errors
    /// The model is not served.
    pub fn model_statistics(&self, name: &str, version: Option<u64>) -> Result<Vec<ModelStatistics>> {
        Statistics::of(&self.core, ScopedName::everywhere(name), version)
            .map(|statistics| statistics.model_stats)
    }

    /// The statistics of all ready models.
    pub fn statistics(&self) -> Vec<ModelStatistics> {
        Statistics::of_all(&self.core, |_| true).model_stats
    }

    /// Every known version of a model with its state, and models that were never loaded. It may read the repositories, and
    /// blocks while it does.
    ///
    /// # Errors
    /// The repositories cannot be read.
    pub fn repository_index(&self) -> Result<Vec<IndexEntry>> {
        blocking_repository_index(&self.core, false)
    }

    /// The metrics, in Prometheus' text format.
    ///
    /// # Errors
    /// `Unsupported` if `allow-metrics` is false.
    pub fn metrics(&self) -> Result<String> {
        let none = || Error::unsupported("the server keeps no metrics");
        Ok(self.exposition.as_ref().ok_or_else(none)?.text(&self.core))
    }

    /// The addresses that it listens on, by protocol; empty unless it [listens](Builder::listen).
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, &LocalAddress)> {
        self.addresses.iter().map(|(protocol, address)| (*protocol, address))
    }

    /// Sets the time limit of [`stop`](Self::stop); initially `exit-timeout-secs`.
    pub fn set_exit_timeout(&self, timeout: Duration) {
        *self.exit_timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Stops gracefully: refuses new requests, waits for those in progress, and unloads all models. Has no effect on a
    /// stopped server.
    ///
    /// # Errors
    /// Stopping takes longer than the exit timeout. Call it again to retry.
    pub async fn stop(&self) -> Result<()> {
        let limit = *self.exit_timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let running = self.running().take();
        let stopped = match running {
            Some(running) => running.stop(limit).await,
            None => self.finish(limit).await?,
        };
        stopped.map_err(|error| Error::internal(error.to_string()))
    }

    /// Waits for an unfinished stop: one that timed out, or one on another thread.
    async fn finish(&self, limit: Duration) -> Result<std::result::Result<(), StopError>> {
        let (core, end) = (Arc::clone(&self.core), Instant::now().checked_add(limit));
        let finishing = self.runtime.get()?.spawn(async move {
            while core.work() != Work::Nothing {
                if end.is_some_and(|end| Instant::now() >= end) {
                    return Err(StopError::Deadline(limit));
                }
                sleep(WORK_CHECK).await;
            }
            let left = end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
            let unloading = timeout(left.max(WORK_CHECK), spawn_blocking(move || core.unload_all())).await;
            let ended = unloading.map_err(|_| StopError::Models(limit))?;
            ended.map_err(|panic| StopError::Task(panic.to_string()))
        });
        Ok(finishing.await.unwrap_or_else(|panic| Err(StopError::Task(panic.to_string()))))
    }

    /// The core server. For the C library: not part of the stable interface.
    #[doc(hidden)]
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The driver of the GPUs, if any. Internal, like [`core`](Self::core).
    #[doc(hidden)]
    pub fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningServer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// An error if failed loads should fail the start.
fn check(loaded: LoadOutcome, exits_on_error: bool) -> Result<()> {
    match loaded {
        Ok(failures) if failures.is_empty() || !exits_on_error => Ok(()),
        Ok(failures) => {
            let reasons: Vec<_> = failures.iter().map(|(name, error)| format!("'{name}': {error}")).collect();
            Err(Error::internal(format!("failed to load all models: {}", reasons.join("; "))))
        }
        Err(error) if exits_on_error => Err(Error::internal(error.message().to_owned())),
        Err(error) => {
            tracing::error!("the server is not live: {error}");
            Ok(())
        }
    }
}

fn refused(error: StartError) -> Error {
    match error {
        StartError::Backends(error) => error,
        StartError::Runtime(_) | StartError::Bind { .. } => Error::unavailable(error.to_string()),
        other => Error::invalid_arg(other.to_string()),
    }
}

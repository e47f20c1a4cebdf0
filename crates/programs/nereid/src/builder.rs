//! Configures an embedded server: by typed settings, by the options of the command line under the same names, or by the
//! configuration itself.

use std::ffi::OsString;
use std::fmt::{self, Debug, Display};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use nereid_assembly::{Config, Process};
use nereid_core::backend_api::{Error, Result};
use nereid_core::{ExecutorFactory, Interceptor, InterceptorFactory};
use nereid_options::from_pairs;
use nereid_protocol::LogControl;

use crate::server::Server;

/// Configures a [`Server`]. Defaults match the command line.
#[derive(Clone, Default)]
#[must_use]
pub struct Builder {
    /// Names without their dashes, and values.
    options: Vec<(String, OsString)>,
    changes: Vec<Change>,
    listens: bool,
    log: Option<Arc<LogControl>>,
}

/// A change of the configuration that the options describe.
type Change = Arc<dyn Fn(&mut Config) + Send + Sync>;

/// How models are loaded and unloaded while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelControl {
    /// All models at start, and never again.
    Fixed,
    /// The program, by [`Server::load_model`] and [`Server::unload_model`].
    Explicit,
    /// [`Server::poll`], or a [listening](Builder::listen) server itself, follows changes of the repositories.
    Poll,
    /// Requests load their models.
    OnDemand,
}

impl Builder {
    /// Serves the models in this repository: a folder, or an address such as `s3://bucket/models`. Further calls add
    /// further repositories.
    pub fn model_repository(mut self, path: impl AsRef<Path>) -> Self {
        self.options.push(("model-repository".to_owned(), path.as_ref().into()));
        self
    }

    /// Sets an option of the command line, named without leading dashes: `option("model-load-thread-count", 8)`.
    /// Options that accept several values accumulate. [`start`](Self::start) reports invalid ones.
    pub fn option(mut self, name: impl Into<String>, value: impl Display) -> Self {
        self.options.push((name.into(), value.to_string().into()));
        self
    }

    /// Sets how models are loaded and unloaded.
    pub fn model_control(self, control: ModelControl) -> Self {
        let mode = match control {
            ModelControl::Fixed => "none",
            ModelControl::Explicit => "explicit",
            ModelControl::Poll => "poll",
            ModelControl::OnDemand => "on-demand",
        };
        self.option("model-control-mode", mode)
    }

    /// Loads a model at start, with [`ModelControl::Explicit`] or [`ModelControl::OnDemand`]. Further calls add further models.
    pub fn load_at_start(self, model: impl Display) -> Self {
        self.option("load-model", model)
    }

    /// Whether a model that fails to load fails the start.
    pub fn exit_on_error(self, exits: bool) -> Self {
        self.option("exit-on-error", exits)
    }

    /// Sets a backend's setting: `backend_setting("onnxruntime", "engine", "tract")`.
    pub fn backend_setting(self, backend: impl Display, setting: impl Display, value: impl Display) -> Self {
        self.option("backend-config", format_args!("{backend},{setting}={value}"))
    }

    /// Limits the requests in progress over all models. Further ones are refused.
    pub fn max_inflight_requests(self, count: NonZeroUsize) -> Self {
        self.option("max-inflight-requests", count)
    }

    /// Sets the address for HTTP, once the server [listens](Self::listen). Port 0 is any free one.
    pub fn http_address(self, address: SocketAddr) -> Self {
        self.address("http", address)
    }

    /// Sets the address for gRPC, once the server [listens](Self::listen). Port 0 is any free one.
    pub fn grpc_address(self, address: SocketAddr) -> Self {
        self.address("grpc", address)
    }

    /// Sets the address for metrics, once the server [listens](Self::listen). Port 0 is any free one.
    pub fn metrics_address(self, address: SocketAddr) -> Self {
        self.address("metrics", address)
    }

    fn address(self, protocol: &str, address: SocketAddr) -> Self {
        self.option(format!("{protocol}-address"), address.ip())
            .option(format!("{protocol}-port"), address.port())
    }

    /// Changes the configuration that all options describe, before the server starts: everything that a server can be
    /// configured to do, as types. Changes apply in the order of the calls.
    pub fn configure(mut self, change: impl Fn(&mut Config) + Send + Sync + 'static) -> Self {
        self.changes.push(Arc::new(change));
        self
    }

    /// Passes the requests to all models through an interceptor before they are queued.
    pub fn interceptor(self, interceptor: Arc<dyn Interceptor>) -> Self {
        self.configure(move |config| config.server.interceptors.add(Arc::clone(&interceptor)))
    }

    /// Passes the requests to each model through the interceptor that the factory makes for it.
    pub fn interceptor_factory(self, factory: Arc<dyn InterceptorFactory>) -> Self {
        self.configure(move |config| config.server.interceptors.add_factory(Arc::clone(&factory)))
    }

    /// Registers a kind of executor, which executes the models that it accepts in place of a backend.
    pub fn executor_factory(self, factory: Arc<dyn ExecutorFactory>) -> Self {
        self.configure(move |config| config.server.executors.register(Arc::clone(&factory)))
    }

    /// Serves clients as the command does: HTTP, gRPC and metrics, on the configured ports. Without this call no port
    /// is opened.
    pub fn listen(mut self) -> Self {
        self.listens = true;
        self
    }

    /// Lets clients read and change the settings of this log, which is the process's. For the C library: not part of the
    /// stable interface.
    #[doc(hidden)]
    pub fn with_log(mut self, log: &Arc<LogControl>) -> Self {
        self.log = Some(Arc::clone(log));
        self
    }

    /// Starts the server and waits until the initial models are loaded or have failed.
    ///
    /// # Errors
    /// An option is invalid, a port cannot be opened, or a model failed to load and `exit-on-error` is not false.
    pub async fn start(self) -> Result<Server> {
        let options = from_pairs(&self.options).map_err(Error::invalid_arg)?;
        if let Some(reason) = options.contradiction() {
            return Err(Error::invalid_arg(reason));
        }
        let mut config = options.config().map_err(Error::invalid_arg)?;
        let threads = if self.listens { options.io_threads() } else { 1 };
        if !self.listens {
            config.faces.clear();
        }
        self.changes.iter().for_each(|change| change(&mut config));
        for advice in options.advice() {
            tracing::debug!("{advice}");
        }
        let process = Process {
            log: self.log.unwrap_or_default(),
            backend_metrics: nereid_triton_host::metric_registry(),
            ..Process::default()
        };
        Server::start(&options, config, process, threads).await
    }
}

impl Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Builder");
        debug.field("options", &self.options).field("changes", &self.changes.len());
        debug.field("listens", &self.listens).finish_non_exhaustive()
    }
}

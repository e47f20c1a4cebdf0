//! Configures an embedded server with the options of the command line, under the same names.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use nereid_assembly::Process;
use nereid_core::backend_api::{Error, Result};
use nereid_options::from_pairs;
use nereid_protocol::LogControl;

use crate::server::Server;

/// Configures a [`Server`]. Defaults match the command line.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    /// Names without their dashes, and values.
    options: Vec<(String, OsString)>,
    listens: bool,
    log: Option<Arc<LogControl>>,
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

//! Why a server did not start, or did not stop in time.

use std::io;
use std::time::Duration;

use nereid_core::backend_api::Error;
use nereid_cuda::CudaError;
use nereid_listener::TlsError;
use thiserror::Error;

/// Why a server did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The runtime's threads could not be started.
    #[error("cannot start the I/O threads: {0}")]
    Runtime(io::Error),
    /// An address could not be bound.
    #[error("cannot serve {protocol} at {host}:{port}: {source}")]
    Bind {
        /// The face's protocol.
        protocol: &'static str,
        /// The address's host.
        host: String,
        /// The address's port.
        port: u16,
        /// What the system reports.
        source: io::Error,
    },
    /// The files of TLS cannot be used.
    #[error("cannot serve {protocol} with TLS: {source}")]
    Tls {
        /// The face's protocol.
        protocol: &'static str,
        /// What is wrong with them.
        source: Box<TlsError>,
    },
    /// The driver library that the configuration names cannot be loaded.
    #[error(transparent)]
    Driver(CudaError),
    /// The backends could not be set up.
    #[error("{0}")]
    Backends(Error),
    /// The response cache cannot be used.
    #[error("{0}")]
    Cache(String),
    /// A model repository cannot be opened.
    #[error("{0}")]
    Repository(String),
    /// Traces cannot go where the configuration says.
    #[error("{0}")]
    Traces(String),
}

/// Why a server did not stop in order.
#[derive(Debug, Error)]
pub enum StopError {
    /// Requests were still in progress.
    #[error("requests were still in progress after {} seconds", .0.as_secs())]
    Deadline(Duration),
    /// Clients had not ended their sequences, nor were these idle for too long.
    #[error("sequences were still open after {} seconds", .0.as_secs())]
    Sequences(Duration),
    /// Backends had not ended.
    #[error("models were still being unloaded after {} seconds", .0.as_secs())]
    Models(Duration),
    /// A task of the server panicked.
    #[error("cannot shut down in order: {0}")]
    Task(String),
}

//! Errors of starting and stopping a server.

use std::io;
use std::time::Duration;

use nereid_core::backend_api::Error;
use nereid_cuda::CudaError;
use nereid_net::listener::{Address, TlsError};
use thiserror::Error;

/// The server did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The runtime's threads could not be started.
    #[error("cannot start the I/O threads: {0}")]
    Runtime(io::Error),
    /// An address could not be bound.
    #[error("cannot serve {protocol} at {address}: {source}")]
    Bind {
        /// The face's protocol.
        protocol: &'static str,
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The TLS files cannot be used.
    #[error("cannot serve {protocol} with TLS: {source}")]
    Tls {
        /// The face's protocol.
        protocol: &'static str,
        /// The reason.
        source: Box<TlsError>,
    },
    /// The driver library named in the configuration cannot be loaded.
    #[error(transparent)]
    Driver(CudaError),
    /// The backends could not be set up.
    #[error("{0}")]
    Backends(Error),
    /// The response cache cannot be used.
    #[error("{0}")]
    Cache(String),
    /// The access policy cannot be used.
    #[error("{0}")]
    Access(String),
    /// The audit log cannot be written.
    #[error("{0}")]
    Audit(String),
    /// A model repository cannot be opened.
    #[error("{0}")]
    Repository(String),
    /// Traces cannot be written or sent as configured.
    #[error("{0}")]
    Traces(String),
}

/// The server did not stop cleanly.
#[derive(Debug, Error)]
pub enum StopError {
    /// Requests were still in progress.
    #[error("requests were still in progress after {} seconds", .0.as_secs())]
    Deadline(Duration),
    /// Sequences had neither ended nor exceeded their idle time.
    #[error("sequences were still open after {} seconds", .0.as_secs())]
    Sequences(Duration),
    /// Backends had not finished.
    #[error("models were still being unloaded after {} seconds", .0.as_secs())]
    Models(Duration),
    /// A task of the server panicked.
    #[error("cannot shut down in order: {0}")]
    Task(String),
}

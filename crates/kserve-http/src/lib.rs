//! The HTTP/REST face: KServe's open inference protocol v2 with Triton's extensions.
//!
//! Wire types live here and nowhere else; every handler converts to and from the server's own types and calls
//! [`Server`]. This crate knows of no repository, no backend and no other face.

#![forbid(unsafe_code)]

mod body;
mod compression;
mod control;
mod forward;
mod infer;
mod metadata;
mod openapi;
mod pace;
mod reply;
mod repository;
mod routes;
mod service;
mod settings;
mod shared_memory;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use nereid_core::Server;
use nereid_listener::Listener;
use nereid_protocol::{HeaderPattern, LogControl, Restrictions};
use nereid_shared_memory::Regions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[doc(hidden)]
pub use infer::offline;

/// What is spoken on the connections, best first, as TLS clients name it.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// What the HTTP face is told when it starts.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// The longest JSON part of a request and the longest tensor given in JSON, in bytes.
    pub max_input_size: usize,
    /// The longest request body, in bytes.
    pub max_body_size: usize,
    /// The headers that models get as parameters; none if there is no pattern.
    pub forwarded_headers: Option<HeaderPattern>,
    /// The parts of the protocol that ask for a key, which is a header.
    pub restrictions: Restrictions,
    /// The shared memory that clients registered, over any protocol.
    pub regions: Arc<Regions>,
    /// The log settings, which clients may change.
    pub log: Arc<LogControl>,
}

/// Answers on `listener` until `shutdown`, then lets requests in progress end.
///
/// Returns when the last connection is closed; whoever awaits it decides how long that may take.
pub async fn serve(
    listener: Listener,
    server: Arc<Server>,
    options: HttpOptions,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    service::accept(listener, Arc::new(service::Face { server, options }), &connections, shutdown).await;
    connections.close();
    connections.wait().await;
}

//! The HTTP/REST face: KServe's open inference protocol v2 with Triton's extensions.
//!
//! Wire types live here and nowhere else; every handler converts to and from the server's own types and calls
//! [`Server`]. Connections and routing are `crates/faces/http`'s. This crate knows no repository, no backend and no
//! other face.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod call;
mod control;
mod dialect;
mod infer;
mod json;
mod metadata;
mod openapi;
mod release;
mod repository;
mod routes;
mod settings;
mod shared_memory;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use nereid_core::Server;
use nereid_http::{Cors, Limit, Origin, Properties};
use nereid_load_report::LoadReports;
use nereid_protocol::{Access, HeaderPattern, LogControl};
use nereid_shared_memory::Regions;

use dialect::HEADER_LENGTH;
pub use dialect::{Dialect, Inference, redirections};
pub use routes::routes;

#[doc(hidden)]
pub use infer::offline;

/// Options of the HTTP face.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The longest JSON part of a request and the longest tensor given in JSON, in bytes.
    pub max_input_size: usize,
    /// The longest request body, in bytes.
    pub max_body_size: usize,
    /// Which headers are forwarded to models as parameters; `None` for none.
    pub forwarded_headers: Option<HeaderPattern>,
    /// Access to the routes.
    pub access: Access,
    /// The web pages that may use the face.
    pub cors: Cors,
    /// The shared memory that clients registered, over any protocol.
    pub regions: Arc<Regions>,
    /// The log settings, which clients may change.
    pub log: Arc<LogControl>,
    /// Load reports for the headers of inference answers; `None` to send none.
    pub load_reports: Option<LoadReports>,
}

impl Default for HttpOptions {
    /// Triton's limits, without restrictions or forwarded headers.
    fn default() -> Self {
        Self {
            max_input_size: 64 << 20,
            max_body_size: i32::MAX as usize,
            forwarded_headers: None,
            access: Access::default(),
            cors: Cors::default(),
            regions: Arc::default(),
            log: Arc::default(),
            load_reports: None,
        }
    }
}

/// CORS for pages of these origins, which may read the JSON length of a binary reply.
pub fn cors(origins: Vec<Origin>) -> Cors {
    Cors::new(origins, &[HEADER_LENGTH])
}

impl HttpOptions {
    fn input_limit(&self) -> Limit {
        Limit { bytes: self.max_input_size, option: "--http-max-input-size" }
    }
}

/// The HTTP face, to be mounted on a transport.
#[derive(Clone)]
pub struct KserveHttp {
    server: Arc<Server>,
    options: HttpOptions,
    dialect: Dialect,
    properties: Properties,
    /// The regions of callers who may not use shared memory.
    no_regions: Arc<Regions>,
}

impl KserveHttp {
    /// The face of `server`.
    pub fn new(server: Arc<Server>, options: HttpOptions) -> Self {
        let properties = Properties {
            prefix: "/",
            fallback: routes::not_found,
            access: options.access.clone(),
            body_limit: Limit { bytes: options.max_body_size, option: "--http-max-body-size" },
            body_budget: server.bodies().clone(),
            cors: options.cors.clone(),
            keeps_spelling: options.forwarded_headers.is_some(),
            error_body: None,
        };
        let no_regions = Arc::new(Regions::closed());
        Self { server, options, dialect: Dialect::default(), properties, no_regions }
    }

    /// This face with the dialect of another face, which passes its requests on.
    #[must_use]
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

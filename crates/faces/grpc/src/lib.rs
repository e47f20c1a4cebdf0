//! The gRPC face: KServe's open inference protocol v2 with Triton's extensions.
//!
//! Wire types live here and nowhere else; every call converts to and from the server's own types and calls
//! [`Server`]. This crate knows of no repository, no backend and no other face.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod calls;
mod codec;
mod companions;
mod deadline;
mod forward;
mod health;
mod infer;
mod inference;
mod messages;
mod metadata;
mod observed;
pub mod offline;
mod proto;
mod repository;
mod service;
mod settings;
mod shared_memory;
mod statistics;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod tracing;
mod transport;

use std::sync::{Arc, LazyLock};

use http::Extensions;
use nereid_budgets::BodyBudget;
use nereid_core::backend_api::Error;
use nereid_core::{ModelId, Scope, ScopedName, Server};
use nereid_load_report::LoadReports;
use nereid_protocol::{
    Access, Action, Admission, AuditedRequest, Denied, HeaderPattern, Identity, LogControl,
};
use nereid_shared_memory::Regions;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::codec::InferMessage;
pub use calls::{Calls, RESTRICTED_PREFIX, calls};
pub use proto::FILE_DESCRIPTORS;
pub use transport::{PROTOCOLS, PingRules, TransportOptions, serve};

/// Configuration of the gRPC face.
#[derive(Clone, Debug, Default)]
pub struct GrpcOptions {
    /// Access rules of the calls. Headers with keys of restricted API groups have the prefix [`RESTRICTED_PREFIX`].
    pub access: Access,
    /// Pattern of the headers forwarded to models as parameters; `None` forwards none.
    pub forwarded_headers: Option<HeaderPattern>,
    /// The shared memory that clients registered, over any protocol.
    pub regions: Arc<Regions>,
    /// The log settings, which clients may change.
    pub log: Arc<LogControl>,
    /// Compression of answers to inference requests.
    pub compression: Compression,
    /// Load reports for the trailers of inference answers; `None` to send none.
    pub load_reports: Option<LoadReports>,
}

/// Compression of answers to inference requests, if the client accepts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// Gzip.
    Gzip,
    /// Deflate or gzip, in the client's order of preference.
    Any,
}

/// The state shared by all calls.
pub(crate) struct Face {
    pub server: Arc<Server>,
    pub options: GrpcOptions,
    pub shutdown: CancellationToken,
    /// The regions of callers who may not use shared memory.
    pub no_regions: Arc<Regions>,
}

/// The sender of a call with these extensions.
fn caller(call: &Extensions) -> &Identity {
    static UNKNOWN: LazyLock<Identity> = LazyLock::new(Identity::default);
    call.get().unwrap_or(&UNKNOWN)
}

impl Face {
    /// Whether the caller of a call with these extensions may do this, with this model if it concerns one.
    ///
    /// # Errors
    /// The status of a refused call.
    pub fn permit(&self, call: &Extensions, action: Action, model: Option<&str>) -> Result<(), Status> {
        let outcome = self.check(caller(call), action, model);
        match &outcome {
            Ok(()) => self.note(call, action, model),
            Err(_) => {
                if let Some(audited) = call.get::<Arc<AuditedRequest>>() {
                    audited.refused();
                }
            }
        }
        outcome
    }

    /// Notes for the audit what a call with these extensions does, and with which model or region.
    pub fn note(&self, call: &Extensions, action: Action, subject: Option<&str>) {
        if let Some(audited) = call.get::<Arc<AuditedRequest>>() {
            audited.note(action, subject);
        }
    }

    /// Whether a list for the caller of a call with these extensions shows a model.
    pub fn shows(&self, call: &Extensions, action: Action, model: &ModelId) -> bool {
        self.options.access.shows(caller(call), action, model)
    }

    /// The models on which the caller of a call with these extensions may do this.
    pub fn scope(&self, call: &Extensions, action: Action) -> Scope {
        self.options.access.scope(caller(call), action)
    }

    /// Whether a caller may do this, with this model if it concerns one.
    ///
    /// # Errors
    /// The status of a refused call.
    pub fn check(&self, caller: &Identity, action: Action, model: Option<&str>) -> Result<(), Status> {
        self.options.access.check(caller, action, model).map_err(|denied| status::denied(&denied))
    }

    /// Counts a permitted request. Requests to unknown models fail, and are not counted.
    ///
    /// # Errors
    /// The sender has reached a limit.
    pub fn admit(
        &self,
        caller: &Identity,
        message: &InferMessage,
        scope: &Scope,
    ) -> Result<Option<Admission>, Denied> {
        if self.options.access.is_open_to(caller) {
            return Ok(None);
        }
        match self.server.models().find(ScopedName::new(&message.model_name, scope), None) {
            Ok(model) => self.options.access.admit(caller, model.id(), message.byte_size()),
            Err(_) => Ok(None),
        }
    }

    /// The status of a request that failed because its caller may not use shared memory. `None` for other errors.
    pub fn region_refusal(&self, caller: &Identity, error: &Error) -> Option<Status> {
        if !Regions::is_disabled(error) {
            return None;
        }
        self.check(caller, Action::UseRegions, None).err()
    }

    /// The limit for messages in memory; none for those that are counted elsewhere.
    pub fn body_budget(&self, counts: bool) -> &BodyBudget {
        if counts { self.server.bodies() } else { &BodyBudget::UNLIMITED }
    }
}

//! The part common to all protocols: the meaning of parameters, settings and headers, the KServe documents, and access
//! control.
//!
//! The faces (HTTP, gRPC, the C interface) read and write their own wire types; this crate defines the meaning of names
//! and values once. It depends on no wire format.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod access;
pub mod documents;
mod forward;
mod logging;
mod model;
pub mod parameters;
mod recent_log;
pub mod repository;
mod request_log;
mod status;
mod trace_context;
mod trace_settings;

pub use access::{
    Access, Action, ApiGroup, Audit, AuditEvent, AuditOutcome, AuditedRequest, Authentication, Authenticator,
    Authorizer, Credential, Denied, Exhausted, Head, Identity, Need, Origin, Restriction, Restrictions,
    Right,
};
pub use forward::HeaderPattern;
pub use logging::{LogControl, LogFormat, LogSettings, LogUpdate, LogValue};
pub use model::{as_invalid_arg, parse_version, request_head, resolve_single};
/// For transports, which do not depend on the server.
pub use nereid_core::{Admission, ModelId, Principal, Scope, ScopedName, Usage};
pub use recent_log::{LogLevel, LogLine, RecentLog};
pub use request_log::{LoggedRequest, REQUEST_LOG};
pub use status::{grpc_status, http_status};
pub use trace_context::trace_parent;
pub use trace_settings::{TraceDocument, set_trace_level, set_trace_number};

/// The protocol extensions that every face offers, by their names in Triton's documents.
pub const EXTENSIONS: &[&str] = &[
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

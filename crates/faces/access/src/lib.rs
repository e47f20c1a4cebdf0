//! Access by policy: who a client is, by API keys, tokens and certificates, and which rights it has on which models.
//!
//! A [`Guard`] is an authenticator and an authorizer for every port of a server. It follows the [`Policy`]'s file and the
//! file of keys while the server runs. The crate knows neither routes nor models: the need of each action is declared
//! with the action, and rights are on names of models, whether or not such models exist. So a refusal reveals nothing
//! about the repository, neither by its text nor by its timing.
//!
//! An [`AuditLog`] records who changed what and who was refused, with or without a policy.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod audit;
mod document;
mod explain;
mod grants;
mod guard;
mod key;
mod key_file;
mod pattern;
mod policy;
mod quota;
mod stamp;
mod tokens;

pub use audit::{AuditCounts, AuditLog};
pub use explain::{GrantingRole, Reason, explain, overview};
pub use guard::Guard;
pub use key::{Expiry, NewKey, key_id};
pub use key_file::{KeyEntry, KeyFile, KeyFileError};
pub use policy::{ANONYMOUS, Policy, PolicyError, Principal, Role};
pub use quota::PrincipalUsage;
pub use tokens::{FetchKeys, Issuer, KeySource};

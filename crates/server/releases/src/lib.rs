//! Releases: a new version of a model takes a share of the requests, or copies of them, until it has proved itself.
//!
//! [`Releases`] makes the releases that configurations define (`settings.rs`). The decisions are those of a controller
//! (`controller.rs`) without a clock, a lock or a server. A model without a release has no part of this crate in its requests.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod compare;
mod controller;
mod manager;
mod observer;
mod release;
mod settings;
mod shadow;
mod shares;
mod trial;

pub use self::manager::Releases;
pub use self::release::ReleaseDecision;
pub use self::settings::PARAMETERS;

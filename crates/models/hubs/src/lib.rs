//! Stores that are not buckets: Hugging Face's hub, registries of OCI artifacts, and files of the web.
//!
//! [`HubAddress`] locates a hub, [`open`] opens it as a read-only bucket. [`arrange`] finds the model in a repository of
//! Hugging Face's hub. This crate knows files, sizes and digests; callers cache and unpack.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod address;
mod docker;
mod hugging_face;
mod layouts;
mod open;
mod registry;
mod store;
mod web;

pub use address::{HubAddress, HubKind};
pub use layouts::{Arranged, Engines, arrange};
pub use open::{OpenHub, open};
pub use registry::{FILES, IMAGE};
pub use store::{Hub, Place};
pub use web::WebKind;

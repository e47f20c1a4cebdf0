//! Where models come from: reads model folders into the specifications that the server loads.
//!
//! This crate knows the layout of a repository and nothing of backends, requests or protocols.

#![forbid(unsafe_code)]

mod data_files;
mod fingerprint;
mod model_folder;
mod registered;
mod sent;
mod source;
mod store;
mod watch;

pub use data_files::{DataFile, data_files};
pub use model_folder::{Gpus, ReadOptions, config_path, entries, read_model, version_number};
pub use source::Repositories;
pub use store::{Entry, Fetch, Fetched, LocalStore, Object, ObjectKind, Store, not_supported};
pub use watch::Watch;

//! Where models come from: reads model folders into the specifications that the server loads.
//!
//! This crate knows the layout of a repository and nothing of backends, requests or protocols.

#![forbid(unsafe_code)]

mod data_files;
mod local;
mod model_folder;

pub use data_files::{DataFile, data_files};
pub use local::LocalRepository;
pub use model_folder::{ReadOptions, config_path, entries, read_model, version_number};

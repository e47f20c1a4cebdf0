//! Where models come from: reads model folders into the specifications that the server loads.
//!
//! This crate knows the layout of a repository and nothing of backends, requests or protocols.

#![forbid(unsafe_code)]

mod local;
mod model_folder;

pub use local::LocalRepository;
pub use model_folder::{ReadOptions, read_model};

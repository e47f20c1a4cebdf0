//! Model repositories in clouds as stores of the repository crate: buckets of S3, Google Cloud Storage and Azure Blob Storage,
//! Hugging Face's hub, registries of OCI artifacts, and archives of the web.
//!
//! An [`Address`] locates a repository, [`Clouds`] opens it. One listing of a repository answers all questions about
//! its models; the files of a model are fetched into a [cache](CacheOptions) on this machine before it is loaded.
//!
//! This crate knows objects, sizes and ETags, and nothing of models, requests or protocols.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod address;
mod bucket;
mod bundle;
mod cache;
mod clouds;
mod connect;
mod credentials;
mod digests;
mod download;
mod environment;
mod errors;
mod hashing;
mod http;
mod hubs;
mod listing;
mod locator;
mod offered;
mod platform;
mod profiles;
mod progress;
mod proxies;
mod routed;
mod store;
#[cfg(test)]
mod testing;
mod trees;

pub use address::{Address, AddressError};
pub use cache::CacheOptions;
pub use clouds::{CloudOptions, Clouds, Patience, RepositoryStatus};
pub use environment::Environment;

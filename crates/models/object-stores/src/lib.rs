//! Model repositories in clouds as stores of the repository crate: buckets of S3, Google Cloud Storage and Azure Blob Storage,
//! and the hubs of the crate `hubs`.
//!
//! An [`Address`] locates a repository, [`Clouds`] opens it. One listing covers all models of a repository; the files of a
//! model are fetched into a [cache](CacheOptions) on this machine before it is loaded.
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
mod errors;
mod hashing;
mod listing;
mod locator;
mod offered;
mod platform;
mod profiles;
mod progress;
mod routed;
mod status;
mod store;
mod tasks;
#[cfg(test)]
mod testing;
mod trees;

pub use address::{Address, AddressError};
pub use bucket::ListingLimits;
pub use cache::CacheOptions;
pub use clouds::{CloudOptions, Clouds};
pub use nereid_http_client::{Environment, Patience, redacted};
pub use nereid_hubs::Engines;
pub use status::RepositoryStatus;

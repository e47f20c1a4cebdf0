//! The response cache: answers a request that equals an earlier one without executing it.
//!
//! [`ResponseCaching`] makes an interceptor for each model with `response_cache { enable: true }`. The interceptor computes
//! a [`CacheKey`] from the request and looks it up. It answers the request from the entry, or lets it proceed and stores the
//! backend's answer. A [`ResponseCache`] keeps the entries: in this process's memory ([`LocalCache`]), in Redis
//! ([`RedisCache`]), or elsewhere.
//!
//! An answer is stored if it is the only one, is not an error, and the cache admits it. Entries belong to one load of a
//! model: after a reload, earlier entries are not found.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod cache;
mod caching;
pub mod conformance;
mod counters;
mod encoding;
mod entry;
mod flights;
mod key;
mod local;
mod redis;
mod search;
mod settings;
mod storing;

pub use cache::{CacheLookup, CacheScope, CacheUsage, ResponseCache};
pub use caching::ResponseCaching;
pub use counters::CacheCounts;
pub use encoding::{Malformed, decode_entry, encode_entry, sealed_entry};
pub use entry::CacheEntry;
pub use key::CacheKey;
pub use local::{LocalCache, MIN_SIZE};
pub use redis::{RedisCache, RedisSettings, TlsSettings};
pub use settings::{CacheSettings, SettingsError};

#[cfg(test)]
mod tests;

//! Response caches: in this process's memory, or in Redis.
//!
//! `nereid-core` decides which responses to cache, and under which keys.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

pub mod conformance;
mod local;
mod redis;
mod settings;

pub use local::{LocalCache, MIN_SIZE};
pub use redis::{RedisCache, RedisSettings, TlsSettings};
pub use settings::{CacheSettings, SettingsError};

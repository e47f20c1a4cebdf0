//! Where responses are cached: in this process's memory, or in Redis.
//!
//! What is cached, and under which keys, `nereid-core` decides.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

pub mod conformance;
mod local;
mod redis;
mod settings;

pub use local::{LocalCache, MIN_SIZE};
pub use redis::{RedisCache, RedisSettings, TlsSettings};
pub use settings::{CacheSettings, SettingsError};

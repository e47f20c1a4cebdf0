//! Storage of responses: what every cache implements.

use std::path::Path;
use std::pin::Pin;

use nereid_core::backend_api::Result;

use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// Stores answers. Failures never fail a request: an entry that cannot be found or stored is a miss.
pub trait ResponseCache: Send + Sync {
    /// Whether other servers may read or write the entries.
    fn scope(&self) -> CacheScope;

    /// Looks an entry up. It must not block: slow lookups return [`CacheLookup::Wait`].
    fn lookup(&self, key: &CacheKey) -> CacheLookup;

    /// Whether to store the answer of a request that was not found. Called once per miss, before the request is executed;
    /// answers that are not admitted cost nothing further.
    fn admits(&self, _key: &CacheKey) -> bool {
        true
    }

    /// Stores an entry and replaces an older one of the same key. It must not block, and may drop the entry.
    fn insert(&self, key: &CacheKey, entry: CacheEntry);

    /// The largest entry that can be stored, by its [size](CacheEntry::byte_size). Larger ones are not inserted.
    fn max_entry_size(&self) -> usize {
        usize::MAX
    }

    /// Drops the entries of a load, which no further request looks up. They may also stay until they are evicted.
    fn forget(&self, _load: u64) {}

    /// A digest of a version's files, which distinguishes it from other versions with the same name and configuration, here
    /// or on another server. It may block. Called for [shared](CacheScope::Shared) caches only.
    ///
    /// # Errors
    /// The files cannot be read.
    fn identify(&self, _directory: &Path, _version: u64) -> Result<[u8; 32]> {
        Ok([0; 32])
    }

    /// Whether a remote cache can be reached now; `None` if the cache is not remote.
    fn is_available(&self) -> Option<bool> {
        None
    }

    /// Whether the cache exports its own metrics.
    fn keeps_metrics(&self) -> bool {
        false
    }

    /// The cache's fill level, if known.
    fn usage(&self) -> Option<CacheUsage> {
        None
    }
}

/// The servers that use the entries of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheScope {
    /// This server alone. Keys are valid within this process.
    Server,
    /// Possibly other servers, now or later. All of them use the same keys, and entries are verified before use.
    Shared,
}

/// The result of a lookup.
pub enum CacheLookup {
    /// The entry, if it was found.
    Ready(Option<CacheEntry>),
    /// The future resolves to the entry, if it is found. Any thread may poll it, outside of any runtime.
    Wait(Pin<Box<dyn Future<Output = Option<CacheEntry>> + Send>>),
}

/// The fill level of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheUsage {
    /// Number of entries.
    pub entries: u64,
    /// Number of entries evicted so far.
    pub evictions: u64,
    /// Used fraction of the memory, from 0 to 1.
    pub utilization: f64,
}

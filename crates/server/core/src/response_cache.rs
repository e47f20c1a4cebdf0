//! The response cache: where answers are kept, and what a request must have in common with an earlier one to get its answer.
//!
//! A model with `response_cache { enable: true }` gets a [`Caching`] as its last interceptor. That makes a [`CacheKey`] of the
//! request, looks it up, and either answers or lets the request go on and stores what the backend answers. Where entries are
//! kept is a [`ResponseCache`]'s business: memory, another server, a library.
//!
//! An answer is stored if there is exactly one, it is no error, and the cache admits it. Entries belong to one load of a model: one that is loaded
//! anew finds none of those before.

mod caching;
mod counters;
mod encoding;
mod entry;
mod flights;
mod key;
mod storing;

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use nereid_backend_api::Result;

pub(crate) use self::caching::{Caching, Load};
pub use self::counters::CacheCounts;
use self::counters::Counters;
pub use self::encoding::{Malformed, decode_entry, encode_entry, sealed_entry};
pub use self::entry::CacheEntry;
pub use self::key::CacheKey;

/// Keeps answers. Nothing it does may fail a request: what it cannot find or keep is a miss.
pub trait ResponseCache: Send + Sync {
    /// Whether others than this server may read or write the entries.
    fn scope(&self) -> CacheScope;

    /// The entry of a key. It must not block: what takes time is a [`CacheLookup::Wait`].
    fn lookup(&self, key: &CacheKey) -> CacheLookup;

    /// Whether the answer to a request that was not found is to be stored. It is asked before the request is executed, once for
    /// each that was not found: what is not stored costs nothing further.
    fn admits(&self, _key: &CacheKey) -> bool {
        true
    }

    /// Keeps an entry, in place of an older one of that key. It must not block, and may drop the entry.
    fn insert(&self, key: &CacheKey, entry: CacheEntry);

    /// The greatest [size](CacheEntry::byte_size) of an entry that it may keep: larger ones are not offered.
    fn max_entry_size(&self) -> usize {
        usize::MAX
    }

    /// Drops the entries of a load: no request asks for them any more. They may also stay until they are evicted.
    fn forget(&self, _load: u64) {}

    /// A digest of what else than its configuration tells a version of a model from others of its name, on this server or
    /// another: the contents of its files. It may block. Asked of [shared](CacheScope::Shared) caches only.
    ///
    /// # Errors
    /// The files cannot be read.
    fn identify(&self, _directory: &Path, _version: u64) -> Result<[u8; 32]> {
        Ok([0; 32])
    }

    /// Whether it can be used now, if it is somewhere else.
    fn is_available(&self) -> Option<bool> {
        None
    }

    /// Whether it keeps metrics of the cache as a whole by itself.
    fn keeps_metrics(&self) -> bool {
        false
    }

    /// How full it is, if that is known.
    fn usage(&self) -> Option<CacheUsage> {
        None
    }
}

/// Who uses the entries of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheScope {
    /// This server alone. Keys hold for this process.
    Server,
    /// Perhaps other servers, now or later: keys are the same for all of them, and entries are checked before they are used.
    Shared,
}

/// What a lookup gives.
pub enum CacheLookup {
    /// The entry, if there is one.
    Ready(Option<CacheEntry>),
    /// That is known when the future is ready. Any thread may poll it, outside of any runtime.
    Wait(Pin<Box<dyn Future<Output = Option<CacheEntry>> + Send>>),
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheUsage {
    /// Entries now.
    pub entries: u64,
    /// Entries that had to make room.
    pub evictions: u64,
    /// What part of its memory is used, from 0 to 1.
    pub utilization: f64,
}

/// The response cache of a server.
#[derive(Clone)]
pub struct ResponseCaching {
    cache: Arc<dyn ResponseCache>,
    coalesce: bool,
    counters: Arc<Counters>,
}

impl ResponseCaching {
    /// With this cache.
    pub fn new(cache: Arc<dyn ResponseCache>) -> Self {
        Self { cache, coalesce: false, counters: Arc::default() }
    }

    /// Whether equal requests that are in progress together are executed once.
    #[must_use]
    pub fn with_coalescing(self, coalesce: bool) -> Self {
        Self { coalesce, ..self }
    }

    /// What was looked up and stored so far.
    pub fn counts(&self) -> CacheCounts {
        self.counters.snapshot()
    }

    /// See [`ResponseCache::is_available`].
    pub fn is_available(&self) -> Option<bool> {
        self.cache.is_available()
    }

    /// See [`ResponseCache::keeps_metrics`].
    pub fn keeps_metrics(&self) -> bool {
        self.cache.keeps_metrics()
    }

    /// See [`ResponseCache::usage`].
    pub fn usage(&self) -> Option<CacheUsage> {
        self.cache.usage()
    }
}

impl fmt::Debug for ResponseCaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCaching").field("coalesce", &self.coalesce).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

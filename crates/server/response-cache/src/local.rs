//! The response cache in this process's memory.
//!
//! The limit counts the bytes that entries really occupy. Eviction follows CLOCK-Pro and S3-FIFO: entries without a
//! second lookup are evicted first, so a scan of requests that occur once does not empty the cache. The cache consists
//! of shards with a lock each; a lookup takes a read lock, and only to count a reference.
//!
//! While there is room, and for some answers beyond that, the cache stores every answer. After that, it stores an
//! answer when its key is looked up for the second time (`doorkeeper.rs`): requests that occur once then cost one
//! lookup.

mod doorkeeper;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::cache::{CacheLookup, CacheScope, CacheUsage, ResponseCache};
use crate::entry::CacheEntry;
use crate::key::CacheKey;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use smallvec::SmallVec;

use self::doorkeeper::Doorkeeper;

/// The smallest size that a cache may have, in bytes: Triton's. No entry fits into so small a cache.
pub const MIN_SIZE: u64 = 192;

/// Minimum size of a shard, if there are several: an entry cannot be larger than a shard.
const MIN_SHARD: u64 = 16 << 20;

const MAX_SHARDS: u64 = 64;

/// The size of an entry without its contents: its key, and its slots in the table and in the lists.
const PER_ENTRY: usize = size_of::<Name>() + size_of::<CacheEntry>() + 64;

/// Largest share of a shard that one entry may take, in hundredths.
const GREATEST: u64 = 97;

/// See the module.
pub struct LocalCache {
    entries: Cache<Name, CacheEntry, Bytes, Digests, Evictions>,
    max_entry_size: usize,
    /// The eviction pressure of each shard.
    pressure: Box<[Pressure]>,
    doorkeeper: Doorkeeper,
    evictions: Arc<AtomicU64>,
}

impl LocalCache {
    /// Creates a cache of at most `byte_size` bytes, and at least [`MIN_SIZE`].
    #[expect(clippy::expect_used, reason = "all options are set")]
    pub fn new(byte_size: u64) -> Self {
        let byte_size = byte_size.max(MIN_SIZE);
        let shards = (byte_size / MIN_SHARD).clamp(1, MAX_SHARDS);
        // Determines how many evicted keys are remembered.
        let items = (byte_size / 16_384).clamp(32 * shards, 65_536);
        let doorkeeper = Doorkeeper::new(byte_size);
        let options = OptionsBuilder::new()
            .weight_capacity(byte_size - doorkeeper.byte_size())
            .estimated_items_capacity(items as usize)
            .hot_allocation(GREATEST as f64 / 100.0)
            .shards(1 << shards.ilog2())
            .build()
            .expect("both capacities are given");
        let evictions = Arc::<AtomicU64>::default();
        let lifecycle = Evictions(Arc::clone(&evictions));
        let entries = Cache::with_options(options, Bytes, Digests, lifecycle);
        let pressure = (0..entries.num_shards()).map(|_| Pressure::default()).collect();
        let greatest = usize::try_from(entries.shard_capacity() / 100 * GREATEST).unwrap_or(usize::MAX);
        let max_entry_size = greatest.saturating_sub(PER_ENTRY);
        Self { entries, max_entry_size, pressure, doorkeeper, evictions }
    }
}

/// A compact key: half of the digest, as distinctive as a random number of 128 bits, and the load number modulo 2^32.
/// Keys whose loads have equal numbers still differ in their digests.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    digest: [u32; 4],
    load: u32,
}

impl Name {
    fn of(key: &CacheKey) -> Self {
        let (words, _) = key.digest().as_chunks::<4>();
        let digest = std::array::from_fn(|place| u32::from_le_bytes(words[place]));
        Self { digest, load: Self::load(key.load()) }
    }

    fn load(number: u64) -> u32 {
        number as u32
    }
}

/// Part of the digest is enough: it is as good as random.
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.digest[0]) | u64::from(self.digest[1]) << 32);
    }
}

impl ResponseCache for LocalCache {
    fn scope(&self) -> CacheScope {
        CacheScope::Server
    }

    fn lookup(&self, key: &CacheKey) -> CacheLookup {
        CacheLookup::Ready(self.entries.get(&Name::of(key)))
    }

    fn admits(&self, key: &CacheKey) -> bool {
        !self.pressure[self.entries.shard_index(&Name::of(key))].is_high() || self.doorkeeper.knows(key)
    }

    fn insert(&self, key: &CacheKey, entry: CacheEntry) {
        let mut evicted = EvictedEntries::default();
        let name = Name::of(key);
        self.entries.insert_with_lifecycle(name, entry, &mut evicted);
        self.pressure[self.entries.shard_index(&name)].inserted(evicted.made_room);
    }

    fn max_entry_size(&self) -> usize {
        self.max_entry_size
    }

    fn forget(&self, load: u64) {
        self.entries.retain(|name, _| name.load != Name::load(load));
        self.pressure.iter().for_each(Pressure::clear);
    }

    fn usage(&self) -> Option<CacheUsage> {
        Some(CacheUsage {
            entries: self.entries.len() as u64,
            evictions: self.evictions.load(Relaxed),
            utilization: self.entries.weight() as f64 / self.entries.capacity() as f64,
        })
    }
}

/// Recent eviction rate: incremented by an insert that evicted, decremented by one that did not.
#[derive(Default)]
struct Pressure(AtomicU32);

impl Pressure {
    /// The level from which pressure is high.
    const HIGH: u32 = 32;

    fn is_high(&self) -> bool {
        self.0.load(Relaxed) >= Self::HIGH
    }

    fn inserted(&self, made_room: bool) {
        let before = self.0.load(Relaxed);
        let now = if made_room { (before + 1).min(2 * Self::HIGH) } else { before.saturating_sub(1) };
        // Other threads read it constantly, so it is written only on change. A lost update is harmless.
        if now != before {
            self.0.store(now, Relaxed);
        }
    }

    fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Weighs entries.
#[derive(Clone)]
struct Bytes;

impl Weighter<Name, CacheEntry> for Bytes {
    fn weight(&self, _: &Name, entry: &CacheEntry) -> u64 {
        (entry.byte_size() + PER_ENTRY) as u64
    }
}

/// Counts evictions, and drops evicted entries after the shard is unlocked.
#[derive(Clone)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<Name, CacheEntry> for Evictions {
    type RequestState = EvictedEntries;

    fn before_evict(&self, evicted: &mut EvictedEntries, _: &Name, _: &mut CacheEntry) {
        self.0.fetch_add(1, Relaxed);
        evicted.made_room = true;
    }

    fn on_evict(&self, evicted: &mut EvictedEntries, _: Name, entry: CacheEntry) {
        evicted.entries.push(entry);
    }
}

/// The effect of an insertion on other entries.
#[derive(Default)]
struct EvictedEntries {
    /// Whether an entry was evicted, not just replaced.
    made_room: bool,
    /// Entries to drop.
    entries: SmallVec<[CacheEntry; 4]>,
}

/// Keys are already digests.
#[derive(Clone)]
struct Digests;

impl BuildHasher for Digests {
    type Hasher = Digest;

    fn build_hasher(&self) -> Digest {
        Digest(0)
    }
}

struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conformance::{self, OldEntries, entry, key};

    fn found(cache: &LocalCache, number: u64) -> bool {
        matches!(cache.lookup(&key(1, number)), CacheLookup::Ready(Some(_)))
    }

    #[test]
    fn local_cache_passes_conformance() {
        conformance::check(OldEntries::Go, || LocalCache::new(1 << 20));
        conformance::check(OldEntries::Go, || LocalCache::new(1 << 30));
    }

    #[test]
    fn forget_removes_the_entries_of_a_load() {
        let cache = LocalCache::new(1 << 20);
        for load in 1..4 {
            for number in 0..10 {
                cache.insert(&key(load, number), entry(number as u8, 10));
            }
        }
        cache.forget(2);
        assert_eq!(cache.usage().unwrap().entries, 20);
        for (load, kept) in [(1, true), (2, false), (3, true)] {
            let found = cache.lookup(&key(load, 7));
            assert_eq!(matches!(found, CacheLookup::Ready(Some(_))), kept, "{load}");
        }
    }

    #[test]
    fn scan_keeps_entries_in_repeated_use() {
        let cache = LocalCache::new(1 << 20);
        for number in 0..100 {
            cache.insert(&key(1, number), entry(number as u8, 4000));
        }
        for _ in 0..3 {
            assert!((0..100).all(|number| found(&cache, number)));
        }
        // Four times the capacity, each key looked up once.
        for number in 1000..2000 {
            assert!(!found(&cache, number));
            cache.insert(&key(1, number), entry(1, 4000));
        }
        let kept = (0..100).filter(|number| found(&cache, *number)).count();
        assert!(kept >= 90, "{kept} of 100 are left");
        assert!(cache.usage().unwrap().evictions > 700);
    }

    /// Looks up an answer as the server does, and stores it if the cache admits it. Returns whether it was found.
    fn ask(cache: &LocalCache, number: u64, length: usize) -> bool {
        let (key, found) = (key(1, number), found(cache, number));
        if !found && cache.admits(&key) {
            cache.insert(&key, entry(number as u8, length));
        }
        found
    }

    #[test]
    fn full_cache_stores_on_second_lookup() {
        for size in [256 << 10, 1 << 20, 40 << 20] {
            let cache = LocalCache::new(size);
            let length = (size / 200) as usize;
            // While the cache has room, the first lookup suffices.
            for number in 0..100 {
                assert!(!ask(&cache, number, length));
                assert!(ask(&cache, number, length), "{size}: {number}");
            }
            let mut number = 100;
            while !cache.pressure.iter().all(Pressure::is_high) {
                ask(&cache, number, length);
                number += 1;
            }
            let (entries, evictions) = (cache.usage().unwrap().entries, cache.evictions.load(Relaxed));
            assert!(entries > 120, "{size}: {entries}");
            for number in 10_000..20_000 {
                assert!(!ask(&cache, number, length));
            }
            assert_eq!(cache.evictions.load(Relaxed), evictions, "{size}");
            for number in 20_000..20_010 {
                let asked = [(); 3].map(|()| ask(&cache, number, length));
                assert_eq!(asked, [false, false, true], "{size}");
            }
            // Removing a model's entries makes room again.
            cache.forget(1);
            assert_eq!([(); 2].map(|()| ask(&cache, 30_000, length)), [false, true], "{size}");
        }
    }

    #[test]
    fn first_inserts_beyond_capacity_are_stored() {
        let cache = LocalCache::new(1 << 20);
        let mut number = 0;
        while cache.evictions.load(Relaxed) < 20 {
            assert!(!ask(&cache, number, 10_000));
            assert!(ask(&cache, number, 10_000), "{number}");
            number += 1;
        }
    }

    #[test]
    fn cache_fills_with_entries_of_different_sizes() {
        let cache = LocalCache::new(1 << 20);
        for number in 0..20_000 {
            ask(&cache, number, (number * 7919 % 9000) as usize);
        }
        let evictions = cache.evictions.load(Relaxed);
        assert!(evictions < 1000, "{evictions}");
    }

    #[test]
    fn replacing_an_entry_does_not_fill_the_cache() {
        let cache = LocalCache::new(1 << 20);
        for value in 0..10 {
            cache.insert(&key(1, 1), entry(value, 1000));
        }
        assert_eq!(cache.usage().unwrap().evictions, 0);
        assert!((2..100).all(|number| cache.admits(&key(1, number))));
    }

    #[test]
    fn largest_entry_fits_and_a_larger_one_is_refused() {
        for size in [1024, 4096, 1 << 20, 100 << 20] {
            let cache = LocalCache::new(size);
            let length = cache.max_entry_size() / 2;
            let greatest = cache.max_entry_size() - (entry(0, length).byte_size() - length);
            cache.insert(&key(1, 1), entry(1, greatest));
            assert!(found(&cache, 1), "{greatest} of {size}");
            cache.insert(&key(1, 2), entry(2, greatest + 200));
            assert!(!found(&cache, 2), "{size}");
        }
    }

    #[test]
    fn smallest_caches_store_nothing_or_what_fits() {
        for size in [MIN_SIZE, 200, 256, 400, 600, 1000] {
            let cache = LocalCache::new(size);
            for (number, length) in [0, 1, 8, 64, 500, 10_000].into_iter().enumerate() {
                let (number, entry) = (number as u64, entry(7, length));
                let fits = entry.byte_size() as u64 <= size;
                cache.insert(&key(1, number), entry);
                assert!(fits || !found(&cache, number), "{length} of {size}");
                assert!(cache.usage().unwrap().utilization <= 1.0, "{length} of {size}");
            }
        }
    }

    proptest! {
        /// Whatever is inserted, the limit holds, and a lookup finds the latest value.
        #[test]
        fn cache_stays_within_its_size(
            size in MIN_SIZE..200_000,
            inserted in prop::collection::vec((0..40_u64, 0..20_000_usize, any::<u8>()), 1..200)
        ) {
            let cache = LocalCache::new(size);
            let mut last = std::collections::HashMap::new();
            for (number, length, value) in inserted {
                cache.insert(&key(1, number), entry(value, length));
                last.insert(number, (value, length));
                let mut bytes = 0;
                for (number, (value, length)) in &last {
                    if let CacheLookup::Ready(Some(found)) = cache.lookup(&key(1, *number)) {
                        let contents = found.response().outputs[0].contiguous().unwrap().into_owned();
                        prop_assert_eq!(contents, vec![*value; *length]);
                        bytes += found.byte_size() as u64;
                    }
                }
                prop_assert!(bytes <= size && cache.usage().unwrap().utilization <= 1.0);
            }
        }
    }
}

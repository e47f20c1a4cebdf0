//! Counters of a cache, over all models. Each thread counts in one of several sets, so that threads rarely share memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Number of sets. Beyond this many threads, sets are shared.
const SETS: usize = 16;

/// Activity of a cache so far. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Lookups that found an entry.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Cumulative duration of lookups.
    pub lookup_ns: u64,
    /// Cumulative duration of insertions.
    pub insertion_ns: u64,
}

#[derive(Default)]
pub(crate) struct Counters([Set; SETS]);

#[derive(Default)]
#[repr(align(128))]
struct Set {
    hits: AtomicU64,
    misses: AtomicU64,
    lookup_ns: AtomicU64,
    insertion_ns: AtomicU64,
}

impl Counters {
    /// Counts a lookup.
    pub(crate) fn looked_up(&self, hit: bool, took: Duration) {
        let set = self.own();
        if hit { &set.hits } else { &set.misses }.fetch_add(1, Relaxed);
        set.lookup_ns.fetch_add(nanos(took), Relaxed);
    }

    /// Counts an insertion.
    pub(crate) fn inserted(&self, took: Duration) {
        self.own().insertion_ns.fetch_add(nanos(took), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> CacheCounts {
        let sum = |of: fn(&Set) -> &AtomicU64| self.0.iter().map(|set| of(set).load(Relaxed)).sum();
        CacheCounts {
            hits: sum(|set| &set.hits),
            misses: sum(|set| &set.misses),
            lookup_ns: sum(|set| &set.lookup_ns),
            insertion_ns: sum(|set| &set.insertion_ns),
        }
    }

    fn own(&self) -> &Set {
        thread_local! {
            static SET: Cell<Option<usize>> = const { Cell::new(None) };
        }
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let set = SET.get().unwrap_or_else(|| {
            let set = THREADS.fetch_add(1, Relaxed) % SETS;
            SET.set(Some(set));
            set
        });
        &self.0[set]
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

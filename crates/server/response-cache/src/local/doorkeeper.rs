//! Remembers recently looked-up keys, approximately: a full cache stores an answer only if its key was looked up
//! before.
//!
//! A table of slots; a key's digest selects one. A slot holds the mark of the last key looked up there. So a key is
//! forgotten after about as many lookups of other keys as there are slots, and a lookup reads and writes one word,
//! without a lock. One key in four thousand million is mistaken for another: its answer is stored early.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::key::CacheKey;

/// A cache has one slot per this many bytes: about as many slots as small entries fit in.
const BYTES_PER_PLACE: u64 = 512;

/// The most slots. In caches larger than this, keys are forgotten sooner than entries.
const MAX_PLACES: u64 = 1 << 22;

/// See the module.
pub(super) struct Doorkeeper(Box<[AtomicU32]>);

impl Doorkeeper {
    /// Creates the table for a cache of this size.
    pub(super) fn new(byte_size: u64) -> Self {
        let places = 1 << (byte_size / BYTES_PER_PLACE).clamp(1, MAX_PLACES).ilog2();
        Self((0..places).map(|_| AtomicU32::new(0)).collect())
    }

    /// Size of the table in memory.
    pub(super) fn byte_size(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }

    /// Whether a key was looked up recently. Records the lookup.
    pub(super) fn knows(&self, key: &CacheKey) -> bool {
        // The shard and the slot in its table are chosen by other parts of the digest.
        let [.., a, b, c, d, e, f, g, h] = *key.digest();
        let (place, mark) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        // The number of slots is a power of two.
        let place = &self.0[place as usize & (self.0.len() - 1)];
        let knows = place.load(Relaxed) == mark;
        if !knows {
            place.store(mark, Relaxed);
        }
        knows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::key;

    #[test]
    fn key_is_known_from_its_second_lookup() {
        let doorkeeper = Doorkeeper::new(1 << 20);
        for number in 0..100 {
            let key = key(1, number);
            assert_eq!(
                [doorkeeper.knows(&key), doorkeeper.knows(&key), doorkeeper.knows(&key)],
                [false, true, true]
            );
        }
    }

    #[test]
    fn doorkeeper_is_small_and_remembers_a_cacheful_of_keys() {
        for byte_size in [1024, 5000, 1 << 30, 1 << 40] {
            assert!(Doorkeeper::new(byte_size).byte_size() * 100 < byte_size, "{byte_size}");
        }
        for byte_size in [1 << 20, 7_000_000] {
            let doorkeeper = Doorkeeper::new(byte_size);
            let places = doorkeeper.byte_size() / 4;
            assert!(places * 1024 >= byte_size);
            // With a quarter as many keys as slots nearly all remain; with four times as many, the latest.
            for (asked, least, most) in [(places / 4, 0.8, 1.0), (places * 4, 0.15, 0.35)] {
                (0..asked).for_each(|number| _ = doorkeeper.knows(&key(asked, number)));
                let known = (0..asked).rev().filter(|number| doorkeeper.knows(&key(asked, *number))).count();
                let share = known as f64 / asked as f64;
                assert!((least..=most).contains(&share), "{byte_size}: {share} of {asked}");
            }
        }
    }
}

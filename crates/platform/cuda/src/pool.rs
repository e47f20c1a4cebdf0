//! A block of memory whose parts are lent and returned.
//!
//! Tracks offsets and does not access the memory itself. Best fit; returned parts merge with their free neighbours.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;

/// Alignment of parts, equal to the driver's.
const ALIGNMENT: u64 = 256;

/// The usage of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes in use.
    pub used: u64,
    /// Total bytes.
    pub total: u64,
}

/// A pool of memory.
pub(crate) struct Pool<M> {
    memory: M,
    total: u64,
    parts: Mutex<Parts>,
}

struct Parts {
    free: RangeAllocator<u64>,
    /// Allocations by address: their range, and the requested size.
    lent: HashMap<u64, (Range<u64>, u64)>,
}

impl<M> Pool<M> {
    /// A pool of `total` bytes, rounded down to a multiple of [`ALIGNMENT`].
    pub(crate) fn new(memory: M, total: u64) -> Self {
        let free = RangeAllocator::new(0..total / ALIGNMENT * ALIGNMENT);
        Self { memory, total, parts: Mutex::new(Parts { free, lent: HashMap::new() }) }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the pool.
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Lends a part and returns its offset; `None` if no free range is large enough. Empty parts have distinct
    /// offsets, too.
    pub(crate) fn lend(&self, byte_size: u64) -> Option<u64> {
        let length = byte_size.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let mut parts = self.parts();
        let range = parts.free.allocate_range(length).ok()?;
        let start = range.start;
        parts.lent.insert(start, (range, byte_size));
        Some(start)
    }

    /// Takes a part back. Returns false unless a lent part starts at this offset.
    pub(crate) fn take_back(&self, start: u64) -> bool {
        let mut parts = self.parts();
        let Some((range, _)) = parts.lent.remove(&start) else { return false };
        parts.free.free_range(range);
        true
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        let used = self.parts().lent.values().map(|(_, requested)| requested).sum();
        PoolUsage { used, total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(parts: u64) -> Pool<()> {
        Pool::new((), parts * ALIGNMENT)
    }

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let pool = pool(8);
        let sizes = [1, 256, 257, 0, 700];
        let mut parts: Vec<_> = sizes.iter().map(|size| (pool.lend(*size).unwrap(), *size)).collect();
        parts.sort_unstable();
        assert!(parts.iter().all(|(start, _)| start % ALIGNMENT == 0), "{parts:?}");
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1.max(1) <= pair[1].0), "{parts:?}");
        assert_eq!(pool.lend(1), None);
        assert_eq!(pool.usage(), PoolUsage { used: 1 + 256 + 257 + 700, total: 8 * ALIGNMENT });
    }

    #[test]
    fn returned_parts_merge_into_one_range() {
        let pool = pool(16);
        let parts: Vec<_> = (0..16).map(|_| pool.lend(ALIGNMENT).unwrap()).collect();
        assert_eq!(pool.lend(1), None);
        // Every second one: half is free, but no two adjacent parts.
        for part in parts.iter().step_by(2) {
            assert!(pool.take_back(*part));
        }
        assert_eq!(pool.lend(2 * ALIGNMENT), None);
        assert!(pool.lend(ALIGNMENT).is_some_and(|start| pool.take_back(start)));
        // The others, in another order: all free ranges merge into one.
        for part in parts.iter().skip(1).step_by(2).rev() {
            assert!(pool.take_back(*part));
        }
        assert_eq!(pool.usage().used, 0);
        assert_eq!(pool.lend(16 * ALIGNMENT), Some(0));
    }

    #[test]
    fn smallest_fitting_range_is_lent() {
        let pool = pool(10);
        let large = pool.lend(4 * ALIGNMENT).unwrap();
        let _between = pool.lend(ALIGNMENT).unwrap();
        let small = pool.lend(2 * ALIGNMENT).unwrap();
        let _after = pool.lend(3 * ALIGNMENT).unwrap();
        assert!(pool.take_back(large) && pool.take_back(small));
        assert_eq!(pool.lend(2 * ALIGNMENT), Some(small));
        assert_eq!(pool.lend(4 * ALIGNMENT), Some(large));
    }

    #[test]
    fn returning_an_unlent_part_is_refused() {
        let pool = pool(4);
        let part = pool.lend(1).unwrap();
        assert!(!pool.take_back(part + 1) && !pool.take_back(part + ALIGNMENT));
        assert!(pool.take_back(part));
        assert!(!pool.take_back(part));
    }

    #[test]
    fn request_larger_than_the_pool_is_refused() {
        let pool = pool(4);
        assert_eq!((pool.lend(u64::MAX), pool.lend(4 * ALIGNMENT + 1)), (None, None));
        let odd = Pool::new((), ALIGNMENT + 1);
        assert_eq!(odd.usage().total, ALIGNMENT + 1);
        assert!(odd.lend(ALIGNMENT).is_some());
        assert_eq!(Pool::new((), ALIGNMENT - 1).lend(1), None);
    }

    #[test]
    fn long_use_in_any_order_leaks_nothing() {
        let pool = pool(64);
        let mut lent: Vec<(u64, u64)> = Vec::new();
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u64::from(state >> 16)
        };
        for _ in 0..10_000 {
            if next() % 3 == 0 && !lent.is_empty() {
                let (start, _) = lent.swap_remove(usize::try_from(next()).unwrap() % lent.len());
                assert!(pool.take_back(start));
            } else {
                let size = next() % (6 * ALIGNMENT);
                let Some(start) = pool.lend(size) else { continue };
                let end = start + size.max(1);
                assert!(end <= 64 * ALIGNMENT);
                assert!(lent.iter().all(|(other, length)| end <= *other || other + length.max(&1) <= start));
                lent.push((start, size));
            }
            assert_eq!(pool.usage().used, lent.iter().map(|(_, size)| size).sum::<u64>());
        }
        lent.into_iter().for_each(|(start, _)| assert!(pool.take_back(start)));
        assert_eq!(pool.lend(64 * ALIGNMENT), Some(0));
    }
}

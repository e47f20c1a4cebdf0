//! Budgets of requests or bytes in use, lent as weighted permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A capacity that is lent in parts. Its clones share it.
///
/// Nothing waits here: a part is there or it is not.
#[derive(Clone, Debug)]
pub struct Budget {
    capacity: usize,
    used: Arc<AtomicUsize>,
}

/// A part of a budget. Dropped, it is given back.
#[derive(Debug)]
pub struct Permit {
    used: Arc<AtomicUsize>,
    weight: usize,
}

impl Budget {
    /// A budget of that capacity, all of it free.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, used: Arc::default() }
    }

    /// How much may be in use at a time.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// A part of that weight; `None` if less than that is free.
    pub fn try_acquire(&self, weight: usize) -> Option<Permit> {
        self.take(weight).then(|| Permit { used: Arc::clone(&self.used), weight })
    }

    /// Takes that much if it is free.
    fn take(&self, weight: usize) -> bool {
        let room = |used: usize| used.checked_add(weight).filter(|used| *used <= self.capacity);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// A part of that weight, for what is there already: more than the capacity may be in use afterwards.
    pub fn acquire_anyway(&self, weight: usize) -> Permit {
        // What is in use lies in memory, so the sum does not overflow.
        self.used.fetch_add(weight, Ordering::Relaxed);
        Permit { used: Arc::clone(&self.used), weight }
    }

    /// Makes a permit of this budget heavier by that much; false, and unchanged, if less than that is free.
    pub fn try_grow(&self, permit: &mut Permit, weight: usize) -> bool {
        let is_free = self.take(weight);
        if is_free {
            permit.weight += weight;
        }
        is_free
    }

    /// Whether three quarters or more are in use.
    pub fn is_mostly_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.capacity / 4 * 3
    }

    /// Whether nothing is free.
    pub fn is_exhausted(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.capacity
    }

    /// Whether all of it is free.
    pub fn is_unused(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}

impl Permit {
    /// How much it holds.
    pub fn weight(&self) -> usize {
        self.weight
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.used.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_that_is_dropped_makes_room_for_another() {
        let budget = Budget::new(2);
        let first = budget.try_acquire(1).unwrap();
        let _second = budget.try_acquire(1).unwrap();
        assert!(budget.try_acquire(1).is_none() && budget.is_exhausted());
        drop(first);
        let _third = budget.try_acquire(1).unwrap();
        assert!(budget.try_acquire(1).is_none());
    }

    #[test]
    fn permits_weigh_what_they_were_asked_for() {
        let budget = Budget::new(10);
        let large = budget.try_acquire(7).unwrap();
        assert!(budget.try_acquire(4).is_none());
        let small = budget.clone().try_acquire(3).unwrap();
        assert!(budget.is_exhausted());
        drop(large);
        assert!(budget.try_acquire(8).is_none() && budget.try_acquire(7).is_some());
        drop(small);
        let mut grown = budget.try_acquire(1).unwrap();
        assert!(!budget.try_grow(&mut grown, 10) && budget.try_grow(&mut grown, 9));
        assert!(budget.is_exhausted() && budget.is_mostly_used() && grown.weight() == 10);
        drop(grown);
        assert!(budget.is_unused() && budget.try_acquire(11).is_none());
        assert!(budget.try_acquire(usize::MAX).is_none(), "a weight that overflows the sum is refused");
    }

    #[test]
    fn acquire_anyway_may_exceed_the_capacity() {
        let budget = Budget::new(2);
        let over = budget.acquire_anyway(5);
        assert!(budget.is_exhausted() && budget.try_acquire(0).is_none());
        drop(over);
        assert!(!budget.is_exhausted() && budget.is_unused());
    }
}

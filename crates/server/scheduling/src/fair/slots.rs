//! Items that wait, in one piece of memory, each with a link to the next and the previous one of its flow.
//!
//! Slots of items that left are used again, so a queue that is not empty needs no memory for each item that comes and goes.

/// No slot.
pub const NONE: usize = usize::MAX;

/// Memory for this many items is kept in any case.
const MIN_ROOM: usize = 1024;

/// Slots with items, and free ones.
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// The first free slot, which links to the next one.
    free: usize,
}

/// An item, linked to its neighbours in the flow.
pub struct Slot<T> {
    /// The item's number.
    pub number: u64,
    /// The item's cost, in the clock's units.
    pub cost: u64,
    /// The index of its flow's line.
    pub line: usize,
    /// The slot of the next item of the flow.
    pub next: usize,
    /// The slot of the previous item of the flow.
    pub previous: usize,
    /// The item; `None` in a free slot.
    item: Option<T>,
}

impl<T> Slot<T> {
    /// A slot that links to no other one.
    pub fn new(number: u64, cost: u64, line: usize, item: T) -> Self {
        Self { number, cost, line, next: NONE, previous: NONE, item: Some(item) }
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }
}

impl<T> Slots<T> {
    /// Stores an item, and returns its slot.
    pub fn insert(&mut self, slot: Slot<T>) -> usize {
        let index = self.free;
        if index == NONE {
            self.slots.push(slot);
            return self.slots.len() - 1;
        }
        self.free = self.slots[index].next;
        self.slots[index] = slot;
        index
    }

    /// Takes an item out. Its slot must not be free.
    pub fn take(&mut self, index: usize) -> Option<T> {
        let slot = &mut self.slots[index];
        slot.next = self.free;
        self.free = index;
        slot.item.take()
    }

    /// The slot at this index, with its item; `None` if it is free or holds an item of another number.
    pub fn get(&self, index: usize, number: u64) -> Option<&Slot<T>> {
        self.slots.get(index).filter(|slot| slot.number == number && slot.item.is_some())
    }

    /// The item in a slot.
    pub fn item(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.item.as_ref()
    }

    /// Frees all slots, and memory that was not needed since the last time.
    pub fn clear(&mut self) {
        let (used, room) = (self.slots.len(), self.slots.capacity());
        self.slots.clear();
        self.free = NONE;
        if room > MIN_ROOM && used < room / 4 {
            self.slots.shrink_to((room / 2).max(MIN_ROOM));
        }
    }
}

impl<T> std::ops::Index<usize> for Slots<T> {
    type Output = Slot<T>;

    fn index(&self, index: usize) -> &Slot<T> {
        &self.slots[index]
    }
}

impl<T> std::ops::IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, index: usize) -> &mut Slot<T> {
        &mut self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_unneeded_memory_is_freed() {
        let mut slots = Slots::default();
        for number in 0..100_000 {
            assert_eq!(slots.insert(Slot::new(number, 1, 0, number)), number as usize);
        }
        assert_eq!((slots.take(7), slots.take(70)), (Some(7), Some(70)));
        assert_eq!((slots.item(7), slots.get(7, 7).is_none(), slots.get(8, 9).is_none()), (None, true, true));
        assert_eq!(slots.insert(Slot::new(100_000, 1, 0, 5)), 70);
        assert!(slots.get(70, 70).is_none());
        assert_eq!(slots.get(70, 100_000).map(|slot| slot.item), Some(Some(5)));
        assert_eq!(slots.insert(Slot::new(100_001, 1, 0, 6)), 7);
        let room = slots.slots.capacity();
        slots.clear();
        // The next flood may be as large.
        assert_eq!(slots.slots.capacity(), room);
        for _ in 0..20 {
            assert_eq!(slots.insert(Slot::new(0, 1, 0, 0)), 0);
            slots.clear();
        }
        assert!(slots.slots.capacity() <= 2 * MIN_ROOM, "{}", slots.slots.capacity());
    }
}

//! Entries by the turns in which they leave.
//!
//! Where flows have equal weights and items equal costs, entries come nearly in the order of their turns: an item that leaves makes
//! room for its flow's next item, whose turn is the last of all flows. Entries in order go to a ring, in constant time, and only entries
//! out of order to a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque, vec_deque};

/// When an item leaves: its start, and among equal starts its number. No two items have the same.
pub type Turn = u128;

/// The turn of an item with this start and number.
pub fn turn(start: u64, number: u64) -> Turn {
    u128::from(start) << 64 | u128::from(number)
}

/// The start of an item with this turn.
pub fn start_of(turn: Turn) -> u64 {
    (turn >> 64) as u64
}

/// Entries with their turns.
pub struct Turns<E> {
    /// Ascending.
    ring: VecDeque<(Turn, E)>,
    heap: BinaryHeap<Reverse<(Turn, E)>>,
}

impl<E: Ord> Default for Turns<E> {
    fn default() -> Self {
        Self { ring: VecDeque::new(), heap: BinaryHeap::new() }
    }
}

impl<E: Copy + Ord> Turns<E> {
    /// Adds an entry.
    pub fn push(&mut self, turn: Turn, entry: E) {
        match self.ring.back() {
            Some((last, _)) if *last > turn => self.heap.push(Reverse((turn, entry))),
            _ => self.ring.push_back((turn, entry)),
        }
    }

    /// The entry that leaves first.
    pub fn first(&self) -> Option<(Turn, E)> {
        let first = self.ring.front().copied();
        match self.heap.peek() {
            Some(Reverse(other)) if first.is_none_or(|first| other.0 < first.0) => Some(*other),
            _ => first,
        }
    }

    /// Takes the entry that leaves first.
    pub fn pop(&mut self) -> Option<(Turn, E)> {
        if !self.heap.is_empty() && self.is_first_in_heap() {
            return self.heap.pop().map(|Reverse(first)| first);
        }
        self.ring.pop_front()
    }

    /// All entries: the ring in order, then the heap in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Turn, E)> {
        self.ring.iter().copied().chain(self.heap.iter().map(|Reverse(entry)| *entry))
    }

    /// The entries of the ring, in their order.
    pub fn ring(&self) -> vec_deque::Iter<'_, (Turn, E)> {
        self.ring.iter()
    }

    /// The entry at this place of the heap: 0 has the first of those that are not in the ring, and the places `2 * place + 1` and
    /// `2 * place + 2` have later ones.
    pub fn in_heap(&self, place: usize) -> Option<(Turn, E)> {
        self.heap.as_slice().get(place).map(|Reverse(entry)| *entry)
    }

    /// Removes the entries that do not satisfy the condition.
    pub fn retain(&mut self, condition: impl Fn(Turn, E) -> bool) {
        self.ring.retain(|(turn, entry)| condition(*turn, *entry));
        self.heap.retain(|Reverse((turn, entry))| condition(*turn, *entry));
    }

    /// Removes all entries, and keeps room for at most this number.
    pub fn clear(&mut self, room: usize) {
        self.ring.clear();
        self.ring.shrink_to(room);
        self.heap.clear();
        self.heap.shrink_to(room);
    }

    fn is_first_in_heap(&self) -> bool {
        match (self.heap.peek(), self.ring.front()) {
            (Some(Reverse(heap)), Some(ring)) => heap.0 < ring.0,
            (heap, _) => heap.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_leave_by_their_turns(numbers in vec(0..20_u64, 0..200), pops in vec(any::<bool>(), 200)) {
            let (mut turns, mut plain) = (Turns::default(), Vec::new());
            for (number, (start, pops)) in numbers.into_iter().zip(pops).enumerate() {
                let turn = turn(start, number as u64);
                turns.push(turn, number);
                plain.push((turn, number));
                plain.sort_unstable();
                prop_assert_eq!(turns.first(), plain.first().copied());
                if pops {
                    prop_assert_eq!(turns.pop(), Some(plain.remove(0)));
                }
                let mut all: Vec<_> = turns.iter().collect();
                all.sort_unstable();
                prop_assert_eq!(&all, &plain);
            }
            turns.retain(|_, number| number % 2 == 0);
            plain.retain(|(_, number)| number % 2 == 0);
            prop_assert_eq!(std::iter::from_fn(|| turns.pop()).collect::<Vec<_>>(), plain);
        }
    }
}

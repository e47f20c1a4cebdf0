//! A first-in first-out queue that also supports removal from the middle.

use std::collections::VecDeque;

/// Items in the order they came. Each has a number, greater than those before it, by which it can be taken out.
///
/// An item taken from the middle leaves a gap. Gaps are swept out before they outnumber the items, so that taking
/// one out costs as much as a binary search.
pub struct Tickets<T> {
    slots: VecDeque<(u64, Option<T>)>,
    gaps: usize,
}

/// This many gaps are tolerated, however few items there are.
const GAPS: usize = 16;

impl<T> Default for Tickets<T> {
    fn default() -> Self {
        Self { slots: VecDeque::new(), gaps: 0 }
    }
}

impl<T> Tickets<T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.gaps
    }

    /// Appends an item. Its number must be greater than every earlier one.
    pub fn push(&mut self, number: u64, item: T) {
        debug_assert!(self.slots.back().is_none_or(|(last, _)| *last < number));
        self.slots.push_back((number, Some(item)));
    }

    /// The first item and its number.
    pub fn first(&self) -> Option<(u64, &T)> {
        let (number, item) = self.slots.front()?;
        // The first slot is never a gap.
        Some((*number, item.as_ref()?))
    }

    /// Takes the first item.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        let (number, item) = self.slots.pop_front()?;
        self.trim();
        // The first slot is never a gap.
        item.map(|item| (number, item))
    }

    /// Takes out the item of that number, wherever it stands.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let index = self.slots.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let item = self.slots[index].1.take()?;
        self.gaps += 1;
        self.trim();
        if self.gaps > GAPS + self.len() {
            self.slots.retain(|(_, item)| item.is_some());
            self.gaps = 0;
        }
        Some(item)
    }

    /// The items with their numbers, in order, from that number on.
    pub fn iter_from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let start = self.slots.partition_point(|(other, _)| *other < number);
        self.slots.range(start..).filter_map(|(number, item)| Some((*number, item.as_ref()?)))
    }

    /// The item of that number.
    pub fn get(&self, number: u64) -> Option<&T> {
        let index = self.slots.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.slots[index].1.as_ref()
    }

    /// Drops the gaps at the front.
    fn trim(&mut self) {
        while let Some((_, None)) = self.slots.front() {
            self.slots.pop_front();
            self.gaps -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(numbers: impl IntoIterator<Item = u64>) -> Tickets<u64> {
        let mut queue = Tickets::default();
        numbers.into_iter().for_each(|number| queue.push(number, number * 10));
        queue
    }

    #[test]
    fn items_leave_in_order_and_from_the_middle() {
        let mut queue = queue([1, 2, 5, 7]);
        assert_eq!(queue.remove(5), Some(50));
        assert_eq!((queue.remove(5), queue.remove(3), queue.remove(9)), (None, None, None));
        assert_eq!((queue.len(), queue.get(7), queue.get(5)), (3, Some(&70), None));
        assert_eq!(queue.iter_from(2).map(|(number, _)| number).collect::<Vec<_>>(), [2, 7]);
        assert_eq!(queue.first(), Some((1, &10)));
        assert_eq!(queue.pop(), Some((1, 10)));
        assert_eq!(queue.remove(2), Some(20));
        assert_eq!(queue.first(), Some((7, &70)));
        assert_eq!((queue.pop(), queue.pop(), queue.len() == 0), (Some((7, 70)), None, true));
    }

    #[test]
    fn gaps_do_not_pile_up_behind_an_item_that_stays() {
        let mut queue = queue([0]);
        for number in 1..10_000 {
            queue.push(number, number);
            assert!(queue.remove(number).is_some());
            assert!(queue.slots.len() <= 2 * queue.len() + GAPS + 2, "{}", queue.slots.len());
        }
        assert_eq!(queue.pop(), Some((0, 0)));
        assert_eq!((queue.slots.len(), queue.gaps), (0, 0));
    }
}

//! Walks a queue in the order in which its items leave, without a change of it.

use std::collections::vec_deque;
use std::iter::Peekable;

use super::FairQueue;
use super::slots::{NONE, Slot};
use super::turns::{Turn, Turns, start_of, turn};

/// A walk leaves memory for this many entries to the next one.
const MAX_ROOM: usize = 256;

/// The items of a queue in the order in which they leave, each with its slot and its number.
pub struct InOrder<'a, T> {
    queue: &'a FairQueue<T>,
    /// The slot of the next item, if items of one flow wait.
    alone: usize,
    /// Otherwise, first items of flows that are in the ring.
    heads: Peekable<vec_deque::Iter<'a, (Turn, usize)>>,
    /// Other items that may be next, by their slots. First items of flows that are in the heap have their places there, and come in
    /// when those before them in the heap are out.
    later: Turns<(usize, usize)>,
}

impl<'a, T> InOrder<'a, T> {
    /// The items of a flow, from that slot on.
    pub(super) fn of_one(queue: &'a FairQueue<T>, alone: usize) -> Self {
        Self { queue, alone, heads: vec_deque::Iter::default().peekable(), later: Turns::default() }
    }

    /// The items of all flows, of which several have some.
    pub(super) fn of_flows(queue: &'a FairQueue<T>) -> Self {
        let (heads, later) = (queue.heads.ring().peekable(), queue.walk.take());
        let mut items = Self { queue, alone: NONE, heads, later };
        items.come_in(0);
        items
    }

    /// Adds the entry at this place in the heap of heads.
    fn come_in(&mut self, place: usize) {
        if let Some((turn, line)) = self.queue.heads.in_heap(place) {
            let line = &self.queue.lines[line];
            self.later.push(turn, (if line.turn == turn { line.first } else { NONE }, place));
        }
    }

    /// The turn and the slot of the next item of several flows.
    fn next_of_flows(&mut self) -> Option<(Turn, usize)> {
        loop {
            match (self.heads.peek(), self.later.first()) {
                (Some(&&(head, line)), later) if later.is_none_or(|(later, _)| head < later) => {
                    self.heads.next();
                    let line = &self.queue.lines[line];
                    if line.turn == head {
                        return Some((head, line.first));
                    }
                }
                _ => {
                    let (turn, (slot, place)) = self.later.pop()?;
                    if place != NONE {
                        self.come_in(2 * place + 1);
                        self.come_in(2 * place + 2);
                    }
                    if slot != NONE {
                        return Some((turn, slot));
                    }
                }
            }
        }
    }
}

impl<'a, T> Iterator for InOrder<'a, T> {
    type Item = (usize, u64, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        let slots = &self.queue.slots;
        let slot = if self.alone != NONE {
            let slot = self.alone;
            self.alone = slots[slot].next;
            slot
        } else {
            let (at, slot) = self.next_of_flows()?;
            let Slot { cost, next, .. } = slots[slot];
            if next != NONE {
                self.later.push(turn(start_of(at).saturating_add(cost), slots[next].number), (next, NONE));
            }
            slot
        };
        Some((slot, slots[slot].number, slots.item(slot)?))
    }
}

impl<T> Drop for InOrder<'_, T> {
    fn drop(&mut self) {
        if self.queue.is_shared() {
            let mut later = std::mem::take(&mut self.later);
            later.clear(MAX_ROOM);
            self.queue.walk.set(later);
        }
    }
}

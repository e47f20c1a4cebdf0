//! A queue that flows share by their weights, however many items each of them enqueues.
//!
//! Start-time fair queueing: within a flow, items leave in the order they came; among flows, the one whose first item has the
//! lowest start leaves first. An item's start is the end of the item of its flow that left before it, or the queue's clock if that
//! is later, and its end is later by its cost divided by the flow's weight. The clock is the start of the item that left last.
//!
//! Only the first item of a flow has a start, so items that were cancelled or expired cost their flow nothing. While there is one
//! flow, the queue is plainly first in, first out.

#[cfg(test)]
pub(super) mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use nereid_backend_api::Flow;

use super::tickets::Tickets;

/// The cost of one item, in the clock's units, at weight 1.
const UNIT: u64 = 1 << 20;

/// Flows without items that are remembered if they are ahead of the clock.
const MAX_AHEAD: usize = 1024;

/// The fewest flows that are searched for those that can be forgotten.
const MIN_SWEPT: usize = 64;

/// The most items that [`FairQueue::ahead_of`] looks at.
const MAX_COUNTED: usize = 1024;

/// Items of flows.
pub struct FairQueue<T> {
    /// The only flow while `others` is empty.
    main: Line<T>,
    main_id: u64,
    others: BTreeMap<u64, Line<T>>,
    /// The first item of each flow: its start, its number, and the flow. Unused while there is one flow.
    order: BTreeSet<(u64, u64, u64)>,
    clock: u64,
    len: usize,
    /// The number of flows at which finished ones are forgotten next.
    sweep_at: usize,
}

/// The items of a flow, each with its cost in the clock's units.
struct Line<T> {
    items: Tickets<(u64, T)>,
    /// The start of the first item, or the end of the last one that left.
    start: u64,
    /// The cost of all items.
    cost: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { items: Tickets::default(), start: 0, cost: 0 }
    }
}

impl<T> Line<T> {
    fn push(&mut self, number: u64, cost: u64, item: T) {
        self.cost = self.cost.saturating_add(cost);
        self.items.push(number, (cost, item));
    }

    fn pop(&mut self) -> Option<(u64, T)> {
        let (_, (cost, item)) = self.items.pop()?;
        self.cost = self.cost.saturating_sub(cost);
        Some((cost, item))
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let (cost, item) = self.items.remove(number)?;
        self.cost = self.cost.saturating_sub(cost);
        Some(item)
    }

    /// The item's place among the first items of all flows.
    fn head(&self, flow: u64) -> Option<(u64, u64, u64)> {
        let (number, _) = self.items.first()?;
        Some((self.start, number, flow))
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            main: Line::default(),
            main_id: 0,
            others: BTreeMap::new(),
            order: BTreeSet::new(),
            clock: 0,
            len: 0,
            sweep_at: MIN_SWEPT,
        }
    }
}

impl<T> FairQueue<T> {
    /// How many items there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether several flows share the queue. An item that is added may then leave before others.
    pub fn is_shared(&self) -> bool {
        !self.others.is_empty()
    }

    /// Appends an item to its flow. Its number must be greater than every earlier one.
    pub fn push(&mut self, number: u64, flow: Flow, cost: usize, item: T) {
        let cost = scaled(cost, flow);
        self.len += 1;
        if !self.is_shared() {
            if self.main.items.is_empty() {
                self.main_id = flow.id;
                self.main.start = self.clock;
            }
            if self.main_id == flow.id {
                return self.main.push(number, cost, item);
            }
            self.main.start = self.clock;
            self.order.extend(self.main.head(self.main_id));
        }
        let clock = self.clock;
        let line =
            if flow.id == self.main_id { &mut self.main } else { self.others.entry(flow.id).or_default() };
        let begins = line.items.is_empty();
        if begins {
            line.start = line.start.max(clock);
        }
        line.push(number, cost, item);
        if begins {
            self.order.insert((line.start, number, flow.id));
        }
    }

    /// The first item.
    pub fn first(&self) -> Option<&T> {
        let line = match self.is_shared() {
            true => self.line(self.order.first()?.2)?,
            false => &self.main,
        };
        line.items.first().map(|(_, (_, item))| item)
    }

    /// Takes the first item.
    pub fn pop(&mut self) -> Option<T> {
        if !self.is_shared() {
            let (_, item) = self.main.pop()?;
            self.len -= 1;
            return Some(item);
        }
        let (start, _, flow) = self.order.pop_first()?;
        let line = self.line_mut(flow)?;
        let (cost, item) = line.pop()?;
        line.start = start.saturating_add(cost);
        let head = line.head(flow);
        self.clock = start;
        self.order.extend(head);
        self.left();
        Some(item)
    }

    /// Takes out the item of that number and flow, wherever it stands.
    pub fn remove(&mut self, flow: u64, number: u64) -> Option<T> {
        if !self.is_shared() {
            let item = self.main.remove(number)?;
            self.len -= 1;
            return Some(item);
        }
        let line = self.line_mut(flow)?;
        let head = line.head(flow);
        let item = line.remove(number)?;
        let next = line.head(flow);
        if head != next {
            if let Some(head) = head {
                self.order.remove(&head);
            }
            self.order.extend(next);
        }
        self.left();
        Some(item)
    }

    /// The item of that number and flow.
    pub fn get(&self, flow: u64, number: u64) -> Option<&T> {
        let line = if self.is_shared() { self.line(flow)? } else { &self.main };
        line.items.get(number).map(|(_, item)| item)
    }

    /// The items with their flows and numbers, in the order in which they leave if nothing changes: all for the number 0. For
    /// others, those from that number on if there is one flow. In a shared queue, an item that was added may stand
    /// anywhere, so there are none.
    pub fn iter_from(&self, number: u64) -> impl Iterator<Item = (u64, u64, &T)> {
        let shared = (self.is_shared() && number == 0).then(|| InOrder {
            queue: self,
            heads: self.order.iter().copied().peekable(),
            later: BinaryHeap::new(),
        });
        let alone = (!self.is_shared()).then(|| {
            let items = self.main.items.iter_from(number);
            items.map(|(number, (_, item))| (self.main_id, number, item))
        });
        shared.into_iter().flatten().chain(alone.into_iter().flatten())
    }

    /// A lower bound of how many items leave before one that is added to a flow now.
    pub fn ahead_of(&self, flow: u64) -> usize {
        if !self.is_shared() {
            let is_own = self.main_id == flow;
            return if is_own { self.len } else { self.len.min(1) };
        }
        let own = self.line(flow);
        let start = own.map_or(self.clock, |line| line.start.max(self.clock).saturating_add(line.cost));
        let mut ahead = own.map_or(0, |line| line.items.len());
        let mut counted = 0;
        for &(head, _, other) in self.order.iter().take_while(|(head, ..)| *head <= start) {
            let Some(line) = self.line(other).filter(|_| other != flow) else { continue };
            let mut at = head;
            for (_, (cost, _)) in line.items.iter_from(0) {
                if at > start {
                    break;
                }
                counted += 1;
                if counted > MAX_COUNTED {
                    return ahead;
                }
                ahead += 1;
                at = at.saturating_add(*cost);
            }
        }
        ahead
    }

    fn line(&self, flow: u64) -> Option<&Line<T>> {
        if flow == self.main_id { Some(&self.main) } else { self.others.get(&flow) }
    }

    fn line_mut(&mut self, flow: u64) -> Option<&mut Line<T>> {
        if flow == self.main_id { Some(&mut self.main) } else { self.others.get_mut(&flow) }
    }

    /// An item left the shared queue.
    fn left(&mut self) {
        self.len -= 1;
        if self.len == 0 {
            // Nobody waits whom a flow could owe anything.
            *self = Self::default();
        } else if self.others.len() >= self.sweep_at {
            let clock = self.clock;
            self.others.retain(|_, line| !line.items.is_empty() || line.start > clock);
            if self.others.len() > self.order.len() + MAX_AHEAD {
                self.others.retain(|_, line| !line.items.is_empty());
            }
            self.sweep_at = MIN_SWEPT.max(self.others.len() * 2);
            if self.others.is_empty() {
                self.order.clear();
            }
        }
    }
}

/// The cost of an item in the clock's units.
fn scaled(cost: usize, flow: Flow) -> u64 {
    let cost = u64::try_from(cost).unwrap_or(u64::MAX).saturating_mul(UNIT);
    match flow.weight.get() {
        1 => cost,
        weight => (cost / u64::from(weight)).max(1),
    }
}

/// The items of a shared queue in the order in which they leave.
struct InOrder<'a, T, H: Iterator<Item = (u64, u64, u64)>> {
    queue: &'a FairQueue<T>,
    heads: std::iter::Peekable<H>,
    /// The items that follow those that were returned, each in its flow.
    later: BinaryHeap<Reverse<(u64, u64, u64)>>,
}

impl<'a, T, H: Iterator<Item = (u64, u64, u64)>> Iterator for InOrder<'a, T, H> {
    type Item = (u64, u64, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        let later = self.later.peek().map(|Reverse(place)| *place);
        let (start, number, flow) = match (self.heads.peek().copied(), later) {
            (Some(head), Some(later)) if later < head => self.later.pop()?.0,
            (Some(_), _) => self.heads.next()?,
            (None, _) => self.later.pop()?.0,
        };
        let items = &self.queue.line(flow)?.items;
        let mut from = items.iter_from(number);
        let (_, (cost, item)) = from.next()?;
        if let Some((next, _)) = from.next() {
            self.later.push(Reverse((start.saturating_add(*cost), next, flow)));
        }
        Some((flow, number, item))
    }
}

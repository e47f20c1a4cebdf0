//! A queue that flows share by their weights, however many items each of them enqueues.
//!
//! Start-time fair queueing: within a flow, items leave in the order they came; among flows, the one whose first item has the
//! lowest start leaves first. An item's start is the end of the item of its flow that left before it, or the queue's clock if that
//! is later, and its end is later by its cost divided by the flow's weight. The clock is the start of the item that left last.
//!
//! Only the first item of a flow has a start, so items that were cancelled or expired cost their flow nothing. While there is one
//! flow, the queue is plainly first in, first out.

mod in_order;
mod slots;
#[cfg(test)]
pub(super) mod tests;
mod turns;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use nereid_backend_api::Flow;

use self::in_order::InOrder;
use self::slots::{NONE, Slot, Slots};
use self::turns::{Turn, Turns, start_of, turn};

/// The cost of one item, in the clock's units, at weight 1.
const UNIT: u64 = 1 << 20;

/// Flows without items that are remembered if they are ahead of the clock.
const MAX_AHEAD: usize = 1024;

/// The number of flows from which finished ones are forgotten. An empty queue keeps lines for this number.
const MIN_SWEPT: usize = 64;

/// The most items, and the most flows, that [`FairQueue::ahead_of`] looks at.
const MAX_COUNTED: usize = 1024;

/// The turn of a line without items.
const IDLE: Turn = Turn::MAX;

/// This many entries of items that were removed are tolerated, however few flows there are.
const MAX_STALE: usize = 16;

/// The line of the flow that has the queue for itself, or had it when another one came.
const MAIN: usize = 0;

/// Items of flows.
pub struct FairQueue<T> {
    slots: Slots<T>,
    lines: Vec<Line>,
    /// The lines of all flows except `MAIN`'s.
    others: HashMap<u64, usize, BuildHasherDefault<Spread>>,
    /// Lines without a flow.
    spare: Vec<usize>,
    /// The lines by the turns of their first items, and stale entries. Empty until a second flow comes.
    heads: Turns<usize>,
    /// How many lines in `heads` have items.
    active: usize,
    /// The number of stale entries in `heads`, whose items were removed. The first entry is never stale.
    stale: usize,
    /// Memory for walks in the order of several flows, so that each batch does not allocate its own.
    walk: Cell<Turns<(usize, usize)>>,
    clock: u64,
    /// How often the queue has become empty after several flows had items.
    period: u64,
    len: usize,
    /// Whether a second flow came since the queue was empty.
    has_others: bool,
    /// The number of flows at which finished ones are forgotten next.
    sweep_at: usize,
}

/// The items of a flow.
struct Line {
    flow: u64,
    /// The slots of the first and the last item.
    first: usize,
    last: usize,
    len: usize,
    /// The start of the first item, or the end of the last one that left.
    start: u64,
    /// The line's entry among the heads; `IDLE` without one.
    turn: Turn,
    /// The cost of all items.
    cost: u64,
    /// The queue's period in which the flow last had items. What it was ahead in an earlier one is forgotten.
    period: u64,
}

impl Line {
    fn new(flow: u64, period: u64) -> Self {
        Self { flow, first: NONE, last: NONE, len: 0, start: 0, turn: IDLE, cost: 0, period }
    }
}

/// Spreads the numbers of flows over a table. Clients do not choose them: numbers of principals are keyed hashes already.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio's fraction, as in Knuth's multiplicative hashing. The table uses the highest and the lowest bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            slots: Slots::default(),
            lines: Vec::new(),
            others: HashMap::default(),
            spare: Vec::new(),
            heads: Turns::default(),
            active: 0,
            stale: 0,
            walk: Cell::default(),
            clock: 0,
            period: 0,
            len: 0,
            has_others: false,
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

    /// Whether items of several flows wait. An item that was added may then leave before others.
    pub fn is_shared(&self) -> bool {
        self.active > 1
    }

    /// Appends an item to its flow, and returns its slot, which with its number finds it. Its number must be greater than every
    /// earlier one.
    pub fn push(&mut self, number: u64, flow: Flow, cost: usize, item: T) -> usize {
        let cost = scaled(cost, flow);
        if !self.has_others {
            if self.len == 0 {
                self.take_main(flow.id);
            }
            if self.lines[MAIN].flow == flow.id {
                return self.append(MAIN, number, cost, item);
            }
            self.has_others = true;
            self.begin(MAIN);
        }
        let line = self.line_for(flow.id);
        let slot = self.append(line, number, cost, item);
        let appended = &mut self.lines[line];
        if appended.len == 1 {
            appended.start = appended.start.max(self.clock);
            self.begin(line);
        }
        slot
    }

    /// The first item.
    pub fn first(&self) -> Option<&T> {
        let line = if self.has_others { self.heads.first()?.1 } else { MAIN };
        self.slots.item(self.lines.get(line)?.first)
    }

    /// Takes the first item.
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_others {
            let first = self.lines.first()?.first;
            if first == NONE {
                return None;
            }
            self.unlink(first);
            let item = self.slots.take(first);
            self.left();
            return item;
        }
        let (_, line) = self.heads.pop()?;
        let Line { first, start, .. } = self.lines[line];
        self.clock = start;
        self.lines[line].start = start.saturating_add(self.slots[first].cost);
        self.advance(line, first);
        let item = self.slots.take(first);
        self.left();
        item
    }

    /// Takes out the item of that slot and number, wherever it stands.
    pub fn remove(&mut self, slot: usize, number: u64) -> Option<T> {
        let line = self.slots.get(slot, number)?.line;
        if self.has_others && self.lines[line].first == slot {
            self.stale += 1;
            self.advance(line, slot);
        } else {
            self.unlink(slot);
        }
        let item = self.slots.take(slot);
        self.left();
        item
    }

    /// The item of that slot and number.
    pub fn get(&self, slot: usize, number: u64) -> Option<&T> {
        self.slots.get(slot, number).and_then(|_| self.slots.item(slot))
    }

    /// The items with their slots and numbers, in the order in which they leave if nothing changes.
    pub fn iter(&self) -> InOrder<'_, T> {
        if self.is_shared() {
            return InOrder::of_flows(self);
        }
        let line = if self.has_others { self.heads.first().map(|(_, line)| line) } else { Some(MAIN) };
        let line = line.and_then(|line| self.lines.get(line));
        InOrder::of_one(self, line.map_or(NONE, |line| line.first))
    }

    /// The items that stand behind the one in that slot, if items of one flow wait. Among several flows, an item that was added
    /// may stand anywhere, so there are none.
    pub fn iter_behind(&self, slot: usize) -> InOrder<'_, T> {
        InOrder::of_one(self, if self.is_shared() { NONE } else { self.slots[slot].next })
    }

    /// A lower bound of how many items leave before one that is added to a flow now.
    pub fn ahead_of(&self, flow: u64) -> usize {
        if !self.has_others {
            let is_own = self.lines.first().is_some_and(|line| line.flow == flow);
            return if is_own { self.len } else { self.len.min(1) };
        }
        let own = self.line(flow);
        let own_line = own.map(|own| &self.lines[own]);
        let start = own_line.map_or(self.clock, |line| line.start.max(self.clock).saturating_add(line.cost));
        let mut ahead = own_line.map_or(0, |line| line.len);
        let mut counted = 0;
        for (head, other) in self.heads.iter().take(MAX_COUNTED) {
            if Some(other) == own || self.lines[other].turn != head {
                continue;
            }
            let (mut at, mut slot) = (start_of(head), self.lines[other].first);
            while at <= start && slot != NONE {
                counted += 1;
                if counted > MAX_COUNTED {
                    return ahead;
                }
                ahead += 1;
                let Slot { cost, next, .. } = &self.slots[slot];
                (at, slot) = (at.saturating_add(*cost), *next);
            }
        }
        ahead
    }

    /// Gives the main line of an empty queue to a flow.
    fn take_main(&mut self, flow: u64) {
        match self.lines.first_mut() {
            Some(main) => main.flow = flow,
            None => self.lines.push(Line::new(flow, self.period)),
        }
    }

    /// The line of a flow that had items in this period.
    fn line(&self, flow: u64) -> Option<usize> {
        if flow == self.lines[MAIN].flow {
            return Some(MAIN);
        }
        self.others.get(&flow).copied().filter(|line| self.lines[*line].period == self.period)
    }

    /// The line of a flow, which may be new.
    fn line_for(&mut self, flow: u64) -> usize {
        if flow == self.lines[MAIN].flow {
            return MAIN;
        }
        if let Some(&line) = self.others.get(&flow) {
            let known = &mut self.lines[line];
            if known.period != self.period {
                (known.start, known.period) = (0, self.period);
            }
            return line;
        }
        let line = self.spare.pop().unwrap_or(self.lines.len());
        match self.lines.get_mut(line) {
            Some(spare) => *spare = Line::new(flow, self.period),
            None => self.lines.push(Line::new(flow, self.period)),
        }
        self.others.insert(flow, line);
        line
    }

    /// Enters a line that has got its first item.
    fn begin(&mut self, line: usize) {
        self.active += 1;
        self.enter(line);
    }

    fn enter(&mut self, line: usize) {
        let entered = &mut self.lines[line];
        entered.turn = turn(entered.start, self.slots[entered.first].number);
        self.heads.push(entered.turn, line);
    }

    /// Takes the first item out of a line, whose entry is stale or was taken.
    #[inline]
    fn advance(&mut self, line: usize, first: usize) {
        self.unlink(first);
        if self.lines[line].first == NONE {
            self.lines[line].turn = IDLE;
            self.active -= 1;
        } else {
            self.enter(line);
        }
        if self.stale > 0 {
            self.drop_stale();
        }
    }

    fn drop_stale(&mut self) {
        let lines = &self.lines;
        while self.heads.first().is_some_and(|(turn, line)| lines[line].turn != turn) {
            self.heads.pop();
            self.stale -= 1;
        }
        if self.stale > MAX_STALE + self.active {
            self.heads.retain(|turn, line| lines[line].turn == turn);
            self.stale = 0;
        }
    }

    /// Adds an item to the end of a line.
    fn append(&mut self, line: usize, number: u64, cost: u64, item: T) -> usize {
        let slot = self.slots.insert(Slot::new(number, cost, line, item));
        let appended = &mut self.lines[line];
        let previous = std::mem::replace(&mut appended.last, slot);
        appended.len += 1;
        appended.cost = appended.cost.saturating_add(cost);
        if previous == NONE {
            appended.first = slot;
        } else {
            debug_assert!(self.slots[previous].number < number);
            self.slots[slot].previous = previous;
            self.slots[previous].next = slot;
        }
        self.len += 1;
        slot
    }

    /// Takes an item out of its line.
    fn unlink(&mut self, slot: usize) {
        let Slot { cost, line, next, previous, .. } = self.slots[slot];
        let line = &mut self.lines[line];
        line.len -= 1;
        line.cost = line.cost.saturating_sub(cost);
        match previous {
            NONE => line.first = next,
            _ => self.slots[previous].next = next,
        }
        match next {
            NONE => line.last = previous,
            _ => self.slots[next].previous = previous,
        }
        self.len -= 1;
    }

    /// An item left.
    fn left(&mut self) {
        if self.len == 0 {
            self.slots.clear();
            if self.has_others {
                self.forget_all();
            }
        } else if self.others.len() >= self.sweep_at {
            self.forget_finished();
        }
    }

    /// Resets the empty queue: without waiting items, no flow is ahead of another.
    fn forget_all(&mut self) {
        self.lines[MAIN].start = 0;
        if self.lines.len() > MIN_SWEPT {
            self.lines.truncate(1);
            self.lines.shrink_to(MIN_SWEPT);
            self.others.clear();
            self.others.shrink_to(MIN_SWEPT);
            self.spare = Vec::new();
        }
        self.heads.clear(MIN_SWEPT);
        self.period += 1;
        (self.clock, self.stale, self.has_others, self.sweep_at) = (0, 0, false, MIN_SWEPT);
    }

    fn forget_finished(&mut self) {
        let (clock, period) = (self.clock, self.period);
        self.keep(|line| line.len > 0 || (line.start > clock && line.period == period));
        if self.others.len() > self.active + MAX_AHEAD {
            self.keep(|line| line.len > 0);
        }
        self.sweep_at = MIN_SWEPT.max(self.others.len() * 2);
    }

    /// Forgets the other flows that do not satisfy the condition. They have no items.
    fn keep(&mut self, condition: impl Fn(&Line) -> bool) {
        let (lines, spare) = (&self.lines, &mut self.spare);
        self.others.retain(|_, line| {
            let keeps = condition(&lines[*line]);
            if !keeps {
                spare.push(*line);
            }
            keeps
        });
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

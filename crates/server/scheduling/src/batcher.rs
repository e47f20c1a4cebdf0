//! The dynamic batcher's rules: which requests form a batch, and when it leaves.
//!
//! Requests wait in levels, the most urgent first, and within a level in the order they came, or as senders share it;
//! those past their queue timeout that are delayed rather than refused come after the others of their level. The batch is
//! made of the first ones in that order. It stops before a request that would make it too large or that cannot be batched with those in
//! it, and leaves
//! - at once, cut to the greatest preferred size it reaches, if it reaches one;
//! - at once, if it cannot grow or the greatest preferred size is reached or passed;
//! - otherwise when its oldest request has waited for `delay`, then with all that go together.
//!
//! The state of the next batch is kept, and extended when requests arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::fair::FairQueue;
use super::tickets::Tickets;
use super::{Item, Queue, Readiness, Refusal, Ticket, WaitingLevel};

pub mod adaptive;

/// The properties of an item that the rules use.
pub trait BatchItem: Item {
    /// How many items of the batch dimension it holds, at least 1.
    fn batch_size(&self) -> usize;

    /// The requested level; 0 if there is none.
    fn priority(&self) -> u64;
}

/// Tells which items go together, and prepares them to leave.
pub trait BatchFormer<T>: Send {
    /// Starts a new batch with this item.
    fn begin(&mut self, first: &T);

    /// Whether an item fits the batch. A fitting item joins it.
    fn joins(&mut self, first: &T, item: &T) -> bool;

    /// The items leave.
    fn leave(&mut self, batch: Vec<T>) -> Vec<T>;
}

/// How batches are made, from a configuration that was checked.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The greatest batch; at least 1.
    pub max_batch_size: usize,
    /// Sizes that leave at once.
    pub preferred: BTreeSet<usize>,
    /// How long a batch waits for company.
    pub delay: Duration,
    /// How many levels there are; 0 for one that everybody shares.
    pub levels: u64,
    /// The priority level of requests without a known level; 0 without levels.
    pub default_level: u64,
    /// The policy of levels without one of their own.
    pub default_policy: Policy,
    /// The policies of certain levels.
    pub policies: BTreeMap<u64, Policy>,
    /// Nothing leaves until this many requests have been queued once. For tests that need a full queue.
    pub hold: usize,
}

impl Rules {
    /// These rules for requests that leave at once, each by itself.
    pub fn one_at_a_time(self) -> Self {
        Self { max_batch_size: 1, preferred: BTreeSet::new(), delay: Duration::ZERO, ..self }
    }

    /// Whether all that fit together leave at once: no batch waits for company, or is cut to a smaller preferred size.
    fn take_what_fits(&self) -> bool {
        let only_the_greatest = || self.preferred.iter().eq([&self.max_batch_size]);
        self.delay.is_zero() && (self.max_batch_size == 1 || only_the_greatest())
    }

    /// The greatest preferred size; 0 if none is preferred.
    fn most_preferred(&self) -> usize {
        self.preferred.last().copied().unwrap_or(0)
    }
}

/// How long a level may be, and how long its requests may wait.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The queue's capacity; 0 for no limit.
    pub max_queue_size: usize,
    /// How long a request may wait.
    pub timeout: Option<Duration>,
    /// Whether a request may shorten the timeout.
    pub allow_timeout_override: bool,
    /// Whether an expired request is delayed behind its level rather than refused.
    pub delays_expired: bool,
}

impl Policy {
    /// How long a request with a timeout of its own (`asked`) may wait. As in the reference, it can only shorten the timeout
    /// of its level, and sets none where the level has none.
    fn timeout(&self, asked: Option<Duration>) -> Option<Duration> {
        let allowed = self.timeout?;
        let asked = asked.filter(|asked| self.allow_timeout_override && *asked < allowed);
        Some(asked.unwrap_or(allowed))
    }
}

/// Requests that wait, and the rules by which they leave in batches.
pub struct Batcher<T, F> {
    rules: Rules,
    former: F,
    levels: BTreeMap<u64, Level<T>>,
    next_number: u64,
    len: usize,
    /// Items of the batch dimension in all requests together.
    size: usize,
    /// When requests expire, with their levels, numbers and slots.
    expiries: BTreeMap<(Instant, u64, u64), usize>,
    forming: Option<NextBatch>,
    closed: bool,
}

struct Level<T> {
    waiting: FairQueue<QueuedItem<T>>,
    /// Delayed requests, each under a new number.
    delayed: Tickets<QueuedItem<T>>,
    /// The new numbers of the delayed, by their first ones.
    renumbered: BTreeMap<u64, u64>,
}

struct QueuedItem<T> {
    item: T,
    /// The number of its ticket.
    number: u64,
    since: Instant,
    expiry: Option<Instant>,
}

/// The next batch, as far as it was worked out.
#[derive(Clone, Copy, Debug)]
struct NextBatch {
    count: usize,
    size: usize,
    /// Where to cut it: how many requests make a preferred size, or at least do not pass the greatest.
    best: Option<usize>,
    /// The request that does not go with those before it, if there is one: the batch cannot grow.
    blocker: Option<Place>,
    oldest: Instant,
    first: Place,
    last: Place,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    level: u64,
    delayed: bool,
    /// The slot in the queue, for requests that were not delayed.
    slot: usize,
    number: u64,
}

impl<T> Default for Level<T> {
    fn default() -> Self {
        Self { waiting: FairQueue::default(), delayed: Tickets::default(), renumbered: BTreeMap::new() }
    }
}

impl<T> Level<T> {
    fn len(&self) -> usize {
        self.waiting.len() + self.delayed.len()
    }

    /// The item that leaves first.
    fn first(&self) -> Option<&QueuedItem<T>> {
        self.waiting.first().or_else(|| self.delayed.first().map(|(_, item)| item))
    }

    fn pop(&mut self) -> Option<QueuedItem<T>> {
        if let Some(waiting) = self.waiting.pop() {
            return Some(waiting);
        }
        let (_, delayed) = self.delayed.pop()?;
        self.renumbered.remove(&delayed.number);
        Some(delayed)
    }

    fn remove(&mut self, slot: usize, number: u64) -> Option<QueuedItem<T>> {
        let delayed = || self.delayed.remove(self.renumbered.remove(&number)?);
        self.waiting.remove(slot, number).or_else(delayed)
    }

    fn get(&self, place: Place) -> Option<&QueuedItem<T>> {
        if place.delayed {
            self.delayed.get(place.number)
        } else {
            self.waiting.get(place.slot, place.number)
        }
    }
}

impl<T: BatchItem, F: BatchFormer<T>> Batcher<T, F> {
    /// An empty queue.
    pub fn new(rules: Rules, former: F) -> Self {
        Self {
            rules,
            former,
            levels: BTreeMap::new(),
            next_number: 0,
            len: 0,
            size: 0,
            expiries: BTreeMap::new(),
            forming: None,
            closed: false,
        }
    }

    fn level(&self, item: &T) -> u64 {
        match item.priority() {
            _ if self.rules.levels == 0 => 0,
            0 => self.rules.default_level,
            asked if asked > self.rules.levels => self.rules.default_level,
            asked => asked,
        }
    }

    /// Adds an item to a level, regardless of the level's policy.
    pub fn insert(&mut self, level: u64, item: T, expiry: Option<Instant>, now: Instant) -> Ticket {
        let number = self.next_number;
        self.next_number += 1;
        self.len += 1;
        self.size += item.batch_size();
        let (flow, cost) = (item.flow(), item.batch_size());
        let waiting = &mut self.levels.entry(level).or_default().waiting;
        let queued = QueuedItem { item, number, since: now, expiry };
        let slot = waiting.push(number, flow, cost, queued);
        let is_shared = waiting.is_shared();
        if let Some(expiry) = expiry {
            self.expiries.insert((expiry, level, number), slot);
        }
        // Otherwise it stands behind all that was looked at.
        let end = self.forming.map(|forming| forming.blocker.unwrap_or(forming.last));
        if end.is_some_and(|end| level < end.level || (level == end.level && (end.delayed || is_shared))) {
            self.forming = None;
        }
        Ticket { level, slot, number }
    }

    /// Records that a request left.
    fn gone(&mut self, level: u64, waiting: QueuedItem<T>) -> T {
        self.len -= 1;
        self.size -= waiting.item.batch_size();
        if let Some(expiry) = waiting.expiry {
            self.expiries.remove(&(expiry, level, waiting.number));
        }
        // Clients choose their levels, so empty levels are removed.
        if level != self.rules.default_level && self.levels.get(&level).is_some_and(|items| items.len() == 0)
        {
            self.levels.remove(&level);
        }
        self.forming = None;
        waiting.item
    }

    /// Works out the next batch.
    fn form(&mut self) -> Option<NextBatch> {
        if let Some(forming) = self.forming.filter(|forming| forming.blocker.is_some()) {
            return Some(forming);
        }
        let most_preferred = self.rules.most_preferred();
        let mut forming = self.forming;
        for (place, waiting) in behind(&self.levels, forming.map(|forming| forming.last)) {
            let size = waiting.item.batch_size();
            let formed = match &mut forming {
                None => {
                    self.former.begin(&waiting.item);
                    forming.insert(NextBatch {
                        count: 1,
                        size,
                        best: None,
                        blocker: None,
                        oldest: waiting.since,
                        first: place,
                        last: place,
                    })
                }
                Some(formed) => {
                    if formed.size + size > most_preferred && formed.best.is_none() {
                        formed.best = Some(formed.count);
                    }
                    let first = self.levels.get(&formed.first.level).and_then(|it| it.get(formed.first));
                    let fits = formed.size + size <= self.rules.max_batch_size
                        && first.is_some_and(|first| self.former.joins(&first.item, &waiting.item));
                    if !fits {
                        formed.blocker = Some(place);
                        break;
                    }
                    formed.count += 1;
                    formed.size += size;
                    formed.oldest = formed.oldest.min(waiting.since);
                    formed.last = place;
                    formed
                }
            };
            if self.rules.preferred.contains(&formed.size) {
                formed.best = Some(formed.count);
            }
        }
        self.forming = forming;
        forming
    }

    /// Takes out the first `count` requests, and reports when each arrived.
    fn leave(&mut self, count: usize, mut arrived: impl FnMut(Instant)) -> Vec<T> {
        let mut batch = Vec::with_capacity(count);
        while batch.len() < count {
            let mut levels = self.levels.iter_mut();
            let Some((level, waiting)) = levels.find_map(|(&level, items)| Some((level, items.pop()?)))
            else {
                break;
            };
            arrived(waiting.since);
            batch.push(self.gone(level, waiting));
        }
        self.former.leave(batch)
    }

    /// Takes out the requests of a batch while they are looked at, where no later one decides what leaves.
    fn leave_what_fits(&mut self) -> Vec<T> {
        let most = self.rules.max_batch_size;
        let mut batch: Vec<T> = Vec::with_capacity(self.len.min(most));
        let mut size = 0_usize;
        while let Some((&level, items)) = self.levels.iter_mut().find(|(_, items)| items.len() > 0) {
            let Some(next) = items.first().map(|waiting| &waiting.item) else { break };
            size = size.saturating_add(next.batch_size());
            match batch.first() {
                None => self.former.begin(next),
                Some(first) if size <= most && self.former.joins(first, next) => {}
                Some(_) => break,
            }
            let Some(waiting) = items.pop() else { break };
            batch.push(self.gone(level, waiting));
        }
        self.former.leave(batch)
    }

    /// How many of the first requests have this size together at most; at least one.
    fn count_within(&self, most: usize) -> usize {
        let mut size = 0_usize;
        let sizes = behind(&self.levels, None).map(|(_, waiting)| waiting.item.batch_size());
        let fits = sizes.take_while(|added| {
            size = size.saturating_add(*added);
            size <= most
        });
        fits.count().max(1)
    }

    /// Whether there is nothing to leave, or less than a test waits for.
    fn is_held(&mut self) -> bool {
        if self.len < self.rules.hold {
            return true;
        }
        self.rules.hold = 0;
        self.len == 0
    }

    /// How many requests leave now, or when some do.
    fn decide(&mut self, now: Instant) -> Result<usize, Readiness> {
        if self.is_held() {
            return Err(Readiness::Nothing);
        }
        let forming = self.form().ok_or(Readiness::Nothing)?;
        let delay = self.rules.delay;
        let leaves = forming.oldest + delay;
        let late = !delay.is_zero() && leaves <= now;
        match forming.best {
            Some(best) if !late => Ok(best),
            _ if late || delay.is_zero() || self.closed || forming.blocker.is_some() => Ok(forming.count),
            _ if forming.size >= self.rules.most_preferred() => Ok(forming.count),
            _ => Err(Readiness::At(leaves)),
        }
    }
}

/// The items behind a place, or all items, in the order in which they leave.
fn behind<T>(
    levels: &BTreeMap<u64, Level<T>>,
    place: Option<Place>,
) -> impl Iterator<Item = (Place, &QueuedItem<T>)> {
    levels.range(place.map_or(0, |place| place.level)..).flat_map(move |(&level, items)| {
        let place = place.filter(|place| place.level == level);
        let waiting = match place {
            Some(Place { delayed: true, .. }) => None,
            Some(Place { slot, .. }) => Some(items.waiting.iter_behind(slot)),
            None => Some(items.waiting.iter()),
        };
        let first_delayed = place.filter(|place| place.delayed).map_or(0, |place| place.number + 1);
        let at = move |delayed, slot, number, item| (Place { level, delayed, slot, number }, item);
        let waiting =
            waiting.into_iter().flatten().map(move |(slot, number, item)| at(false, slot, number, item));
        let delayed =
            items.delayed.iter_from(first_delayed).map(move |(number, item)| at(true, 0, number, item));
        waiting.chain(delayed)
    })
}

impl<T: BatchItem, F: BatchFormer<T>> Queue for Batcher<T, F> {
    type Item = T;

    fn push(&mut self, item: T, now: Instant) -> Result<Ticket, (T, Refusal)> {
        let level = self.level(&item);
        let policy = self.rules.policies.get(&level).unwrap_or(&self.rules.default_policy);
        let items = self.levels.entry(level).or_default();
        if policy.max_queue_size != 0 && items.len() >= policy.max_queue_size {
            return Err((item, Refusal::Full(policy.max_queue_size)));
        }
        let expiry = policy.timeout(item.timeout()).and_then(|timeout| now.checked_add(timeout));
        Ok(self.insert(level, item, expiry, now))
    }

    fn alone(&mut self, item: T) -> Result<Vec<T>, T> {
        let size = item.batch_size();
        let enough = size >= self.rules.most_preferred() || self.rules.preferred.contains(&size);
        let leaves = self.len == 0 && self.rules.hold == 0 && (self.rules.delay.is_zero() || enough);
        if !leaves {
            return Err(item);
        }
        Ok(self.former.leave(vec![item]))
    }

    fn readiness(&mut self, now: Instant) -> Readiness {
        if self.rules.take_what_fits() {
            return if self.is_held() { Readiness::Nothing } else { Readiness::Now };
        }
        match self.decide(now) {
            Ok(_) => Readiness::Now,
            Err(readiness) => readiness,
        }
    }

    fn first(&self) -> Option<&T> {
        behind(&self.levels, None).next().map(|(_, waiting)| &waiting.item)
    }

    fn take(&mut self, now: Instant) -> Vec<T> {
        if self.rules.take_what_fits() {
            return if self.is_held() { Vec::new() } else { self.leave_what_fits() };
        }
        let count = self.decide(now).unwrap_or(0);
        self.leave(count, |_| ())
    }

    fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let waiting = self.levels.get_mut(&ticket.level)?.remove(ticket.slot, ticket.number)?;
        Some(self.gone(ticket.level, waiting))
    }

    fn expire(&mut self, now: Instant) -> Vec<T> {
        let mut refused = Vec::new();
        while let Some(due) = self.expiries.first_entry().filter(|due| due.key().0 <= now) {
            let ((_, level, number), slot) = due.remove_entry();
            let policy = self.rules.policies.get(&level).unwrap_or(&self.rules.default_policy);
            let delays = policy.delays_expired;
            let Some(items) = self.levels.get_mut(&level) else { continue };
            let Some(mut waiting) = items.waiting.remove(slot, number) else { continue };
            waiting.expiry = None;
            if delays {
                let renumbered = self.next_number;
                self.next_number += 1;
                items.renumbered.insert(number, renumbered);
                items.delayed.push(renumbered, waiting);
                self.forming = None;
            } else {
                refused.push(self.gone(level, waiting));
            }
        }
        refused
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first_key_value().map(|((expiry, ..), _)| *expiry)
    }

    fn patience(&self, item: &T) -> Option<Duration> {
        let policy = self.rules.policies.get(&self.level(item)).unwrap_or(&self.rules.default_policy);
        match policy.timeout {
            None => item.timeout(),
            Some(_) => policy.timeout(item.timeout()).filter(|_| !policy.delays_expired),
        }
    }

    fn batches_before(&self, item: &T) -> usize {
        let level = self.level(item);
        let before = self.levels.range(..level).map(|(_, items)| items.waiting.len());
        let beside = self.levels.get(&level).map_or(0, |items| items.waiting.ahead_of(item.flow().id));
        (before.sum::<usize>() + beside) / self.rules.max_batch_size
    }

    fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        let levels = self.levels.iter().filter(|(level, _)| **level > 0);
        let waiting = levels.filter_map(|(&level, items)| {
            Some(WaitingLevel { level, waiting: items.len(), since: items.first()?.since })
        });
        waiting.take(most).collect()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn batches(&self) -> usize {
        self.size.div_ceil(self.rules.max_batch_size)
    }

    fn close(&mut self) {
        self.closed = true;
        self.rules.hold = 0;
    }
}

#[cfg(test)]
mod tests;

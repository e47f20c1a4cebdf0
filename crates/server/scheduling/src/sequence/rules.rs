//! The sequence batcher's rules: which sequence has which slot, and which requests leave together, and when.
//!
//! A sequence starts with a request that says so, and gets the free slot with the lowest number; without a free slot it
//! waits in the backlog, which is served in order of arrival. Its requests leave one after the other, none before the
//! one ahead of it is done. It is over, and its slot free, when
//! - its last request has left;
//! - nothing of it was waiting or executed for longer than it may be idle;
//! - one of its requests was cancelled while it waited: those behind it are cancelled with it;
//! - the model iterates and has released its request.
//!
//! An instance's [`Lane`] decides how requests leave its slots:
//! - direct: one of each slot, in the order of the slots, with fillers where a slot below the last has none;
//! - oldest: each goes to a batcher of the instance as soon as the one ahead of it is done.
//!
//! There is neither clock nor thread in here: time is an argument.

mod leaving;
mod tenancy;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use nereid_backend_api::{CorrelationId, SequenceFlags};

use super::super::batcher::{BatchFormer, BatchItem, Batcher};
use super::super::{OpenSequence, Queue, Readiness, Refusal, Ticket};
use super::Place;

/// The properties of a sequence's request that the rules use.
pub trait SequenceItem: BatchItem {
    /// The sequence it belongs to.
    fn sequence(&self) -> &CorrelationId;

    /// Where in it it stands.
    fn flags(&self) -> SequenceFlags;

    /// A rescheduled request: neither the first nor the last.
    fn repeated(&mut self);
}

/// Makes requests ready for the model.
pub trait Prepare<T>: Send {
    /// The record of a sequence.
    type State: Default + Send;

    /// Whether a request goes with the first one of a batch.
    fn alike(&self, first: &T, item: &T) -> bool;

    /// The request is next in its sequence, and leaves for the model.
    fn prepare(&mut self, item: &mut T, kept: &mut Self::State, place: Place);

    /// The bytes that the record of a sequence holds.
    fn state_bytes(_kept: &Self::State) -> usize {
        0
    }

    /// The other contents of a slot besides a prepared request.
    fn filler(&mut self, beside: &T) -> T;
}

/// How sequences are scheduled, from a configuration that was checked.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How many slots each instance has; at least 1.
    pub slots: usize,
    /// How long a sequence may be idle.
    pub idle: Duration,
    /// Most sequences that wait for a slot.
    pub backlog: usize,
    /// A request that is released ends its sequence, and may come again instead.
    pub iterates: bool,
    /// In the direct strategy: how long requests wait for others, and the share of slots that have to be ready so that
    /// they do not.
    pub wait: Option<(Duration, f32)>,
    /// Nothing leaves until this many requests wait in slots, and this many in the backlog, for the first time. For tests
    /// that need full queues.
    pub hold: (usize, usize),
}

/// Sequences, and the requests of theirs that wait.
pub struct Sequences<T, O: Prepare<T>, F> {
    rules: Rules,
    preparer: O,
    lanes: Vec<Lane<T, F>>,
    /// Slots without a sequence: slot and instance, so that all instances fill up alike.
    free: BTreeSet<(usize, usize)>,
    /// The sequences that further requests may come for.
    ids: HashMap<CorrelationId, u64>,
    /// All of which something waits or may come, by their numbers.
    sequences: HashMap<u64, Sequence<T, O::State>>,
    /// Sequences that wait for a slot.
    backlog: BTreeSet<u64>,
    /// When a sequence has been idle, or has waited for a slot, for too long.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Requests that wait in a batcher, by their numbers.
    fed: HashMap<u64, (usize, Ticket)>,
    next_number: u64,
    /// How many requests wait that are in no batcher.
    waiting: usize,
    /// The instances for which something has changed.
    take_changed: BTreeSet<usize>,
    closed: bool,
}

struct Sequence<T, K> {
    id: CorrelationId,
    /// The slot; `None` in the backlog.
    place: Option<Place>,
    /// When its first request came.
    began: Instant,
    /// Whether further requests may come.
    open: bool,
    queue: VecDeque<QueuedItem<T>>,
    deadline: Option<Instant>,
    kept: K,
}

struct QueuedItem<T> {
    item: T,
    number: u64,
    since: Instant,
}

/// An instance.
struct Lane<T, F> {
    slots: Vec<Slot>,
    /// In the oldest strategy.
    batcher: Option<Batcher<T, F>>,
}

/// A request that has left for the model.
#[derive(Clone, Copy)]
struct RequestInModel {
    /// The request's sequence.
    serial: u64,
    number: u64,
}

#[derive(Clone, Default)]
struct Slot {
    /// The sequence that has it.
    tenant: Option<u64>,
    /// The request on its way through the model, perhaps a former tenant's.
    working: Option<RequestInModel>,
}

impl<T: SequenceItem, O: Prepare<T>, F: BatchFormer<T>> Sequences<T, O, F> {
    /// No sequence yet, for this many instances. In the oldest strategy each has a batcher.
    pub fn new(
        rules: Rules,
        preparer: O,
        instances: usize,
        mut batcher: impl FnMut() -> Option<Batcher<T, F>>,
    ) -> Self {
        let slots = vec![Slot::default(); rules.slots];
        let lanes = (0..instances).map(|_| Lane { slots: slots.clone(), batcher: batcher() }).collect();
        let free = (0..instances).flat_map(|instance| (0..rules.slots).map(move |slot| (slot, instance)));
        Self {
            free: free.collect(),
            rules,
            preparer,
            lanes,
            ids: HashMap::new(),
            sequences: HashMap::new(),
            backlog: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            fed: HashMap::new(),
            next_number: 0,
            waiting: 0,
            take_changed: BTreeSet::new(),
            closed: false,
        }
    }

    /// The step that makes requests ready.
    pub fn preparer(&self) -> &O {
        &self.preparer
    }

    /// Whether further requests of that sequence may come.
    pub fn is_open(&self, id: &CorrelationId) -> bool {
        self.ids.contains_key(id)
    }

    /// Whether further requests of any sequence may come.
    pub fn has_open(&self) -> bool {
        !self.ids.is_empty()
    }

    /// The number of sequences that further requests may come for, and the oldest ones, in order.
    pub fn open(&self, most: usize) -> (usize, Vec<OpenSequence>) {
        let mut serials: Vec<_> = self.ids.values().copied().collect();
        // Numbers ascend with time. Only those that are returned are sorted: there may be many.
        if most > 0 && serials.len() > most {
            serials.select_nth_unstable(most - 1);
        }
        serials.truncate(most);
        serials.sort_unstable();
        let open =
            serials.iter().filter_map(|serial| self.sequences.get(serial)).map(|sequence| OpenSequence {
                id: sequence.id.clone(),
                place: sequence.place.map(|place| (place.instance, place.slot)),
                began: sequence.began,
                waiting: sequence.queue.len(),
                state_bytes: O::state_bytes(&sequence.kept),
            });
        (self.ids.len(), open.collect())
    }

    /// Adds a request, or returns it with the reason for the refusal.
    pub fn push(&mut self, item: T, now: Instant) -> Result<Ticket, (T, Refusal)> {
        if self.closed {
            return Err((item, Refusal::Closing));
        }
        let flags = item.flags();
        let serial = match self.ids.get(item.sequence()) {
            Some(&serial) => serial,
            None if flags.start && self.free.is_empty() && self.backlog.len() >= self.rules.backlog => {
                return Err((item, Refusal::BacklogFull(self.rules.backlog)));
            }
            None if flags.start => self.begin(item.sequence().clone(), now),
            None => return Err((item, Refusal::NotStarted)),
        };
        let number = self.queue(serial, item, now);
        if flags.end {
            self.end(serial);
        }
        self.stir(serial, now);
        self.release_hold(now);
        Ok(Ticket { level: serial, slot: 0, number })
    }

    /// A lower bound of the executions that end before the one of a request that arrives now: one for each request of its
    /// sequence ahead of it, or one for each time that all slots have to become free before its sequence gets one.
    pub fn executions_before(&self, item: &T) -> usize {
        let sequence = self.ids.get(item.sequence()).and_then(|serial| self.sequences.get(serial));
        match sequence {
            Some(sequence) => sequence.queue.len(),
            None if self.free.is_empty() => self.backlog.len() / (self.rules.slots * self.lanes.len()).max(1),
            None => 0,
        }
    }

    /// Ends the sequence of a refused request, which its later requests must not continue without it.
    pub fn end_by_refusal(&mut self, id: &CorrelationId, now: Instant) {
        let Some(&serial) = self.ids.get(id) else { return };
        self.end(serial);
        self.stir(serial, now);
    }

    /// Removes a cancelled request, if it still waits, and later requests of its sequence.
    pub fn remove(&mut self, ticket: Ticket, now: Instant) -> Vec<T> {
        let (serial, number) = (ticket.level, ticket.number);
        let mut removed = Vec::new();
        if let Some(&(instance, ticket)) = self.fed.get(&number) {
            let batcher = self.lanes[instance].batcher.as_mut();
            removed.extend(batcher.and_then(|batcher| batcher.remove(ticket)));
            if removed.is_empty() {
                return removed;
            }
        }
        let Some(sequence) = self.sequences.get_mut(&serial) else { return removed };
        let at = sequence.queue.partition_point(|waiting| waiting.number < number);
        if removed.is_empty() && sequence.queue.get(at).is_none_or(|waiting| waiting.number != number) {
            return removed;
        }
        self.waiting -= sequence.queue.len() - at;
        removed.extend(sequence.queue.drain(at..).map(|waiting| waiting.item));
        self.end(serial);
        self.forget_if_empty(serial);
        self.stir(serial, now);
        removed
    }

    /// Takes out what has waited for a slot longer than it may, and ends the sequences that were idle for too long.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        let mut refused = Vec::new();
        while let Some(&(deadline, serial)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)
        {
            self.deadlines.remove(&(deadline, serial));
            self.end(serial);
            let Some(sequence) = self.sequences.get_mut(&serial) else { continue };
            sequence.deadline = None;
            if sequence.place.is_none() {
                self.waiting -= sequence.queue.len();
                refused.extend(sequence.queue.drain(..).map(|waiting| waiting.item));
                self.forget_if_empty(serial);
            } else {
                tracing::debug!("a sequence ended because it was idle for too long: {}", sequence.id);
                self.stir(serial, now);
            }
        }
        refused
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The instances that changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.take_changed)
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        let batchers = self.lanes.iter().filter_map(|lane| lane.batcher.as_ref());
        self.waiting + batchers.map(Queue::len).sum::<usize>()
    }

    /// Whether that instance will never get anything more.
    pub fn is_done(&self, instance: usize) -> bool {
        let lane = &self.lanes[instance];
        self.closed
            && lane.slots.iter().all(|slot| slot.tenant.is_none())
            && lane.batcher.as_ref().is_none_or(|batcher| batcher.len() == 0)
    }

    /// No further request comes from outside, and nothing waits for company.
    pub fn close(&mut self, now: Instant) {
        self.closed = true;
        self.lanes.iter_mut().filter_map(|lane| lane.batcher.as_mut()).for_each(Queue::close);
        self.end_all(now);
        self.rules.hold = (0, 0);
        self.take_changed.extend(0..self.lanes.len());
    }

    /// No client continues its sequence any more.
    pub fn end_all(&mut self, now: Instant) {
        let slots = self.lanes.iter().flat_map(|lane| &lane.slots);
        let working: BTreeSet<_> = slots.filter_map(|slot| Some(slot.working?.serial)).collect();
        // A model that iterates is not done with a sequence before it has released its request.
        let is_open = |serial: &u64, sequence: &Sequence<_, _>| {
            self.rules.iterates && (working.contains(serial) || !sequence.queue.is_empty())
        };
        let ended = self.sequences.iter().filter(|(serial, sequence)| !is_open(serial, sequence));
        let ended: Vec<_> = ended.map(|(serial, _)| *serial).collect();
        for serial in ended {
            self.end(serial);
            self.stir(serial, now);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

#[cfg(test)]
mod tests;

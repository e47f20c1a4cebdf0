//! How a sequence gets a slot, and its life there: it starts, grows, idles, ends, and makes room.

use std::collections::VecDeque;
use std::time::Instant;

use nereid_backend_api::CorrelationId;

use super::{BatchFormer, Place, Prepare, QueuedItem, Sequence, SequenceItem, Sequences};

impl<T: SequenceItem, O: Prepare<T>, F: BatchFormer<T>> Sequences<T, O, F> {
    /// A sequence begins, in a slot or in the backlog.
    pub(super) fn begin(&mut self, id: CorrelationId, now: Instant) -> u64 {
        let serial = self.number();
        let place = self.free.pop_first().map(|(slot, instance)| Place { instance, slot });
        match place {
            Some(place) => self.lanes[place.instance].slots[place.slot].tenant = Some(serial),
            None => {
                self.backlog.insert(serial);
            }
        }
        let sequence = Sequence {
            id: id.clone(),
            place,
            began: now,
            open: true,
            queue: VecDeque::new(),
            deadline: None,
            kept: O::State::default(),
        };
        self.ids.insert(id, serial);
        self.sequences.insert(serial, sequence);
        serial
    }

    /// Puts a request at the end of its sequence.
    pub(super) fn queue(&mut self, serial: u64, item: T, now: Instant) -> u64 {
        let number = self.number();
        let Some(sequence) = self.sequences.get_mut(&serial) else { return number };
        if sequence.place.is_none()
            && let Some(expiry) = item.timeout().and_then(|timeout| now.checked_add(timeout))
            && sequence.deadline.is_none_or(|deadline| expiry < deadline)
        {
            if let Some(deadline) = sequence.deadline.replace(expiry) {
                self.deadlines.remove(&(deadline, serial));
            }
            self.deadlines.insert((expiry, serial));
        }
        if sequence.queue.capacity() == 0 {
            // A sequence seldom has more than one request.
            sequence.queue.reserve_exact(1);
        }
        sequence.queue.push_back(QueuedItem { item, number, since: now });
        self.waiting += 1;
        number
    }

    /// No further request comes for the sequence.
    pub(super) fn end(&mut self, serial: u64) {
        let Some(sequence) = self.sequences.get_mut(&serial).filter(|sequence| sequence.open) else { return };
        sequence.open = false;
        // Its id may belong to a sequence that began later.
        if self.ids.get(&sequence.id) == Some(&serial) {
            self.ids.remove(&sequence.id);
        }
    }

    /// After a change of a sequence that has a slot: sends its next request on its way, frees the slot if it is over,
    /// and notes when it will have been idle for too long.
    pub(super) fn stir(&mut self, serial: u64, now: Instant) {
        let Some(place) = self.sequences.get(&serial).and_then(|sequence| sequence.place) else { return };
        self.take_changed.insert(place.instance);
        self.feed(place, now);
        let Some(sequence) = self.sequences.get_mut(&serial) else { return };
        let working = self.lanes[place.instance].slots[place.slot].working.is_some();
        let idle = sequence.queue.is_empty() && !working;
        let deadline = (sequence.open && idle).then(|| now.checked_add(self.rules.idle)).flatten();
        let before = std::mem::replace(&mut sequence.deadline, deadline);
        if before != deadline {
            before.map(|before| self.deadlines.remove(&(before, serial)));
            self.deadlines.extend(deadline.map(|deadline| (deadline, serial)));
        }
        if sequence.queue.is_empty() && !sequence.open {
            self.sequences.remove(&serial);
            self.hand_over(place, now);
        }
    }

    pub(super) fn stir_place(&mut self, place: Place, now: Instant) {
        self.take_changed.insert(place.instance);
        if let Some(tenant) = self.lanes[place.instance].slots[place.slot].tenant {
            self.stir(tenant, now);
        }
    }

    /// The slot goes to the sequence that has waited for one longest.
    fn hand_over(&mut self, place: Place, now: Instant) {
        let next = self.backlog.pop_first();
        self.lanes[place.instance].slots[place.slot].tenant = next;
        match next.and_then(|next| Some((next, self.sequences.get_mut(&next)?))) {
            Some((next, sequence)) => {
                sequence.place = Some(place);
                self.stir(next, now);
            }
            None => {
                self.free.insert((place.slot, place.instance));
            }
        }
    }

    /// Removes a sequence of the backlog without waiting requests.
    pub(super) fn forget_if_empty(&mut self, serial: u64) {
        let gone = |sequence: &Sequence<_, _>| sequence.place.is_none() && sequence.queue.is_empty();
        if self.sequences.get(&serial).is_some_and(gone) {
            let deadline = self.sequences.remove(&serial).and_then(|sequence| sequence.deadline);
            deadline.map(|deadline| self.deadlines.remove(&(deadline, serial)));
            self.backlog.remove(&serial);
        }
    }

    /// Lets requests leave once the configured number has arrived.
    pub(super) fn release_hold(&mut self, now: Instant) {
        let (slots, backlog) = self.rules.hold;
        if (slots, backlog) == (0, 0) {
            return;
        }
        let queued = |in_slot: bool| {
            let sequences = self.sequences.values().filter(|sequence| sequence.place.is_some() == in_slot);
            sequences.map(|sequence| sequence.queue.len()).sum::<usize>()
        };
        if queued(true) >= slots && queued(false) >= backlog {
            self.rules.hold = (0, 0);
            self.take_changed.extend(0..self.lanes.len());
            let tenants = self.lanes.iter().flat_map(|lane| &lane.slots).filter_map(|slot| slot.tenant);
            for tenant in tenants.collect::<Vec<_>>() {
                self.stir(tenant, now);
            }
        }
    }
}

//! How requests leave the slots of an instance, and what follows when they are done.
//!
//! Knows nothing of how sequences get their slots, nor of when they end: [`tenancy`](super::tenancy) does.

use std::time::Instant;

use super::{
    BatchFormer, Place, Prepare, Queue, QueuedItem, Readiness, Refusal, RequestInModel, SequenceItem,
    Sequences,
};

impl<T: SequenceItem, O: Prepare<T>, F: BatchFormer<T>> Sequences<T, O, F> {
    /// Whether a batch may leave for that instance.
    pub fn readiness(&mut self, instance: usize, now: Instant) -> Readiness {
        match &mut self.lanes[instance].batcher {
            Some(batcher) => batcher.readiness(now),
            None => self.decide(instance, now).map_or_else(|readiness| readiness, |_| Readiness::Now),
        }
    }

    /// The batch that may leave now for that instance; empty if none may.
    pub fn take(&mut self, instance: usize, now: Instant) -> Vec<T> {
        if let Some(batcher) = &mut self.lanes[instance].batcher {
            return batcher.take(now);
        }
        let Ok(last) = self.decide(instance, now) else { return Vec::new() };
        let places = (0..=last).map(|slot| Place { instance, slot });
        let Some(first) = places.clone().position(|place| self.front(place).is_some()) else {
            return Vec::new();
        };
        let beside = self.front(Place { instance, slot: first });
        let go: Vec<_> = places
            .clone()
            .map(|place| match (self.front(place), beside) {
                (Some(front), Some(beside)) => {
                    place.slot == first || self.preparer.alike(&beside.item, &front.item)
                }
                _ => false,
            })
            .collect();
        let mut batch = Vec::with_capacity(last + 1);
        for (place, goes) in places.zip(go) {
            batch.push(if goes { self.leave(place).map(|(item, _)| item) } else { None });
            if goes {
                // The slot may be another sequence's from here on.
                self.stir_place(place, now);
            }
        }
        let fillers: Vec<_> = match batch.get(first) {
            Some(Some(beside)) => {
                batch.iter().map(|item| item.is_none().then(|| self.preparer.filler(beside))).collect()
            }
            _ => Vec::new(),
        };
        batch.into_iter().zip(fillers).filter_map(|(item, filler)| item.or(filler)).collect()
    }

    /// The instance has executed what it took.
    pub fn executed(&mut self, instance: usize, now: Instant) {
        if self.by_turns() {
            return;
        }
        for slot in 0..self.rules.slots {
            let place = Place { instance, slot };
            if self.done(place).is_some() {
                self.stir_place(place, now);
            }
        }
    }

    /// The request that left for the model from that place is released.
    pub fn over(&mut self, place: Place, now: Instant) {
        let Some(RequestInModel { serial, .. }) = self.done(place) else { return };
        if self.rules.iterates {
            self.end(serial);
        }
        self.stir_place(place, now);
    }

    /// The request that left for the model from that place comes again, or is given back with the reason why not.
    pub fn again(&mut self, place: Place, mut item: T, now: Instant) -> Result<(), (T, Refusal)> {
        let working = self.done(place);
        let going_on = working.and_then(|working| {
            let sequence = self.sequences.get_mut(&working.serial).filter(|sequence| sequence.open)?;
            Some((working, sequence))
        });
        let Some((RequestInModel { serial, number }, sequence)) = going_on else {
            self.stir_place(place, now);
            return Err((item, Refusal::NotStarted));
        };
        item.repeated();
        // It was there before those that wait behind it, and its client knows it by the same number.
        sequence.queue.push_front(QueuedItem { item, number, since: now });
        self.waiting += 1;
        self.stir(serial, now);
        Ok(())
    }

    /// Whether a request is done when it is released ([`over`](Self::over)), rather than when it was executed.
    pub fn by_turns(&self) -> bool {
        self.rules.iterates || self.lanes.iter().any(|lane| lane.batcher.is_some())
    }

    /// The request that leaves next from a slot.
    fn front(&self, place: Place) -> Option<&QueuedItem<T>> {
        let slot = &self.lanes[place.instance].slots[place.slot];
        let tenant = slot.tenant.filter(|_| slot.working.is_none())?;
        self.sequences.get(&tenant)?.queue.front()
    }

    /// The next request of a slot leaves for the model, prepared.
    fn leave(&mut self, place: Place) -> Option<(T, u64)> {
        let slot = &mut self.lanes[place.instance].slots[place.slot];
        let tenant = slot.tenant.filter(|_| slot.working.is_none())?;
        let sequence = self.sequences.get_mut(&tenant)?;
        let QueuedItem { mut item, number, .. } = sequence.queue.pop_front()?;
        if sequence.queue.is_empty() {
            // What many requests needed at a time is not kept for as long as the sequence is open.
            sequence.queue.shrink_to(1);
        }
        slot.working = Some(RequestInModel { serial: tenant, number });
        self.waiting -= 1;
        self.preparer.prepare(&mut item, &mut sequence.kept, place);
        Some((item, number))
    }

    /// The next request of a slot goes to the instance's batcher, if it has one and the request ahead is done.
    pub(super) fn feed(&mut self, place: Place, now: Instant) {
        if self.lanes[place.instance].batcher.is_none() {
            return;
        }
        let Some((item, number)) = self.leave(place) else { return };
        let lane = &mut self.lanes[place.instance];
        if let Some(batcher) = &mut lane.batcher {
            let ticket = batcher.insert(0, item, None, now);
            self.fed.insert(number, (place.instance, ticket));
        }
    }

    /// The request on its way from that place is done.
    fn done(&mut self, place: Place) -> Option<RequestInModel> {
        let slot = self.lanes.get_mut(place.instance)?.slots.get_mut(place.slot)?;
        let working = slot.working.take()?;
        self.fed.remove(&working.number);
        Some(working)
    }

    /// In the direct strategy: the last slot that has a request which leaves now, or when some do.
    fn decide(&self, instance: usize, now: Instant) -> Result<usize, Readiness> {
        if self.rules.hold != (0, 0) {
            return Err(Readiness::Nothing);
        }
        let ready = (0..self.rules.slots).filter_map(|slot| {
            let front = self.front(Place { instance, slot })?;
            Some((slot, front.since))
        });
        let (mut last, mut oldest, mut count) = (None, now, 0_usize);
        for (slot, since) in ready {
            (last, oldest, count) = (Some(slot), oldest.min(since), count + 1);
        }
        let last = last.ok_or(Readiness::Nothing)?;
        let Some((delay, share)) = self.rules.wait.filter(|_| !self.closed) else { return Ok(last) };
        let leaves = oldest + delay;
        if count as f32 / self.rules.slots as f32 >= share || leaves <= now {
            return Ok(last);
        }
        Err(Readiness::At(leaves))
    }
}

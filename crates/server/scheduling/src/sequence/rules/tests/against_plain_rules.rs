//! Random traffic through the rules, compared with what must always hold: the rules of the module's doc, written down
//! plainly over a list of all that ever happened.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    /// A request of that sequence comes, perhaps the first or the last.
    Comes(u8, bool, bool),
    /// Cancels a request, counted from the last one.
    Cancelled(usize),
    /// That instance takes what it may, and is done with what it took before.
    Takes(usize),
    /// The oldest request on its way is released.
    Released,
    /// Time goes by.
    Quiet(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..5_u8, prop::bool::weighted(0.3), prop::bool::weighted(0.2))
            .prop_map(|(id, start, end)| Event::Comes(id, start, end)),
        1 => (0..4_usize).prop_map(Event::Cancelled),
        4 => (0..2_usize).prop_map(Event::Takes),
        4 => Just(Event::Released),
        1 => (0..1500_u64).prop_map(Event::Quiet),
    ]
}

/// The record of an accepted request.
#[derive(Debug)]
struct Known {
    ticket: Ticket,
    sequence: CorrelationId,
    place: Option<Place>,
    /// Whether the model executes it.
    working: bool,
    gone: bool,
}

struct Run {
    at: Clocked,
    oldest: bool,
    slots: usize,
    known: Vec<Known>,
    /// The serial numbers of the open sequences, by id.
    running: HashMap<CorrelationId, u64>,
    on_their_way: VecDeque<(usize, Place)>,
}

/// Names of requests: their numbers.
fn name(number: usize) -> &'static str {
    Box::leak(number.to_string().into_boxed_str())
}

impl Run {
    fn step(&mut self, event: &Event) {
        match event {
            Event::Comes(id, start, end) => {
                let sequence = CorrelationId::Number(u64::from(*id) + 1);
                let flags = SequenceFlags { start: *start, end: *end };
                let job =
                    Job { name: name(self.known.len()), sequence: sequence.clone(), flags, ..Job::default() };
                let now = self.at.now();
                match self.at.sequences.push(job, now) {
                    Ok(ticket) => {
                        // Taken where it begins its sequence or one of that id runs, and only there.
                        assert!(*start || self.running.contains_key(&sequence));
                        let serial = *self.running.entry(sequence.clone()).or_insert(ticket.level);
                        assert_eq!(serial, ticket.level, "a sequence of that id runs already");
                        if *end {
                            self.running.remove(&sequence);
                        }
                        self.known.push(Known { ticket, sequence, place: None, working: false, gone: false });
                    }
                    Err((_, why)) => {
                        assert_eq!(why, Refusal::NotStarted);
                        assert!(!*start && !self.running.contains_key(&sequence));
                    }
                }
            }
            Event::Cancelled(back) => {
                let Some(number) = self.known.len().checked_sub(back + 1) else { return };
                let now = self.at.now();
                let (ticket, before) = (self.known[number].ticket, self.at.sequences.len());
                let removed = self.at.sequences.remove(ticket, now);
                assert_eq!(before - removed.len(), self.at.sequences.len());
                let waits =
                    |known: &Known| !known.gone && !known.working && known.ticket.level == ticket.level;
                let waited = waits(&self.known[number]);
                let expected: Vec<_> =
                    (number..self.known.len()).filter(|&it| waited && waits(&self.known[it])).collect();
                let numbers: Vec<usize> = removed.iter().map(|job| job.name.parse().unwrap()).collect();
                assert_eq!(numbers, expected, "it and what waits behind it, of its sequence");
                for (number, job) in numbers.iter().zip(&removed) {
                    self.known[*number].gone = true;
                    if let Some((place, _)) = job.prepared {
                        // It was in a batcher: its turn ends when it is dropped.
                        self.at.sequences.over(place, now);
                    }
                }
                let sequence = self.known[number].sequence.clone();
                if waited && self.running.get(&sequence) == Some(&ticket.level) {
                    self.running.remove(&sequence);
                }
            }
            Event::Takes(instance) => {
                let now = self.at.now();
                if !self.oldest {
                    // An instance requests a batch once it has finished the last.
                    self.at.sequences.executed(*instance, now);
                    self.done(|place| place.instance == *instance, usize::MAX);
                }
                let batch = self.at.sequences.take(*instance, now);
                for (index, job) in batch.iter().enumerate().filter(|(_, job)| job.prepared.is_some()) {
                    let (place, _) = job.prepared.unwrap();
                    assert!(place.instance == *instance && (self.oldest || place.slot == index));
                    self.leaves(job.name.parse().unwrap(), place);
                }
                let last = batch.last().map(|job| job.prepared.is_some());
                assert!(last != Some(false), "a filler behind the last request");
            }
            Event::Released => {
                if self.oldest && !self.on_their_way.is_empty() {
                    let (_, place) = self.on_their_way[0];
                    self.done(|_| true, 1);
                    self.at.over(place.instance, place.slot);
                }
            }
            Event::Quiet(millis) => {
                self.at.now += ms(*millis);
                let now = self.at.now();
                assert!(self.at.sequences.expire(now).is_empty(), "nothing has a timeout");
                // Sequences may have ended, of which nothing waits nor is on its way.
                let ids = &self.at.sequences.ids;
                let ended: Vec<_> = self.running.iter().filter(|(id, _)| !ids.contains_key(*id)).collect();
                for (id, serial) in ended {
                    let busy = |known: &&Known| !known.gone && known.ticket.level == *serial;
                    assert_eq!(self.known.iter().filter(busy).count(), 0, "{id} was not idle");
                }
                self.running.retain(|id, _| ids.contains_key(id));
            }
        }
    }

    fn leaves(&mut self, number: usize, place: Place) {
        let serial = self.known[number].ticket.level;
        for (other, known) in self.known.iter().enumerate() {
            let same = known.ticket.level == serial;
            assert!(!(same && known.working), "{other} of the sequence is on its way when {number} leaves");
            assert!(!(same && other < number && !known.gone), "{other} is overtaken by {number}");
            assert!(!(known.working && known.place == Some(place)), "{place:?} is taken by {other}");
            assert!(!same || known.place.is_none_or(|before| before == place), "the sequence left its slot");
        }
        assert!(place.slot < self.slots);
        let known = &mut self.known[number];
        (known.working, known.place) = (true, Some(place));
        self.on_their_way.push_back((number, place));
    }

    fn done(&mut self, which: impl Fn(Place) -> bool, most: usize) {
        let mut left = VecDeque::new();
        let mut count = 0;
        for (number, place) in std::mem::take(&mut self.on_their_way) {
            if which(place) && count < most {
                count += 1;
                (self.known[number].working, self.known[number].gone) = (false, true);
            } else {
                left.push_back((number, place));
            }
        }
        self.on_their_way = left;
    }

    /// Everything leaves in the end, and nothing is left behind.
    fn end(mut self, instances: usize) {
        let now = self.at.now();
        self.at.sequences.close(now);
        for _ in 0..4 * self.known.len() + 4 {
            (0..instances).for_each(|instance| self.step(&Event::Takes(instance)));
            self.step(&Event::Released);
        }
        (0..instances).for_each(|instance| self.step(&Event::Takes(instance)));
        assert!(self.known.iter().all(|known| known.gone), "{:?}", self.known);
        let sequences = &self.at.sequences;
        assert!(sequences.ids.is_empty() && sequences.sequences.is_empty() && sequences.fed.is_empty());
        assert!(sequences.backlog.is_empty() && sequences.deadlines.is_empty() && sequences.len() == 0);
        assert_eq!(sequences.free.len(), instances * self.slots);
        assert!((0..instances).all(|instance| sequences.is_done(instance)));
    }
}

proptest! {
    #[test]
    fn sequences_keep_their_order_and_their_slots(
        events in vec(event(), 0..80),
        slots in 1..4_usize,
        by_age in any::<bool>(),
    ) {
        let instances = 2;
        let at = if by_age { oldest(rules(slots), instances, batches_of(2)) } else { direct(rules(slots), instances) };
        let (known, running, on_their_way) = Default::default();
        let mut run = Run { at, oldest: by_age, slots, known, running, on_their_way };
        events.iter().for_each(|event| run.step(event));
        run.end(instances);
    }
}

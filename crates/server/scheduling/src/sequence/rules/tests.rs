//! The sequence batcher's rules, on a clock that the tests move.

mod against_plain_rules;

use super::super::super::Item;
use super::super::super::batcher;
use super::*;

/// A request of the tests; fillers have no name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Job {
    name: &'static str,
    sequence: CorrelationId,
    flags: SequenceFlags,
    timeout: Option<Duration>,
    shape: u8,
    /// Where it left from, and how many of its sequence had left before it.
    prepared: Option<(Place, usize)>,
}

impl Item for Job {
    fn refuse(self, _: Refusal) {}

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

impl BatchItem for Job {
    fn batch_size(&self) -> usize {
        1
    }
    fn priority(&self) -> u64 {
        0
    }
}

impl SequenceItem for Job {
    fn sequence(&self) -> &CorrelationId {
        &self.sequence
    }
    fn flags(&self) -> SequenceFlags {
        self.flags
    }
    fn repeated(&mut self) {
        self.flags = SequenceFlags::default();
    }
}

/// Jobs of the same shape go together; what is kept of a sequence is how many have left.
struct Shapes;

impl Prepare<Job> for Shapes {
    type State = usize;

    fn alike(&self, first: &Job, job: &Job) -> bool {
        first.shape == job.shape
    }
    fn prepare(&mut self, job: &mut Job, kept: &mut usize, place: Place) {
        if job.flags.start {
            *kept = 0;
        }
        job.prepared = Some((place, *kept));
        *kept += 1;
    }
    fn state_bytes(kept: &usize) -> usize {
        100 * kept
    }
    fn filler(&mut self, beside: &Job) -> Job {
        Job { shape: beside.shape, ..Job::default() }
    }
}

impl BatchFormer<Job> for Shapes {
    fn begin(&mut self, _: &Job) {}
    fn joins(&mut self, first: &Job, job: &Job) -> bool {
        first.shape == job.shape
    }
    fn leave(&mut self, batch: Vec<Job>) -> Vec<Job> {
        batch
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A sequence batcher, and a clock that stands until it is moved.
struct Clocked {
    sequences: Sequences<Job, Shapes, Shapes>,
    start: Instant,
    now: Duration,
    tickets: HashMap<&'static str, Ticket>,
}

fn rules(slots: usize) -> Rules {
    Rules { slots, idle: ms(1000), backlog: usize::MAX, iterates: false, wait: None, hold: (0, 0) }
}

fn direct(rules: Rules, instances: usize) -> Clocked {
    Clocked::new(Sequences::new(rules, Shapes, instances, || None))
}

fn oldest(rules: Rules, instances: usize, batch: batcher::Rules) -> Clocked {
    Clocked::new(Sequences::new(rules, Shapes, instances, || Some(Batcher::new(batch.clone(), Shapes))))
}

fn batches_of(max_batch_size: usize) -> batcher::Rules {
    batcher::Rules { max_batch_size, preferred: [max_batch_size].into(), ..batcher::Rules::default() }
}

impl Clocked {
    fn new(sequences: Sequences<Job, Shapes, Shapes>) -> Self {
        Self { sequences, start: Instant::now(), now: ms(0), tickets: HashMap::new() }
    }

    fn now(&self) -> Instant {
        self.start + self.now
    }

    fn at(&mut self, millis: u64) -> &mut Self {
        self.now = ms(millis);
        self
    }

    /// Brings a job as `id`, `id^` for a start, `id$` for an end; its name is what stands behind a colon.
    fn push(&mut self, text: &'static str) -> Result<(), Refusal> {
        self.push_job(job(text))
    }

    fn push_job(&mut self, job: Job) -> Result<(), Refusal> {
        let name = job.name;
        let ticket = self.sequences.push(job, self.now()).map_err(|(_, why)| why)?;
        self.tickets.insert(name, ticket);
        Ok(())
    }

    fn pushed(&mut self, texts: &[&'static str]) -> &mut Self {
        texts.iter().for_each(|text| self.push(text).unwrap());
        self
    }

    /// The names of what leaves for an instance, `-` for a filler.
    fn take(&mut self, instance: usize) -> Vec<&'static str> {
        let now = self.now();
        let batch = self.sequences.take(instance, now);
        batch.into_iter().map(|job| if job.prepared.is_some() { job.name } else { "-" }).collect()
    }

    /// As `take`, and has it executed.
    fn run(&mut self, instance: usize) -> Vec<&'static str> {
        let batch = self.take(instance);
        let now = self.now();
        self.sequences.executed(instance, now);
        batch
    }

    fn over(&mut self, instance: usize, slot: usize) {
        let now = self.now();
        self.sequences.over(Place { instance, slot }, now);
    }

    fn expire(&mut self) -> Vec<&'static str> {
        let now = self.now();
        self.sequences.expire(now).into_iter().map(|job| job.name).collect()
    }

    fn cancel(&mut self, name: &str) -> Vec<&'static str> {
        let now = self.now();
        self.sequences.remove(self.tickets[name], now).into_iter().map(|job| job.name).collect()
    }
}

fn job(text: &'static str) -> Job {
    let (head, name) = text.split_once(':').unwrap_or((text, text));
    let id = head.trim_end_matches(['^', '$']);
    let flags = SequenceFlags { start: head.contains('^'), end: head.contains('$') };
    Job { name, sequence: CorrelationId::Text(id.into()), flags, ..Job::default() }
}

#[test]
fn sequences_fill_the_lowest_slots_of_all_instances_and_keep_them() {
    let mut at = direct(rules(2), 2);
    at.pushed(&["a^", "b^", "c^", "d^", "a:a2"]);
    assert_eq!(at.run(0), ["a^", "c^"]);
    assert_eq!((at.run(0), at.run(1)), (vec!["a2"], vec!["b^", "d^"]));
    // A slot below the last that has a request is filled.
    at.pushed(&["c:c2"]);
    assert_eq!(at.run(0), ["-", "c2"]);
    assert_eq!(at.sequences.len(), 0);
}

#[test]
fn a_sequence_that_waits_for_a_slot_gets_that_of_the_first_that_ends() {
    let mut at = direct(rules(1), 2);
    at.pushed(&["a^", "b^", "c^", "d^", "c$:c2", "b$:b2"]);
    assert_eq!((at.run(0), at.run(1)), (vec!["a^"], vec!["b^"]));
    assert_eq!(at.run(1), ["b2"]);
    assert_eq!((at.run(0), at.run(1)), (vec![], vec!["c^"]));
    // c is over, though its last request has not left: the id starts a new sequence, behind d.
    at.pushed(&["c^:new"]);
    assert_eq!(at.run(1), ["c2"]);
    assert_eq!(at.run(1), ["d^"]);
    at.pushed(&["a$:a2"]);
    assert_eq!(at.run(0), ["a2"]);
    assert_eq!(at.run(0), ["new"]);
}

#[test]
fn requests_that_go_on_with_no_sequence_are_refused() {
    let mut at = direct(rules(1), 1);
    assert_eq!(at.push("a"), Err(Refusal::NotStarted));
    at.pushed(&["a^$"]);
    assert_eq!(at.push("a"), Err(Refusal::NotStarted));
    at.pushed(&["a^:again"]);
    assert_eq!((at.run(0), at.run(0)), (vec!["a^$"], vec!["again"]));
}

#[test]
fn a_start_in_a_running_sequence_begins_it_anew_in_its_place() {
    let mut at = direct(rules(1), 1);
    at.pushed(&["a^", "a:a2", "a^:a3"]);
    let kept = |at: &mut Clocked| {
        let now = at.now();
        let batch = at.sequences.take(0, now);
        at.sequences.executed(0, now);
        batch[0].prepared.map(|(_, before)| before)
    };
    assert_eq!([kept(&mut at), kept(&mut at), kept(&mut at)], [Some(0), Some(1), Some(0)]);
}

#[test]
fn requests_of_other_shapes_wait_for_the_next_batch() {
    let mut at = direct(rules(3), 1);
    at.pushed(&["a^"]);
    at.push_job(Job { shape: 1, ..job("b^") }).unwrap();
    at.pushed(&["c^"]);
    assert_eq!((at.run(0), at.run(0)), (vec!["a^", "-", "c^"], vec!["-", "b^"]));
}

#[test]
fn an_idle_sequence_loses_its_slot_and_one_that_waits_or_executes_is_not_idle() {
    let mut at = direct(rules(1), 1);
    at.pushed(&["a^", "b^"]);
    at.at(5000);
    assert!(at.sequences.next_expiry().is_none());
    assert_eq!(at.take(0), ["a^"]);
    at.at(9000);
    assert!(at.sequences.next_expiry().is_none());
    let now = at.now();
    at.sequences.executed(0, now);
    assert_eq!(at.sequences.next_expiry(), Some(at.start + ms(10_000)));
    at.at(9500).pushed(&["a:a2"]);
    assert_eq!(at.run(0), ["a2"]);
    at.at(10_499);
    assert_eq!((at.expire(), at.run(0)), (vec![], vec![]));
    at.at(10_500);
    assert!(at.expire().is_empty());
    assert_eq!((at.run(0), at.push("a")), (vec!["b^"], Err(Refusal::NotStarted)));
}

#[test]
fn a_sequence_waits_for_a_slot_no_longer_than_the_shortest_timeout_of_its_requests() {
    let mut at = direct(rules(1), 1);
    at.pushed(&["a^"]);
    let waits = |millis, job: Job| Job { timeout: Some(ms(millis)), ..job };
    at.push_job(waits(300, job("b^"))).unwrap();
    at.at(100).push_job(waits(100, job("b:b2"))).unwrap();
    at.pushed(&["c^", "b:b3"]);
    assert_eq!(at.sequences.next_expiry(), Some(at.start + ms(200)));
    at.at(200);
    assert_eq!(at.expire(), ["b^", "b2", "b3"]);
    assert_eq!((at.push("b"), at.sequences.len()), (Err(Refusal::NotStarted), 2));
    // In its slot a request waits as long as it has to.
    at.push_job(waits(1, job("a$:a2"))).unwrap();
    at.at(900);
    assert_eq!((at.expire(), at.run(0), at.run(0), at.run(0)), (vec![], vec!["a^"], vec!["a2"], vec!["c^"]));
}

#[test]
fn a_cancelled_request_ends_its_sequence_and_those_before_it_are_executed() {
    let mut at = direct(rules(1), 1);
    at.pushed(&["a^", "a:a2", "a:a3", "b^", "b:b2", "c^"]);
    assert_eq!(at.cancel("a2"), ["a2", "a3"]);
    assert_eq!((at.cancel("a2"), at.push("a")), (vec![], Err(Refusal::NotStarted)));
    // In the backlog too; one of which nothing is left does not get a slot.
    assert_eq!(at.cancel("b^"), ["b^", "b2"]);
    assert_eq!((at.run(0), at.run(0)), (vec!["a^"], vec!["c^"]));
    assert!(at.cancel("c^").is_empty());
    assert_eq!(at.sequences.len(), 0);
}

#[test]
fn a_batch_waits_for_its_share_of_slots_or_as_long_as_it_may() {
    let mut at = direct(Rules { wait: Some((ms(50), 0.5)), ..rules(4) }, 1);
    at.pushed(&["a^"]);
    assert_eq!((at.run(0), at.sequences.readiness(0, at.start)), (vec![], Readiness::At(at.start + ms(50))));
    at.at(20).pushed(&["b^"]);
    assert_eq!(at.run(0), ["a^", "b^"]);
    at.pushed(&["b:b2"]);
    assert_eq!(at.at(69).run(0), [""; 0]);
    assert_eq!(at.at(70).run(0), ["-", "b2"]);
}

#[test]
fn nothing_leaves_before_so_many_wait_as_a_test_wants() {
    let mut at = direct(Rules { hold: (2, 1), ..rules(1) }, 2);
    at.pushed(&["a^", "b^"]);
    assert_eq!(at.run(0), [""; 0]);
    at.pushed(&["c^"]);
    assert_eq!((at.run(0), at.run(1)), (vec!["a^"], vec!["b^"]));
}

#[test]
fn executions_before_a_request_are_those_of_its_sequence_or_of_sequences_that_wait_for_a_slot() {
    for slots in [1, 2, 3] {
        for mut at in [direct(rules(slots), 2), oldest(rules(slots), 2, batches_of(1))] {
            let before = |at: &Clocked, number: usize| {
                let sequence = CorrelationId::Number(number as u64);
                at.sequences.executions_before(&Job { sequence, ..Job::default() })
            };
            let start = SequenceFlags { start: true, end: false };
            for number in 1..=6 * slots {
                // Both instances have slots.
                let rounds = (number - 1).saturating_sub(2 * slots) / (2 * slots);
                assert_eq!(before(&at, number), rounds, "{slots} {number}");
                let sequence = CorrelationId::Number(number as u64);
                let job = Job { name: "job", sequence, flags: start, ..Job::default() };
                assert_eq!(at.push_job(job), Ok(()));
            }
            let waiting = before(&at, 1);
            for count in 1..4 {
                let job = Job { name: "job", sequence: CorrelationId::Number(1), ..Job::default() };
                assert_eq!(at.push_job(job), Ok(()));
                assert_eq!(before(&at, 1), waiting + count);
            }
        }
    }
}

#[test]
fn sequence_of_a_refused_request_ends_after_those_that_wait() {
    for mut at in [direct(rules(1), 1), oldest(rules(1), 1, batches_of(1))] {
        for text in ["1^:a", "1:b", "2^:c"] {
            at.push(text).unwrap();
        }
        let now = at.now();
        let first = job("1:d").sequence;
        at.sequences.end_by_refusal(&first, now);
        assert_eq!(at.push("1:d"), Err(Refusal::NotStarted));
        let mut left = Vec::new();
        for _ in 0..3 {
            left.extend(at.take(0));
            let now = at.now();
            at.sequences.executed(0, now);
            at.over(0, 0);
        }
        assert_eq!(left, ["a", "b", "c"]);
        assert!(!at.sequences.is_open(&first));
    }
}

#[test]
fn the_backlog_is_bounded_and_has_room_again_when_a_slot_is_free() {
    for (slots, backlog) in [(1, 0), (1, 1), (2, 3), (4, 2)] {
        for mut at in [
            direct(Rules { backlog, ..rules(slots) }, 1),
            oldest(Rules { backlog, ..rules(slots) }, 1, batches_of(1)),
        ] {
            let push = |at: &mut Clocked, number: usize, flags| {
                let sequence = CorrelationId::Number(number as u64);
                let job = Job { name: "job", sequence, flags, ..Job::default() };
                let now = at.now();
                at.sequences.push(job, now).map(drop).map_err(|(_, why)| why)
            };
            let start = SequenceFlags { start: true, end: false };
            let taken = slots + backlog;
            (1..=taken).for_each(|number| assert_eq!(push(&mut at, number, start), Ok(())));
            assert_eq!(push(&mut at, taken + 1, start), Err(Refusal::BacklogFull(backlog)));
            // Those that wait may go on with their sequences.
            (1..=taken)
                .for_each(|number| assert_eq!(push(&mut at, number, SequenceFlags::default()), Ok(())));
            let now = at.now();
            at.sequences.end_all(now);
            while at.sequences.len() > 0 {
                at.take(0);
                let now = at.now();
                at.sequences.executed(0, now);
                (0..slots).for_each(|slot| at.over(0, slot));
            }
            (1..=taken).for_each(|number| assert_eq!(push(&mut at, number, start), Ok(())));
        }
    }
}

#[test]
fn the_oldest_of_all_sequences_go_together_and_one_of_each_at_a_time() {
    let mut at = oldest(rules(4), 1, batches_of(2));
    at.pushed(&["a^", "a:a2", "b^", "c^", "c$:c2"]);
    assert_eq!((at.take(0), at.take(0), at.take(0)), (vec!["a^", "b^"], vec!["c^"], vec![]));
    at.over(0, 2);
    at.over(0, 0);
    assert_eq!(at.take(0), ["c2", "a2"]);
    // What ended leaves its slot, but the next sequence waits until its last request is done.
    at.pushed(&["d^", "e^", "f^"]);
    assert_eq!(at.take(0), ["e^"]);
    at.over(0, 2);
    assert_eq!(at.take(0), ["d^"]);
    at.over(0, 1);
    assert_eq!(at.sequences.next_expiry(), Some(at.start + ms(1000)));
}

#[test]
fn cancelled_request_leaves_the_batcher() {
    let mut at =
        oldest(rules(2), 1, batcher::Rules { delay: ms(50), preferred: [4].into(), ..batches_of(4) });
    at.pushed(&["a^", "a:a2", "b^"]);
    assert_eq!(at.cancel("a^"), ["a^", "a2"]);
    at.over(0, 0);
    assert_eq!((at.at(50).take(0), at.cancel("b^")), (vec!["b^"], vec![]));
    at.pushed(&["c^"]);
    assert_eq!(at.at(100).take(0), ["c^"]);
}

#[test]
fn a_request_that_comes_again_goes_on_with_its_sequence_until_it_is_released_or_cancelled() {
    for oldest_first in [false, true] {
        let rules = Rules { iterates: true, ..rules(1) };
        let mut at = if oldest_first { oldest(rules, 1, batches_of(1)) } else { direct(rules, 1) };
        at.pushed(&["a^", "b^"]);
        let now = at.now();
        let mut job = at.sequences.take(0, now).remove(0);
        let place = Place { instance: 0, slot: 0 };
        for round in 1..4 {
            assert!(at.take(0).is_empty());
            at.sequences.again(place, job, now).unwrap();
            if round == 3 {
                // Its client knows it by the number that it had from the beginning.
                assert_eq!(at.cancel("a^"), ["a^"]);
                if oldest_first {
                    at.over(0, 0);
                }
                break;
            }
            job = at.sequences.take(0, now).remove(0);
            assert_eq!((job.flags, job.prepared), (SequenceFlags::default(), Some((place, round))));
        }
        assert_eq!(at.take(0), ["b^"]);
        assert_eq!(at.push("a"), Err(Refusal::NotStarted));
        at.over(0, 0);
        assert_eq!(at.push("b"), Err(Refusal::NotStarted));
        // Released already, or never there.
        at.over(0, 0);
        assert!(matches!(at.sequences.again(place, self::job("b"), now), Err((_, Refusal::NotStarted))));
    }
}

#[test]
fn a_request_that_comes_again_later_than_its_sequence_may_be_idle_goes_on() {
    for oldest_first in [false, true] {
        // How long the model keeps the request each time; a sequence may be idle for a second.
        for held in [[0, 0, 0], [999, 1000, 1001], [1001, 0, 1001], [5000, 5000, 5000], [1, 3_600_000, 2000]]
        {
            let rules = Rules { iterates: true, ..rules(1) };
            let mut at = if oldest_first { oldest(rules, 1, batches_of(1)) } else { direct(rules, 1) };
            at.pushed(&["a^", "b^"]);
            let (place, mut millis) = (Place { instance: 0, slot: 0 }, 0);
            for time in held {
                let now = at.now();
                let job = at.sequences.take(0, now).remove(0);
                assert_eq!((job.name, at.sequences.next_expiry()), ("a^", None), "{held:?}");
                millis += time;
                assert_eq!(at.at(millis).expire(), [""; 0], "{held:?}");
                let now = at.now();
                assert!(at.sequences.again(place, job, now).is_ok(), "{held:?} at {time}");
                assert_eq!(at.expire(), [""; 0]);
            }
            assert_eq!(at.take(0), ["a^"]);
            at.over(0, 0);
            assert_eq!((at.take(0), at.push("a")), (vec!["b^"], Err(Refusal::NotStarted)));
        }
    }
}

#[test]
fn after_the_end_what_waits_leaves_and_idle_sequences_hold_up_nobody() {
    for oldest_first in [false, true] {
        let batch = batcher::Rules { delay: ms(50), preferred: [4].into(), ..batches_of(4) };
        let mut at = if oldest_first {
            oldest(rules(1), 1, batch)
        } else {
            direct(Rules { wait: Some((ms(50), 1.0)), ..rules(1) }, 1)
        };
        at.at(60).pushed(&["a^"]);
        assert_eq!(at.at(120).take(0), ["a^"]);
        at.pushed(&["b^", "b:b2"]);
        assert!(!at.sequences.is_done(0));
        let now = at.now();
        at.sequences.executed(0, now);
        at.over(0, 0);
        at.sequences.close(now);
        assert_eq!((at.push("b"), at.push("c^")), (Err(Refusal::Closing), Err(Refusal::Closing)));
        for last in ["b^", "b2"] {
            assert_eq!(at.take(0), [last]);
            at.sequences.executed(0, now);
            at.over(0, 0);
        }
        assert!(at.sequences.is_done(0) && at.sequences.next_expiry().is_none());
    }
}

#[test]
fn open_sequences_are_listed_from_the_oldest_on() {
    let mut clocked = direct(rules(2), 1);
    clocked.at(1).pushed(&["1^:a"]).at(2).pushed(&["2^:b", "1:c"]).at(3).pushed(&["3^:d", "4^$:e"]);
    assert_eq!(clocked.run(0), ["a", "b"]);
    let start = clocked.start;
    let found = |clocked: &Clocked, most| {
        let (count, open) = clocked.sequences.open(most);
        let row = |one: OpenSequence| {
            let place = one.place.map(|(instance, slot)| instance * 10 + slot);
            (one.id.to_string(), place, (one.began - start).as_millis(), one.waiting, one.state_bytes)
        };
        (count, open.into_iter().map(row).collect::<Vec<_>>())
    };
    // Sequence 4 has ended, though its request waits.
    let all = [
        ("'1'".to_owned(), Some(0), 1, 1, 100),
        ("'2'".to_owned(), Some(1), 2, 0, 100),
        ("'3'".to_owned(), None, 3, 1, 0),
    ];
    for most in 0..5 {
        assert_eq!(found(&clocked, most), (3, all[..most.min(3)].to_vec()), "{most}");
    }
}

//! The rule on a simulated clock, and the hand-off that applies it.

use std::sync::{Arc, Mutex};

use nereid_backend_api::Flow;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::batcher::{BatchFormer, BatchItem, Batcher, Policy, Rules};
use crate::fair::tests::flow;
use crate::fifo::Fifo;
use crate::handoff::Handoff;
use crate::{Enqueued, Item, Queue, Refusal};

type Refusals = Arc<Mutex<Vec<Refusal>>>;

#[derive(Clone, Debug, Default)]
struct Job {
    id: usize,
    size: usize,
    level: u64,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
    flow: Flow,
    refusals: Refusals,
}

impl Item for Job {
    fn refuse(self, why: Refusal) {
        self.refusals.lock().unwrap().push(why);
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn flow(&self) -> Flow {
        self.flow
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

impl BatchItem for Job {
    fn batch_size(&self) -> usize {
        self.size
    }

    fn priority(&self) -> u64 {
        self.level
    }
}

struct Any;

impl BatchFormer<Job> for Any {
    fn begin(&mut self, _: &Job) {}

    fn joins(&mut self, _: &Job, _: &Job) -> bool {
        true
    }

    fn leave(&mut self, batch: Vec<Job>) -> Vec<Job> {
        batch
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn warm_up(service: &ServiceTime, sample: Duration) {
    (0..ServiceTime::COLD + ServiceTime::ENOUGH).for_each(|_| service.add(sample));
}

fn warm(sample: Duration) -> ServiceTime {
    let service = ServiceTime::default();
    warm_up(&service, sample);
    service
}

#[test]
fn average_is_unknown_until_there_were_enough_executions_and_leaves_out_the_first() {
    let service = ServiceTime::default();
    for count in 0..ServiceTime::COLD + ServiceTime::ENOUGH {
        assert_eq!((service.mean(), service.least_wait(100, 1)), (None, None), "{count}");
        service.add(if count < ServiceTime::COLD { ms(60_000) } else { ms(3) });
    }
    assert_eq!(service.mean(), Some(ms(3)));
    (0..200).for_each(|_| service.add(ms(9)));
    let mean = service.mean().unwrap();
    assert!(mean > ms(8) && mean <= ms(9), "{mean:?}");
}

#[test]
fn estimated_wait_grows_by_whole_rounds_of_all_instances() {
    let service = warm(ms(30));
    for (batches, instances, rounds) in
        [(0, 1, 0), (1, 1, 1), (5, 1, 5), (1, 2, 0), (2, 2, 1), (7, 3, 2), (4, 0, 4)]
    {
        assert_eq!(service.least_wait(batches, instances), Some(ms(20) * rounds), "{batches} {instances}");
    }
}

/// A model: a queue, instances, and how long each execution takes, in microseconds.
struct World {
    queue: Batcher<Job, Any>,
    /// When each instance is idle again.
    idle: Vec<Duration>,
    executions: std::vec::IntoIter<u64>,
    start: Instant,
    service: ServiceTime,
    /// When each job left the queue.
    left: Vec<Option<Duration>>,
}

impl World {
    /// Executes batches that may leave until a time.
    fn advance(&mut self, until: Duration, mut now: Duration) {
        while self.queue.len() > 0 {
            let instance = (0..self.idle.len()).min_by_key(|instance| self.idle[*instance]).unwrap();
            now = now.max(self.idle[instance]);
            if now > until {
                return;
            }
            let took = Duration::from_micros(self.executions.next().unwrap_or(1000));
            for job in self.queue.take(self.start + now) {
                self.left[job.id] = Some(now);
            }
            self.service.add(took);
            self.idle[instance] = now + took;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Requests arrive after pauses, in microseconds, with a size, a level, a deadline and a sender. None is refused here, so that it is
    /// known when each would have left: a request that the rule refuses would have left too late.
    #[test]
    fn requests_that_leave_in_time_are_never_refused(
        requests in vec((0..3000_u64, 1..4_usize, 1..3_u64, 0..20_000_u64, 0..3_u64), 1..120),
        senders in 1..4_u64,
        executions in vec(800..1200_u64, 200),
        instances in 1..4_usize,
        max_batch_size in 3..9_usize,
        burst in 1..30_u64,
    ) {
        let rules = Rules { max_batch_size, levels: 2, default_level: 1, ..Rules::default() };
        let start = Instant::now();
        let mut world = World {
            queue: Batcher::new(rules, Any),
            idle: vec![Duration::ZERO; instances],
            executions: executions.into_iter(),
            start,
            service: warm(ms(1)),
            left: vec![None; requests.len()],
        };
        let mut now = Duration::ZERO;
        let mut refused = Vec::new();
        for (id, (pause, size, level, deadline, sender)) in requests.into_iter().enumerate() {
            let arrival = now + Duration::from_micros(pause / burst);
            world.advance(arrival, now);
            now = arrival;
            let latest = now + Duration::from_micros(deadline);
            let job = Job { id, size, level, flow: flow(sender % senders, 1), ..Job::default() };
            let wait = world.service.least_wait(world.queue.batches_before(&job), instances).unwrap();
            if is_too_late(start + now, wait, start + latest) {
                refused.push((id, latest));
            }
            prop_assert!(world.queue.push(job, start + now).is_ok());
            world.advance(now, now);
        }
        world.advance(Duration::MAX, now);
        for (id, latest) in refused {
            prop_assert!(world.left[id].is_some_and(|left| left > latest), "{id}: {:?} {latest:?}", world.left[id]);
        }
    }
}

/// What is known of execution times once a job arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Off,
    Cold,
    Takes(Duration),
}

/// Enqueues a job behind others that wait for the only instance; the reasons of refusals.
fn behind<Q: Queue<Item = Job>>(queue: Q, others: usize, service: Service, job: Job) -> Vec<Refusal> {
    let time = (service != Service::Off).then(Arc::<ServiceTime>::default);
    let handoff = Handoff::new(queue, 1, None, None, time.clone());
    for id in 0..others {
        let other = Job { id, size: 1, ..Job::default() };
        assert!(matches!(handoff.enqueue(other, false), Enqueued::Waits(_)));
    }
    if let (Service::Takes(sample), Some(time)) = (service, time) {
        warm_up(&time, sample);
    }
    let refusals = Arc::clone(&job.refusals);
    let outcome = handoff.enqueue(job, false);
    let reasons = refusals.lock().unwrap().clone();
    assert_eq!(matches!(outcome, Enqueued::Refused), !reasons.is_empty());
    reasons
}

#[test]
fn hopeless_requests_are_refused_and_others_wait() {
    let soon = || Some(Instant::now() + ms(50));
    let late = || Some(Instant::now() + ms(600_000));
    let long = Service::Takes(ms(30_000));
    let wait = |rounds| vec![Refusal::TooLate(ms(20_000) * rounds)];
    for (others, service, deadline, expected) in [
        (1, long, soon(), wait(1)),
        (3, long, soon(), wait(3)),
        (0, long, soon(), vec![]),
        (3, long, late(), vec![]),
        (40, long, late(), wait(40)),
        (3, long, None, vec![]),
        (3, Service::Off, soon(), vec![]),
        (3, Service::Cold, soon(), vec![]),
        (3, Service::Takes(ms(1)), late(), vec![]),
    ] {
        let job = Job { size: 1, deadline, ..Job::default() };
        assert_eq!(behind(Fifo::default(), others, service, job), expected, "{others} {deadline:?}");
    }
}

#[test]
fn timeouts_of_the_queue_count_where_they_refuse() {
    let timeout = |millis, delays_expired| Policy {
        timeout: Some(ms(millis)),
        allow_timeout_override: true,
        delays_expired,
        ..Policy::default()
    };
    let wait = |rounds| vec![Refusal::TooLate(ms(20_000) * rounds)];
    for (policy, own, others, expected) in [
        (timeout(50, false), None, 4, wait(2)),
        (timeout(50, false), None, 1, vec![]),
        (timeout(50, true), None, 4, vec![]),
        (timeout(600_000, false), None, 4, vec![]),
        (timeout(600_000, false), Some(ms(50)), 4, wait(2)),
        // Without a timeout of its level, the request's own is the client's word on how long it waits.
        (Policy::default(), Some(ms(50)), 4, wait(2)),
        (Policy::default(), Some(ms(600_000)), 4, vec![]),
        (Policy::default(), None, 4, vec![]),
    ] {
        let rules = Rules { max_batch_size: 2, default_policy: policy.clone(), ..Rules::default() };
        let job = Job { size: 1, timeout: own, ..Job::default() };
        let found = behind(Batcher::new(rules, Any), others, Service::Takes(ms(30_000)), job);
        assert_eq!(found, expected, "{policy:?} {own:?} {others}");
    }
}

#[test]
fn urgent_requests_do_not_wait_for_less_urgent_ones() {
    for (level, expected) in [(1, vec![]), (2, vec![Refusal::TooLate(ms(20_000) * 3)])] {
        let rules = Rules { max_batch_size: 1, levels: 2, default_level: 2, ..Rules::default() };
        let deadline = Some(Instant::now() + ms(50));
        let job = Job { size: 1, level, deadline, ..Job::default() };
        assert_eq!(behind(Batcher::new(rules, Any), 3, Service::Takes(ms(30_000)), job), expected, "{level}");
    }
}

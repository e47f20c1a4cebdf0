//! Random traffic through the batcher and through plainly written rules: a list that is sorted each time.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::fair::tests::{PlainFair, flow};

/// The rules, slowly.
#[derive(Default)]
struct Plain {
    rules: Rules,
    jobs: Vec<PlainJob>,
    /// The requests of each level that were not delayed.
    fair: BTreeMap<u64, PlainFair>,
    arrivals: u64,
    delays: u64,
    closed: bool,
}

#[derive(Clone)]
struct PlainJob {
    job: Job,
    number: u64,
    level: u64,
    /// The number of items delayed before it, if it was delayed.
    delayed: Option<u64>,
    since: Instant,
    expiry: Option<Instant>,
}

impl Plain {
    fn policy(&self, level: u64) -> Policy {
        self.rules.policies.get(&level).unwrap_or(&self.rules.default_policy).clone()
    }

    fn in_order(&self) -> Vec<PlainJob> {
        let fair = self.fair.values().flat_map(PlainFair::in_order).enumerate();
        let ranks: BTreeMap<_, _> = fair.map(|(rank, number)| (number, rank as u64)).collect();
        let mut jobs = self.jobs.clone();
        jobs.sort_by_key(|job| match job.delayed {
            None => (job.level, false, ranks[&job.number]),
            Some(delayed) => (job.level, true, delayed),
        });
        jobs
    }

    /// How many leave now, or when.
    fn decide(&self, now: Instant) -> Result<usize, Readiness> {
        let jobs = self.in_order();
        let Some(first) = jobs.first() else { return Err(Readiness::Nothing) };
        let size = |count: usize| jobs[..count].iter().map(|job| job.job.size).sum::<usize>();
        let fits = |count: &usize| {
            let alike = jobs[..*count].iter().all(|job| job.job.shape == first.job.shape);
            *count == 1 || (alike && size(*count) <= self.rules.max_batch_size)
        };
        let most = (1..=jobs.len()).take_while(fits).last().unwrap_or(1);
        let most_preferred = self.rules.preferred.last().copied().unwrap_or(0);
        let preferred = (1..=most).rev().find(|count| self.rules.preferred.contains(&size(*count)));
        // Without one, the most that do not pass the greatest preferred size, if the next one in line would pass it.
        let passes = (2..=jobs.len().min(most + 1)).find(|count| size(*count) > most_preferred);
        let best = preferred.or(passes.map(|count| count - 1));
        let oldest = jobs[..most].iter().map(|job| job.since).min().unwrap_or(now);
        let leaves = oldest + self.rules.delay;
        let late = !self.rules.delay.is_zero() && leaves <= now;
        let no_wait = self.rules.delay.is_zero() || self.closed || most < jobs.len();
        match best {
            Some(best) if !late => Ok(best),
            _ if late || no_wait || size(most) >= most_preferred => Ok(most),
            _ => Err(Readiness::At(leaves)),
        }
    }
}

impl Queue for Plain {
    type Item = Job;

    fn push(&mut self, job: Job, now: Instant) -> Result<Ticket, (Job, Refusal)> {
        let level = match job.priority {
            _ if self.rules.levels == 0 => 0,
            0 => self.rules.default_level,
            asked if asked > self.rules.levels => self.rules.default_level,
            asked => asked,
        };
        let policy = self.policy(level);
        let waiting = self.jobs.iter().filter(|other| other.level == level).count();
        if policy.max_queue_size > 0 && waiting >= policy.max_queue_size {
            return Err((job, Refusal::Full(policy.max_queue_size)));
        }
        let asked = job.timeout.filter(|_| policy.allow_timeout_override);
        let expiry = policy.timeout.map(|allowed| now + asked.map_or(allowed, |asked| asked.min(allowed)));
        let number = self.arrivals;
        self.arrivals += 1;
        let flow = job.flow();
        self.fair.entry(level).or_default().push(number, flow, job.size);
        self.jobs.push(PlainJob { job, number, level, delayed: None, since: now, expiry });
        Ok(Ticket { level, slot: 0, number })
    }

    fn alone(&mut self, job: Job) -> Result<Vec<Job>, Job> {
        Err(job)
    }

    fn readiness(&mut self, now: Instant) -> Readiness {
        self.decide(now).map_or_else(|readiness| readiness, |_| Readiness::Now)
    }

    fn first(&self) -> Option<&Job> {
        let number = self.in_order().first()?.number;
        self.jobs.iter().find(|job| job.number == number).map(|job| &job.job)
    }

    fn take(&mut self, now: Instant) -> Vec<Job> {
        let count = self.decide(now).unwrap_or(0);
        let batch: Vec<_> = self.in_order().into_iter().take(count).collect();
        self.jobs.retain(|job| batch.iter().all(|taken| taken.number != job.number));
        for taken in batch.iter().filter(|taken| taken.delayed.is_none()) {
            let first = self.fair.get_mut(&taken.level).and_then(PlainFair::pop);
            assert_eq!(first, Some(taken.number));
        }
        batch.into_iter().map(|job| job.job).collect()
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Job> {
        let index = self.jobs.iter().position(|job| job.number == ticket.number)?;
        let removed = self.jobs.remove(index);
        self.fair.get_mut(&removed.level)?.remove(removed.number);
        Some(removed.job)
    }

    fn expire(&mut self, now: Instant) -> Vec<Job> {
        let mut due: Vec<_> = self.jobs.iter().filter(|job| job.expiry.is_some_and(|at| at <= now)).collect();
        due.sort_by_key(|job| (job.expiry, job.level, job.number));
        let due: Vec<_> = due.into_iter().map(|job| job.number).collect();
        let mut refused = Vec::new();
        for number in due {
            let Some(index) = self.jobs.iter().position(|job| job.number == number) else { continue };
            self.jobs[index].expiry = None;
            let level = self.jobs[index].level;
            self.fair.entry(level).or_default().remove(number);
            if self.policy(self.jobs[index].level).delays_expired {
                self.jobs[index].delayed = Some(self.delays);
                self.delays += 1;
            } else {
                refused.push(self.jobs.remove(index).job);
            }
        }
        refused
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.jobs.iter().filter_map(|job| job.expiry).min()
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }

    fn batches(&self) -> usize {
        1
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

/// Something that happens from outside.
#[derive(Clone, Debug)]
enum Event {
    Arrives(Job),
    /// Cancels a request, counted from the last one.
    Cancelled(usize),
    /// Nothing, for this many microseconds.
    Quiet(u64),
}

/// Something that a queue does: when, in microseconds, and which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Act {
    Leaves(u128, Vec<usize>),
    Expires(u128, Vec<usize>),
    Refuses(usize),
    Gives(usize),
}

/// Drives a queue with instances that each execute for a time that depends on the batch. Everything happens at the
/// first moment at which it may.
struct Run<Q> {
    queue: Q,
    start: Instant,
    now: Instant,
    /// When each instance is idle again.
    busy_until: Vec<Instant>,
    tickets: Vec<(usize, Ticket)>,
    acts: Vec<Act>,
}

impl<Q: Queue<Item = Job>> Run<Q> {
    fn new(queue: Q, instances: usize, start: Instant) -> Self {
        let busy_until = vec![start; instances];
        Self { queue, start, now: start, busy_until, tickets: Vec::new(), acts: Vec::new() }
    }

    fn micros(&self) -> u128 {
        (self.now - self.start).as_micros()
    }

    /// Runs everything that is due.
    fn settle(&mut self) {
        let expired: Vec<_> = self.queue.expire(self.now).into_iter().map(|job| job.id).collect();
        if !expired.is_empty() {
            self.acts.push(Act::Expires(self.micros(), expired));
        }
        for instance in 0..self.busy_until.len() {
            if self.busy_until[instance] > self.now || self.queue.readiness(self.now) != Readiness::Now {
                continue;
            }
            let first = self.queue.first().map(|job| job.id);
            let batch = self.queue.take(self.now);
            assert!(!batch.is_empty(), "a batch may leave and none does");
            assert_eq!(first, Some(batch[0].id));
            let size: usize = batch.iter().map(|job| job.size).sum();
            self.busy_until[instance] = self.now + Duration::from_micros(40 + 10 * size as u64);
            self.acts.push(Act::Leaves(self.micros(), batch.into_iter().map(|job| job.id).collect()));
        }
    }

    /// The next moment at which time alone changes something.
    fn next_change(&mut self) -> Option<Instant> {
        let idle = self.busy_until.iter().any(|until| *until <= self.now);
        let leaves = match self.queue.readiness(self.now) {
            Readiness::At(time) if idle => Some(time),
            _ => None,
        };
        let free = self.busy_until.iter().copied().filter(|until| *until > self.now).min();
        [leaves, free, self.queue.next_expiry()].into_iter().flatten().min()
    }

    fn advance(&mut self, until: Instant) {
        while let Some(next) = self.next_change().filter(|next| *next <= until) {
            self.now = next;
            self.settle();
        }
        self.now = until;
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Quiet(micros) => self.advance(self.now + Duration::from_micros(*micros)),
            Event::Arrives(job) => {
                let id = job.id;
                match self.queue.push(job.clone(), self.now) {
                    Ok(ticket) => self.tickets.push((id, ticket)),
                    Err(_) => self.acts.push(Act::Refuses(id)),
                }
                self.settle();
            }
            Event::Cancelled(back) => {
                let Some(&(_, ticket)) = self.tickets.iter().rev().nth(*back) else { return };
                if let Some(job) = self.queue.remove(ticket) {
                    self.acts.push(Act::Gives(job.id));
                }
                self.settle();
            }
        }
    }

    fn run(mut self, events: &[Event]) -> Vec<Act> {
        events.iter().for_each(|event| self.happen(event));
        self.queue.close();
        self.settle();
        self.advance(self.now + Duration::from_secs(3600));
        assert_eq!(self.queue.len(), 0, "something is left");
        self.acts
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![3 => Just(0), 1 => 1..6_usize];
    let timeout = option::of((10..400_u64).prop_map(Duration::from_micros));
    (limit, timeout, any::<bool>(), any::<bool>()).prop_map(
        |(max_queue_size, timeout, allow, delays_expired)| Policy {
            max_queue_size,
            timeout,
            allow_timeout_override: allow,
            delays_expired,
        },
    )
}

fn any_rules() -> impl Strategy<Value = Rules> {
    // The greatest size alone is what models without preferred sizes have.
    let preferred = |most| prop_oneof![1 => Just(vec![most]), 2 => vec(1..=most, 0..3)];
    let sizes = (1..9_usize).prop_flat_map(move |most| (Just(most), preferred(most)));
    let delay = prop_oneof![Just(0), 10..300_u64];
    (sizes, delay, 0..4_u64, policies(), option::of(policies())).prop_map(
        |((max_batch_size, preferred), delay, levels, default_policy, first)| Rules {
            max_batch_size,
            preferred: preferred.into_iter().collect(),
            delay: Duration::from_micros(delay),
            levels,
            default_level: levels.min(2),
            default_policy,
            policies: first.map(|policy| (1, policy)).into_iter().collect(),
            hold: 0,
        },
    )
}

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let timeout = option::of((1..300_u64).prop_map(Duration::from_micros));
    let flow = prop_oneof![3 => Just(flow(0, 1)), 2 => Just(flow(1, 1)), 1 => Just(flow(2, 3))];
    let job = (1..=most, 0..5_u64, timeout, prop_oneof![4 => Just(0_u8), 1 => Just(1)], flow).prop_map(
        |(size, priority, timeout, shape, flow)| {
            Event::Arrives(Job { size, priority, timeout, shape, flow, ..Job::default() })
        },
    );
    let event = prop_oneof![
        5 => job,
        1 => (0..6_usize).prop_map(Event::Cancelled),
        3 => (0..120_u64).prop_map(Event::Quiet),
    ];
    vec(event, 0..60).prop_map(|mut events| {
        let jobs = events.iter_mut().filter_map(|event| match event {
            Event::Arrives(job) => Some(job),
            _ => None,
        });
        jobs.enumerate().for_each(|(id, job)| job.id = id);
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_traffic_goes_as_the_rules_say(
        (rules, events) in (any_rules(), any::<bool>()).prop_flat_map(|(rules, one_at_a_time)| {
            let most = rules.max_batch_size;
            (Just(if one_at_a_time { rules.one_at_a_time() } else { rules }), events(most))
        }),
        instances in 1..4_usize,
    ) {
        let start = Instant::now();
        let plain = Plain { rules: rules.clone(), ..Plain::default() };
        let expected = Run::new(plain, instances, start).run(&events);
        let acts = Run::new(Batcher::new(rules.clone(), Shapes), instances, start).run(&events);
        prop_assert_eq!(&acts, &expected);

        // Whatever the rules are: nothing is lost or done twice, and no batch is too large.
        let jobs: Vec<_> = events.iter().filter_map(|event| match event {
            Event::Arrives(job) => Some(job),
            _ => None,
        }).collect();
        let mut seen: Vec<_> = acts.iter().flat_map(|act| match act {
            Act::Leaves(_, ids) | Act::Expires(_, ids) => ids.clone(),
            Act::Refuses(id) | Act::Gives(id) => vec![*id],
        }).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..jobs.len()).collect::<Vec<_>>());
        let mut left = Vec::new();
        for act in &acts {
            if let Act::Leaves(_, ids) = act {
                let size: usize = ids.iter().map(|id| jobs[*id].size).sum();
                prop_assert!(size <= rules.max_batch_size || ids.len() == 1);
                prop_assert!(ids.iter().all(|id| jobs[*id].shape == jobs[ids[0]].shape));
                left.extend(ids.iter().copied());
            }
        }
        let gives_way = rules.default_policy.delays_expired || !rules.policies.is_empty();
        if rules.levels == 0 && !gives_way {
            for flow in 0..3 {
                let own: Vec<_> = left.iter().filter(|id| jobs[**id].flow.id == flow).collect();
                prop_assert!(own.is_sorted(), "first come, first served: {left:?}");
            }
        }
    }
}

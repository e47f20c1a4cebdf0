//! The batcher's rules, on a clock that the tests move.

mod against_plain_rules;

use nereid_backend_api::Flow;

use super::*;

/// The items of the tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Job {
    id: usize,
    size: usize,
    priority: u64,
    timeout: Option<Duration>,
    shape: u8,
    flow: Flow,
}

impl Item for Job {
    fn refuse(self, _: Refusal) {}

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
        self.priority
    }
}

/// Jobs of the same shape go together.
struct Shapes;

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

/// A batcher, and a clock that stands until it is moved.
struct Clocked {
    batcher: Batcher<Job, Shapes>,
    start: Instant,
    now: Duration,
    tickets: Vec<Ticket>,
}

impl Clocked {
    fn new(rules: Rules) -> Self {
        Self { batcher: Batcher::new(rules, Shapes), start: Instant::now(), now: ms(0), tickets: Vec::new() }
    }

    fn now(&self) -> Instant {
        self.start + self.now
    }

    fn at(mut self, millis: u64) -> Self {
        self.now = ms(millis);
        self
    }

    fn push(&mut self, job: Job) -> Result<(), Refusal> {
        let id = self.tickets.len();
        let ticket = self.batcher.push(Job { id, ..job }, self.now()).map_err(|(_, why)| why)?;
        self.tickets.push(ticket);
        Ok(())
    }

    /// Queues jobs of these sizes.
    fn jobs(mut self, sizes: &[usize]) -> Self {
        for &size in sizes {
            self.push(Job { size, ..Job::default() }).unwrap();
        }
        self
    }

    fn job(mut self, job: Job) -> Self {
        self.push(job).unwrap();
        self
    }

    /// The ids of the batch that leaves now; none if nothing may.
    fn take(&mut self) -> Vec<usize> {
        self.batcher.take(self.now()).into_iter().map(|job| job.id).collect()
    }

    fn expire(&mut self) -> Vec<usize> {
        self.batcher.expire(self.now()).into_iter().map(|job| job.id).collect()
    }

    /// When the next batch leaves, in milliseconds after the start.
    fn leaves(&mut self) -> Option<u128> {
        match self.batcher.readiness(self.now()) {
            Readiness::Nothing => None,
            Readiness::Now => Some(self.now.as_millis()),
            Readiness::At(time) => Some((time - self.start).as_millis()),
        }
    }
}

fn rules(max_batch_size: usize, preferred: &[usize], delay: u64) -> Rules {
    let preferred = preferred.iter().copied().collect();
    Rules { max_batch_size, preferred, delay: ms(delay), ..Rules::default() }
}

fn with_policy(policy: Policy) -> Rules {
    Rules { default_policy: policy, ..rules(4, &[4], 0) }
}

#[test]
fn without_delay_all_that_wait_leave_together_up_to_the_greatest_batch() {
    let mut queue = Clocked::new(rules(4, &[4], 0)).jobs(&[1, 1, 1, 1, 1]);
    assert_eq!((queue.take(), queue.take(), queue.take()), (vec![0, 1, 2, 3], vec![4], vec![]));
}

#[test]
fn a_request_is_never_split_and_never_makes_a_batch_too_large() {
    let mut queue = Clocked::new(rules(4, &[4], 0)).jobs(&[3, 2, 2, 4]);
    assert_eq!((queue.take(), queue.take(), queue.take()), (vec![0], vec![1, 2], vec![3]));
}

#[test]
fn a_preferred_size_goes_before_a_greater_batch() {
    let mut queue = Clocked::new(rules(8, &[2, 4], 0)).jobs(&[1; 7]);
    assert_eq!((queue.take(), queue.take(), queue.take()), (vec![0, 1, 2, 3], vec![4, 5], vec![6]));
}

#[test]
fn a_batch_waits_for_company_and_leaves_at_its_time_even_if_nothing_comes() {
    let mut queue = Clocked::new(rules(8, &[4], 10)).jobs(&[1]).at(3).jobs(&[1]);
    assert_eq!((queue.take(), queue.leaves()), (vec![], Some(10)));
    queue = queue.at(9);
    assert!(queue.take().is_empty());
    queue = queue.at(10);
    assert_eq!(queue.take(), [0, 1]);
}

#[test]
fn a_batch_of_preferred_size_does_not_wait() {
    let mut queue = Clocked::new(rules(8, &[4], 10)).jobs(&[1, 1, 1]);
    assert_eq!(queue.leaves(), Some(10));
    queue = queue.at(2).jobs(&[1, 1]);
    assert_eq!((queue.leaves(), queue.take()), (Some(2), vec![0, 1, 2, 3]));
    assert_eq!(queue.leaves(), Some(12));
}

#[test]
fn a_batch_that_waited_long_enough_takes_more_than_a_preferred_size() {
    let mut queue = Clocked::new(rules(8, &[4], 10)).jobs(&[1; 6]).at(10);
    assert_eq!(queue.take(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_batch_that_cannot_grow_to_a_preferred_size_does_not_wait() {
    // 3 and 3 pass the greatest preferred size, so the first one leaves by itself.
    let mut queue = Clocked::new(rules(8, &[4], 10)).jobs(&[3, 3]);
    assert_eq!((queue.take(), queue.leaves()), (vec![0], Some(10)));
    // Shapes that differ do not go together.
    let shaped = |shape| Job { size: 1, shape, ..Job::default() };
    let mut queue = Clocked::new(rules(8, &[4], 10)).job(shaped(1)).job(shaped(1)).job(shaped(2));
    assert_eq!((queue.take(), queue.leaves()), (vec![0, 1], Some(10)));
}

#[test]
fn levels_leave_in_order_and_share_batches() {
    let rules = Rules { levels: 3, default_level: 2, ..rules(4, &[4], 0) };
    let mut queue = Clocked::new(rules);
    for priority in [3, 2, 0, 1, 9, 1] {
        queue = queue.job(Job { size: 1, priority, ..Job::default() });
    }
    // No priority and an unknown one both mean the default level.
    assert_eq!((queue.take(), queue.take()), (vec![3, 5, 1, 2], vec![4, 0]));
}

#[test]
fn waiting_requests_are_counted_by_level() {
    let policy = Policy { timeout: Some(ms(10)), delays_expired: true, ..Policy::default() };
    let rules = Rules { levels: 1_000_000, default_level: 2, ..with_policy(policy) };
    let mut queue = Clocked::new(rules);
    for (at, priority) in [(0, 7), (1, 0), (2, 7), (3, 1_000_000)] {
        queue = queue.at(at).job(Job { size: 1, priority, ..Job::default() });
    }
    let levels = |queue: &Clocked, most| {
        let levels = queue.batcher.waiting_levels(most).into_iter();
        levels.map(|one| (one.level, one.waiting, (one.since - queue.start).as_millis())).collect::<Vec<_>>()
    };
    let all = [(2, 1, 1), (7, 2, 0), (1_000_000, 1, 3)];
    assert_eq!(levels(&queue, 9), all);
    assert_eq!(levels(&queue, 2), all[..2]);
    // The first request of level 7 leaves last in its level once it has expired.
    queue = queue.at(10);
    assert!(queue.expire().is_empty());
    assert_eq!(levels(&queue, 9), [(2, 1, 1), (7, 2, 2), (1_000_000, 1, 3)]);
    queue = queue.at(12);
    assert!(queue.expire().is_empty());
    assert_eq!(levels(&queue, 9)[1], (7, 2, 0));
    assert_eq!(queue.take(), [1, 0, 2, 3]);
    assert_eq!(levels(&queue, 9), []);
    // Without levels, all requests share a queue that has no number.
    assert_eq!(levels(&Clocked::new(self::rules(4, &[4], 0)).jobs(&[1, 1]), 9), []);
}

#[test]
fn an_urgent_request_goes_before_a_batch_that_waits() {
    let rules = Rules { levels: 2, default_level: 2, ..rules(2, &[2], 10) };
    let urgent = Job { size: 2, priority: 1, ..Job::default() };
    let mut queue = Clocked::new(rules).jobs(&[1]);
    assert_eq!(queue.leaves(), Some(10));
    queue = queue.at(1).job(urgent);
    assert_eq!((queue.take(), queue.leaves()), (vec![1], Some(10)));
}

#[test]
fn a_request_that_comes_before_one_that_does_not_fit_still_joins_the_batch() {
    let mut queue = Clocked::new(Rules { levels: 2, default_level: 2, ..rules(4, &[4], 10) });
    let urgent = || Job { size: 1, priority: 1, ..Job::default() };
    queue = queue.job(urgent()).job(Job { size: 1, shape: 1, ..Job::default() });
    assert_eq!(queue.leaves(), Some(0));
    queue = queue.job(urgent());
    assert_eq!(queue.take(), [0, 2]);
}

#[test]
fn levels_that_clients_make_up_do_not_stay() {
    let mut queue = Clocked::new(Rules { levels: u64::MAX, default_level: 1, ..rules(1, &[1], 0) });
    for priority in 1..1000 {
        queue = queue.job(Job { size: 1, priority, ..Job::default() });
        assert_eq!(queue.take().len(), 1);
    }
    assert!(queue.batcher.levels.len() <= 1);
}

#[test]
fn a_full_level_takes_no_more() {
    let mut queue =
        Clocked::new(with_policy(Policy { max_queue_size: 2, ..Policy::default() })).jobs(&[1, 1]);
    assert_eq!(queue.push(Job { size: 1, ..Job::default() }), Err(Refusal::Full(2)));
    let ticket = queue.tickets[0];
    assert_eq!(queue.batcher.remove(ticket).map(|job| job.id), Some(0));
    queue = queue.jobs(&[1]);
    assert_eq!(queue.batcher.len(), 2);
    // Levels are limited apart from each other.
    let policies = BTreeMap::from([(1, Policy { max_queue_size: 1, ..Policy::default() })]);
    let mut queue = Clocked::new(Rules { levels: 2, default_level: 2, policies, ..rules(4, &[4], 0) });
    let urgent = || Job { size: 1, priority: 1, ..Job::default() };
    queue = queue.job(urgent()).jobs(&[1, 1]);
    assert_eq!(queue.push(urgent()), Err(Refusal::Full(1)));
}

#[test]
fn request_is_refused_when_its_queue_timeout_ends() {
    let policy = Policy { timeout: Some(ms(5)), ..Policy::default() };
    let mut queue = Clocked::new(with_policy(policy)).jobs(&[1]).at(2).jobs(&[1]);
    assert_eq!(queue.batcher.next_expiry(), Some(queue.start + ms(5)));
    queue = queue.at(4);
    assert!(queue.expire().is_empty());
    queue = queue.at(5);
    assert_eq!(queue.expire(), [0]);
    assert_eq!(queue.batcher.next_expiry(), Some(queue.start + ms(7)));
    assert_eq!((queue.take(), queue.batcher.next_expiry()), (vec![1], None));
}

#[test]
fn a_request_may_make_its_time_shorter_only_where_it_is_allowed_and_there_is_a_time() {
    let expiry = |timeout, allow_timeout_override, asked| {
        let policy = Policy { timeout, allow_timeout_override, ..Policy::default() };
        let mut queue = Clocked::new(with_policy(policy));
        queue = queue.job(Job { size: 1, timeout: asked, ..Job::default() });
        queue.batcher.next_expiry().map(|time| (time - queue.start).as_millis())
    };
    assert_eq!(expiry(Some(ms(5)), true, Some(ms(2))), Some(2));
    assert_eq!(expiry(Some(ms(5)), true, Some(ms(9))), Some(5));
    assert_eq!(expiry(Some(ms(5)), true, None), Some(5));
    assert_eq!(expiry(Some(ms(5)), false, Some(ms(2))), Some(5));
    assert_eq!(expiry(None, true, Some(ms(2))), None);
}

#[test]
fn delayed_request_gives_way_to_others_of_its_priority_level() {
    let policy = Policy { timeout: Some(ms(5)), delays_expired: true, ..Policy::default() };
    let mut queue = Clocked::new(Rules { max_batch_size: 1, ..with_policy(policy) });
    queue = queue.jobs(&[1, 1]).at(5).jobs(&[1]);
    assert_eq!((queue.expire(), queue.batcher.next_expiry()), (vec![], Some(queue.start + ms(10))));
    // Delayed items can still be removed.
    let ticket = queue.tickets[1];
    assert_eq!(queue.batcher.remove(ticket).map(|job| job.id), Some(1));
    assert_eq!((queue.take(), queue.take(), queue.take()), (vec![2], vec![0], vec![]));
}

#[test]
fn a_request_taken_out_of_a_batch_that_waits_makes_it_wait_for_the_others() {
    let mut queue = Clocked::new(rules(8, &[2], 10)).jobs(&[1]).at(4).jobs(&[1]);
    assert_eq!(queue.leaves(), Some(4));
    let ticket = queue.tickets[0];
    queue.batcher.remove(ticket).unwrap();
    assert_eq!((queue.leaves(), queue.batcher.remove(ticket)), (Some(14), None));
}

#[test]
fn a_closed_queue_lets_nothing_wait() {
    let mut queue = Clocked::new(Rules { hold: 9, ..rules(8, &[4], 10) }).jobs(&[1]);
    assert_eq!((queue.leaves(), queue.take()), (None, vec![]));
    queue.batcher.close();
    assert_eq!(queue.take(), [0]);
}

#[test]
fn nothing_leaves_before_as_many_wait_as_a_test_wants() {
    let mut queue = Clocked::new(Rules { hold: 3, ..rules(2, &[2], 0) }).jobs(&[1, 1]);
    assert_eq!((queue.take(), queue.leaves()), (vec![], None));
    assert!(queue.batcher.alone(Job { size: 2, ..Job::default() }).is_err());
    queue = queue.jobs(&[1]);
    assert_eq!((queue.take(), queue.take()), (vec![0, 1], vec![2]));
    // That was for the first time only.
    queue = queue.jobs(&[1]);
    assert_eq!(queue.take(), [3]);
}

#[test]
fn a_request_leaves_by_itself_only_if_it_need_not_wait() {
    let alone = |rules, size| Clocked::new(rules).batcher.alone(Job { size, ..Job::default() }).is_ok();
    assert!(alone(rules(8, &[8], 0), 1));
    assert!(!alone(rules(8, &[4], 10), 1));
    assert!(alone(rules(8, &[4], 10), 4));
    assert!(alone(rules(8, &[4], 10), 6));
    let mut queue = Clocked::new(rules(8, &[8], 0)).jobs(&[1]);
    assert!(queue.batcher.alone(Job { size: 1, ..Job::default() }).is_err());
}

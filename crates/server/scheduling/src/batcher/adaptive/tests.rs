//! The rules on a simulated clock, and how they compare with fixed settings.

mod loads;
mod picture;
mod simulation;

use self::simulation::{Job, Kinds};
use super::*;

const OBJECTIVE: Duration = Duration::from_millis(20);

/// A batcher, and a clock that stands until it is moved.
struct Clocked {
    batcher: AdaptiveBatcher<Job, Kinds>,
    start: Instant,
    now: Duration,
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn rules(max_batch_size: usize) -> Rules {
    Rules { max_batch_size, ..Rules::default() }
}

impl Clocked {
    fn new(rules: Rules, instances: usize) -> Self {
        let start = Instant::now();
        let objective = Objective { model: "m".to_owned(), latency: OBJECTIVE, instances };
        Self { batcher: AdaptiveBatcher::new(rules, Kinds, objective, start), start, now: Duration::ZERO }
    }

    fn now(&self) -> Instant {
        self.start + self.now
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn push(&mut self, job: Job) -> Ticket {
        let now = self.now();
        self.batcher.push(job, now).unwrap()
    }

    fn readiness(&mut self) -> Readiness {
        let now = self.now();
        self.batcher.readiness(now)
    }

    /// How long the next batch waits from now, if it does.
    fn waits(&mut self) -> Option<Duration> {
        match self.readiness() {
            Readiness::At(time) => Some(time - self.now()),
            Readiness::Now | Readiness::Nothing => None,
        }
    }

    /// Takes a batch for an instance; its size in requests.
    fn take(&mut self, instance: usize) -> usize {
        let now = self.now();
        let batch = self.batcher.take(now);
        if !batch.is_empty() {
            self.batcher.started(instance, now);
        }
        batch.len()
    }

    fn finish(&mut self, instance: usize) {
        let now = self.now();
        self.batcher.finished(instance, now);
    }

    /// Requests that arrive once a millisecond are executed one batch after the other, each in 4 ms and 0.1 ms for an item.
    fn learn(mut self) -> Self {
        let mut ends = None;
        for _ in 0..2000 {
            self.push(Job::new());
            let until = self.now + micros(1000);
            loop {
                let next = ends.or_else(|| self.waits().map(|wait| self.now + wait));
                if ends.is_none() && self.readiness() == Readiness::Now {
                    let size = self.take(0);
                    ends = Some(self.now + micros(4000 + 100 * size as u64));
                    continue;
                }
                let Some(next) = next.filter(|next| *next < until) else { break };
                self.now = next.max(self.now);
                if ends.take_if(|ends| *ends <= self.now).is_some() {
                    self.finish(0);
                }
            }
            self.now = until;
        }
        // All that is left is executed.
        self.now = ends.unwrap_or(self.now).max(self.now);
        self.finish(0);
        while self.batcher.len() > 0 {
            let size = self.waits().map_or_else(|| self.take(0), |_| 0);
            self.pass(micros(4000 + 100 * size as u64));
            self.finish(0);
        }
        self
    }
}

#[test]
fn nothing_waits_before_executions_were_measured() {
    let mut model = Clocked::new(rules(8), 1);
    for _ in 0..run_times::COLD {
        model.push(Job::new());
        assert_eq!((model.readiness(), model.take(0)), (Readiness::Now, 1));
        model.pass(micros(9000));
        model.finish(0);
    }
    let expected = Adaptation { objective: OBJECTIVE, batch_size: 8, delay: Duration::ZERO, run_time: None };
    assert_eq!(model.batcher.adaptation(), Some(expected));
}

#[test]
fn a_request_waits_for_company_but_is_answered_within_the_objective() {
    let mut model = Clocked::new(rules(64), 1).learn();
    model.push(Job::new());
    let wait = model.waits().unwrap();
    assert!(wait > micros(8000) && wait < micros(16_000), "{wait:?}");
    model.pass(wait);
    assert_eq!((model.readiness(), model.take(0)), (Readiness::Now, 1));
    let adapted = model.batcher.adaptation().unwrap();
    assert!(adapted.batch_size > 8 && adapted.run_time.unwrap() > micros(4800), "{adapted:?}");
    assert!(adapted.delay > micros(8000) && adapted.delay < micros(16_000), "{adapted:?}");
}

#[test]
fn a_full_batch_leaves_at_once() {
    let mut model = Clocked::new(rules(8), 1).learn();
    for _ in 0..7 {
        model.push(Job::new());
    }
    assert!(model.waits().is_some());
    model.push(Job::new());
    assert_eq!(
        (model.readiness(), model.take(0), model.readiness()),
        (Readiness::Now, 8, Readiness::Nothing)
    );
}

#[test]
fn a_batch_that_cannot_grow_leaves_at_once() {
    let mut model = Clocked::new(rules(8), 1).learn();
    model.push(Job::new());
    model.push(Job::new());
    assert!(model.waits().is_some());
    model.push(Job { kind: 1, ..Job::new() });
    assert_eq!((model.readiness(), model.take(0)), (Readiness::Now, 2));
    assert!(model.waits().is_some());
    model.push(Job { kind: 1, size: 8, ..Job::new() });
    assert_eq!((model.take(0), model.take(0), model.take(0)), (1, 1, 0));
}

#[test]
fn a_configured_delay_is_an_upper_bound() {
    let mut model = Clocked::new(Rules { delay: micros(700), ..rules(64) }, 1).learn();
    model.push(Job::new());
    assert_eq!(model.waits().map(|wait| wait.as_micros()), Some(700));
}

#[test]
fn requests_leave_before_they_expire() {
    let policy = crate::batcher::Policy { timeout: Some(micros(6000)), ..Default::default() };
    let mut model = Clocked::new(Rules { default_policy: policy, ..rules(64) }, 1).learn();
    model.push(Job::new());
    let wait = model.waits().unwrap();
    assert!(wait < micros(6000) && wait >= micros(3900), "{wait:?}");
    let mut model = Clocked::new(rules(64), 1).learn();
    let deadline = Some(model.now() + micros(12_000));
    model.push(Job { deadline, ..Job::new() });
    let wait = model.waits().unwrap();
    assert!(wait < micros(6000), "{wait:?}");
}

#[test]
fn a_cancelled_request_leaves_no_plan_behind() {
    let mut model = Clocked::new(rules(64), 1).learn();
    let ticket = model.push(Job::new());
    let before = model.waits();
    assert!(model.batcher.remove(ticket).is_some());
    assert_eq!((model.readiness(), model.take(0)), (Readiness::Nothing, 0));
    model.pass(micros(5000));
    model.push(Job::new());
    let (before, after) = (before.unwrap(), model.waits().unwrap());
    assert!(after > before * 3 / 4, "{before:?} {after:?}");
}

#[test]
fn little_traffic_is_sent_at_once() {
    let mut model = Clocked::new(rules(64), 1).learn();
    for _ in 0..20 {
        model.pass(Duration::from_secs(5));
        model.push(Job::new());
        assert_eq!((model.readiness(), model.take(0)), (Readiness::Now, 1));
        model.pass(micros(4100));
        model.finish(0);
    }
}

#[test]
fn closing_ends_all_waits() {
    let mut model = Clocked::new(rules(64), 1).learn();
    model.push(Job::new());
    assert!(model.waits().is_some());
    model.batcher.close();
    assert_eq!((model.readiness(), model.take(0)), (Readiness::Now, 1));
}

#[test]
fn urgent_requests_go_first_and_levels_share_a_batch() {
    let levels = Rules { levels: 2, default_level: 2, ..rules(4) };
    let mut model = Clocked::new(levels, 1).learn();
    for priority in [2, 2, 1, 2, 1] {
        model.push(Job { priority, ..Job::new() });
    }
    let now = model.now();
    let batch = model.batcher.take(now);
    let levels: Vec<_> = batch.iter().map(|job| job.priority).collect();
    assert_eq!(levels, [1, 1, 2, 2]);
}

proptest::proptest! {
    /// Random traffic and times: no request is lost, no batch is too large, and no wait exceeds the objective.
    #[test]
    fn any_traffic_leaves_in_valid_batches(
        steps in proptest::collection::vec((0..30_000_u64, 1..9_usize, 0..3_u8, 1..60_000_u64, 0..4_u8), 1..300),
        instances in 1..4_usize,
        max_batch_size in 1..40_usize,
        delay in 0..3000_u64,
    ) {
        let rules = Rules { delay: micros(delay), ..rules(max_batch_size) };
        let mut model = Clocked::new(rules, instances);
        let (mut pushed, mut left) = (0, 0);
        let mut tickets = Vec::new();
        for (pause, size, kind, took, action) in steps {
            model.pass(micros(pause));
            let size = size.min(max_batch_size);
            tickets.push(model.push(Job { size, kind, ..Job::new() }));
            pushed += 1;
            if action == 0 && let Some(ticket) = tickets.pop() {
                left += usize::from(model.batcher.remove(ticket).is_some());
            }
            if action == 1 {
                continue;
            }
            let instance = pushed % instances;
            model.finish(instance);
            if let Some(wait) = model.waits() {
                proptest::prop_assert!(wait <= OBJECTIVE, "{wait:?}");
                model.pass(wait);
            }
            let now = model.now();
            let is_ready = model.readiness() == Readiness::Now;
            let batch = model.batcher.take(now);
            proptest::prop_assert_eq!(is_ready, !batch.is_empty());
            proptest::prop_assert!(batch.len() == 1 || batch.iter().map(|job| job.size).sum::<usize>() <= max_batch_size);
            proptest::prop_assert!(batch.iter().all(|job| job.kind == batch[0].kind));
            left += batch.len();
            if is_ready {
                model.batcher.started(instance, now);
                model.pass(micros(took));
            }
        }
        model.batcher.close();
        while model.batcher.len() > 0 {
            let now = model.now();
            left += model.batcher.take(now).len();
            model.batcher.started(0, now);
            model.finish(0);
        }
        proptest::prop_assert_eq!(pushed, left);
    }
}

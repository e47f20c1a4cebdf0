//! Simulated models whose load changes.

use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(100);
const START: Duration = Duration::from_secs(2);
const PACE: Pace = Pace { start: START, least_kept: Duration::from_secs(30) };
const LIMITS: Limits = Limits { min: 1, max: 8 };

/// A simulated model: requests that take an instance for a time, in the order of their arrival.
struct Simulation {
    controller: Controller,
    /// When each instance is free, in seconds; new ones are not before they have started.
    instances: Vec<f64>,
    /// The arrivals that wait.
    queue: std::collections::VecDeque<f64>,
    now: f64,
    numbers: u64,
    /// Instance-seconds, and the waits of all requests.
    cost: f64,
    waits: Vec<f64>,
    changes: usize,
    most: usize,
}

impl Simulation {
    fn new(instances: usize) -> Self {
        Self {
            controller: Controller::default(),
            instances: vec![0.0; instances],
            queue: Default::default(),
            now: 0.0,
            numbers: 7,
            cost: 0.0,
            waits: Vec::new(),
            changes: 0,
            most: instances,
        }
    }

    fn random(&mut self) -> f64 {
        self.numbers =
            self.numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.numbers >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Runs for some seconds with `rate` requests a second, each of which takes `service` seconds. Without `follows`, the number
    /// of instances stays.
    fn run(&mut self, seconds: f64, rate: f64, service: f64, follows: bool) {
        let end = self.now + seconds;
        let tick = TICK.as_secs_f64();
        let mut next = if rate > 0.0 { self.now - (1.0 - self.random()).ln() / rate } else { f64::MAX };
        while self.now < end {
            let until = self.now + tick;
            let mut busy = 0.0;
            while next < until {
                self.queue.push_back(next);
                next -= (1.0 - self.random()).ln() / rate;
            }
            for free in &mut self.instances {
                // The part of the tick in which it still executes what it began before.
                busy += (free.min(until) - self.now).clamp(0.0, tick);
                while *free < until {
                    let Some(arrival) = self.queue.front().copied() else { break };
                    let begins = arrival.max(*free).max(self.now);
                    if begins >= until {
                        break;
                    }
                    self.queue.pop_front();
                    self.waits.push(begins - arrival);
                    *free = begins + service;
                    busy += (free.min(until) - begins).max(0.0);
                }
            }
            self.cost += tick * self.instances.len() as f64;
            self.now = until;
            if !follows {
                continue;
            }
            let load =
                Load { instances: self.instances.len(), waiting: self.queue.len() as f64, busy: busy / tick };
            let wanted = self.controller.observe(load, LIMITS, TICK, PACE);
            if wanted != self.instances.len() {
                self.changes += 1;
                let ready = self.now + START.as_secs_f64();
                self.instances.sort_by(|one, other| one.total_cmp(other));
                self.instances.resize(wanted, ready);
                self.most = self.most.max(wanted);
            }
        }
    }

    fn mean_wait(&self) -> f64 {
        self.waits.iter().sum::<f64>() / self.waits.len().max(1) as f64
    }
}

#[test]
fn instances_follow_the_load_up_and_down() {
    let mut model = Simulation::new(1);
    // One request in ten seconds: one instance suffices.
    model.run(300.0, 0.1, 0.5, true);
    assert_eq!((model.instances.len(), model.changes), (1, 0));
    // Four instances' worth of requests.
    model.run(120.0, 8.0, 0.5, true);
    assert!((5..=8).contains(&model.instances.len()), "{}", model.instances.len());
    model.waits.clear();
    model.run(600.0, 8.0, 0.5, true);
    assert!(model.mean_wait() < 0.5, "{}", model.mean_wait());
    let peak = model.most;
    model.run(600.0, 0.1, 0.5, true);
    assert_eq!(model.instances.len(), 1);
    assert!(peak <= LIMITS.max);
}

#[test]
fn a_steady_load_settles() {
    for rate in [0.5, 1.5, 3.0, 6.0, 10.0] {
        let mut model = Simulation::new(1);
        model.run(600.0, rate, 0.5, true);
        model.changes = 0;
        model.run(1_800.0, rate, 0.5, true);
        // A start costs two seconds of a processor: a change a minute costs little, and random loads have their peaks.
        assert!(model.changes <= 30, "{rate}: {} changes, now {}", model.changes, model.instances.len());
    }
}

#[test]
fn changing_loads_wait_less_for_the_same_instances() {
    let day = |model: &mut Simulation, follows| {
        for rate in [0.5, 2.0, 8.0, 12.0, 8.0, 2.0, 0.5, 0.2] {
            model.run(300.0, rate, 0.5, follows);
        }
    };
    let mut following = Simulation::new(1);
    day(&mut following, true);
    // As many instances as it had on average, rounded up.
    let average = (following.cost / following.now).ceil() as usize;
    let mut fixed = Simulation::new(average);
    day(&mut fixed, false);
    assert!(
        following.mean_wait() < 0.5 * fixed.mean_wait(),
        "{} with {average} instances on average, {} with as many always",
        following.mean_wait(),
        fixed.mean_wait()
    );
}

#[test]
fn requests_that_wait_for_their_batch_start_nothing() {
    let mut controller = Controller::default();
    let load = Load { instances: 2, waiting: 5.0, busy: 0.4 };
    assert!((0..10_000).all(|_| controller.observe(load, LIMITS, TICK, PACE) == 2));
}

proptest! {
    #[test]
    fn the_number_stays_within_its_limits(
        min in 1..5_usize,
        more in 0..5_usize,
        loads in prop::collection::vec((0.0..20.0_f64, 0.0..1.0_f64, 1..600_u64), 1..200),
        start in 0..5_000_u64,
    ) {
        let limits = Limits { min, max: min + more };
        let pace = Pace { start: Duration::from_millis(start), ..PACE };
        let (mut controller, mut instances) = (Controller::default(), 3);
        for (waiting, used, ticks) in loads {
            let load = Load { instances, waiting, busy: used * instances as f64 };
            instances = controller.observe(load, limits, TICK * ticks as u32, pace);
            prop_assert!((limits.min..=limits.max).contains(&instances));
        }
    }

    #[test]
    fn nothing_starts_before_requests_have_waited_as_long_as_a_start_takes(
        waiting in 0.1..50.0_f64,
        start in 1..10_000_u64,
    ) {
        let start = Duration::from_millis(start).max(LEAST_START);
        let mut controller = Controller::default();
        let mut waited = 0.0;
        loop {
            let load = Load { instances: 1, waiting, busy: 1.0 };
            let wanted = controller.observe(load, LIMITS, TICK, Pace { start, ..PACE });
            waited += waiting * TICK.as_secs_f64();
            if wanted > 1 {
                prop_assert!(waited + 1e-6 >= start.as_secs_f64());
                prop_assert!(waited < start.as_secs_f64() + 2.0 * waiting * TICK.as_secs_f64());
                break;
            }
        }
    }
}

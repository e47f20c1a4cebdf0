//! Simulates a model: arrivals, a queue, and instances with the execution times of a function.
//!
//! All numbers are the same on every machine: no function of a system's mathematical library has a part in them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::batcher::{BatchFormer, BatchItem};
use crate::{Item, Queue, Readiness, Refusal};

/// Random numbers by a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Evenly distributed over 0..1, never 0.
    pub fn even(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// A time between two events that happen this often.
    pub fn pause(&mut self, rate: f64) -> f64 {
        -logarithm(self.even()) / rate
    }

    /// Close to the normal distribution with mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }
}

fn logarithm(x: f64) -> f64 {
    let (mut x, mut twos) = (x, 0.0);
    while x < 0.75 {
        (x, twos) = (x * 2.0, twos + 1.0);
    }
    let y = (x - 1.0) / (x + 1.0);
    let square = y * y;
    let series = (0..10).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    2.0 * y * series - twos * std::f64::consts::LN_2
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub size: usize,
    pub priority: u64,
    pub deadline: Option<Instant>,
    pub timeout: Option<Duration>,
    /// Different kinds do not go together.
    pub kind: u8,
    /// In nanoseconds.
    pub arrived: u64,
    pub phase: usize,
    pub client: Option<usize>,
}

impl Job {
    pub fn new() -> Self {
        let (deadline, timeout, client) = (None, None, None);
        Self { size: 1, priority: 0, deadline, timeout, kind: 0, arrived: 0, phase: 0, client }
    }
}

impl Item for Job {
    fn refuse(self, _: Refusal) {}

    fn deadline(&self) -> Option<Instant> {
        self.deadline
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

/// Jobs of a kind go together.
pub struct Kinds;

impl BatchFormer<Job> for Kinds {
    fn begin(&mut self, _: &Job) {}

    fn joins(&mut self, first: &Job, job: &Job) -> bool {
        first.kind == job.kind
    }

    fn leave(&mut self, batch: Vec<Job>) -> Vec<Job> {
        batch
    }
}

/// The senders of requests.
pub enum Senders {
    /// Requests a second, at a part of the phase from 0 to 1. They do not wait for answers.
    Open(fn(f64) -> f64),
    /// Requests a second, two rates that alternate after mean times in seconds.
    Bursts([f64; 2], [f64; 2]),
    /// Clients that send the next request after the answer, within these seconds.
    Clients(usize, f64),
}

/// A part of a load.
pub struct Phase {
    pub seconds: f64,
    pub senders: Senders,
    /// How much longer executions take, at a part of the phase from 0 to 1.
    pub slowness: fn(f64) -> f64,
}

/// A model and what it is sent.
pub struct Load {
    pub instances: usize,
    pub max_size: usize,
    /// In seconds.
    pub objective: f64,
    /// How long a batch of a size takes, in seconds.
    pub service: fn(f64, &mut Random) -> f64,
    pub phases: Vec<Phase>,
}

/// Counts and latencies of the requests of a phase.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub answered: usize,
    pub late: usize,
    /// The time that instances executed, and the time that passed, in seconds.
    pub busy: f64,
    pub passed: f64,
    pub batches: usize,
    /// In seconds.
    pub latencies: Vec<f64>,
}

impl Outcome {
    pub fn late_share(&self) -> f64 {
        self.late as f64 / self.answered.max(1) as f64
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { phase: usize, client: Option<usize> },
    Done { instance: usize },
}

const NANOS: f64 = 1e9;

/// When the requests of senders that do not wait arrive, in seconds from the start of their phase.
fn arrivals(phase: &Phase, random: &mut Random) -> Vec<f64> {
    let mut times = Vec::new();
    let mut now = 0.0;
    match &phase.senders {
        Senders::Open(rate) => {
            let most = (0..=100).map(|part| rate(f64::from(part) / 100.0)).fold(0.0, f64::max);
            loop {
                now += random.pause(most);
                if now >= phase.seconds {
                    return times;
                }
                if random.even() * most < rate(now / phase.seconds) {
                    times.push(now);
                }
            }
        }
        Senders::Bursts(rates, means) => {
            let (mut state, mut end) = (0, random.pause(1.0 / means[0]));
            while now < phase.seconds {
                let next = if rates[state] > 0.0 { now + random.pause(rates[state]) } else { f64::MAX };
                if next < end {
                    now = next;
                    times.push(now);
                } else {
                    (now, state) = (end, 1 - state);
                    end += random.pause(1.0 / means[state]);
                }
            }
            times
        }
        Senders::Clients(count, pause) => (0..*count).map(|_| random.even() * pause).collect(),
    }
}

/// Executes a load; the outcome of each phase. The queue was empty at `start`.
pub fn execute<Q: Queue<Item = Job>>(mut queue: Q, load: &Load, start: Instant) -> Vec<Outcome> {
    let mut random = Random::new(7);
    let mut events = BinaryHeap::new();
    let mut ends = Vec::new();
    let mut end = 0.0;
    for (index, phase) in load.phases.iter().enumerate() {
        let waits = matches!(phase.senders, Senders::Clients(..));
        for (client, time) in arrivals(phase, &mut random).into_iter().enumerate() {
            let event = Event::Arrival { phase: index, client: waits.then_some(client) };
            events.push(Reverse((((end + time) * NANOS) as u64, events.len(), event)));
        }
        end += phase.seconds;
        ends.push(end);
    }
    let mut number = events.len();
    let mut outcomes = vec![Outcome::default(); ends.len()];
    for (outcome, phase) in outcomes.iter_mut().zip(&load.phases) {
        outcome.passed = phase.seconds;
    }
    let mut idle: Vec<usize> = (0..load.instances).collect();
    let mut batches: Vec<Vec<Job>> = vec![Vec::new(); load.instances];
    let mut wakes: Option<u64> = None;
    let mut now = 0;
    let at = |nanos: u64| start + Duration::from_nanos(nanos);
    loop {
        let next = events.peek().map(|Reverse((time, ..))| *time);
        let is_event = match (next, wakes) {
            (None, None) => return outcomes,
            (Some(next), Some(wakes)) => next <= wakes,
            (next, _) => next.is_some(),
        };
        if !is_event {
            now = now.max(wakes.unwrap_or(now));
        } else if let Some(Reverse((time, _, event))) = events.pop() {
            now = now.max(time);
            match event {
                Event::Arrival { phase, client } => {
                    let job = Job { arrived: now, phase, client, ..Job::new() };
                    assert!(queue.push(job, at(now)).is_ok());
                }
                Event::Done { instance } => {
                    queue.finished(instance, at(now));
                    idle.push(instance);
                    for job in std::mem::take(&mut batches[instance]) {
                        let latency = (now - job.arrived) as f64 / NANOS;
                        let outcome = &mut outcomes[job.phase];
                        outcome.answered += 1;
                        outcome.late += usize::from(latency > load.objective);
                        outcome.latencies.push(latency);
                        let Senders::Clients(_, pause) = load.phases[job.phase].senders else { continue };
                        let again = now as f64 / NANOS + random.even() * pause;
                        if again < ends[job.phase] {
                            let event = Event::Arrival { phase: job.phase, client: job.client };
                            number += 1;
                            events.push(Reverse(((again * NANOS) as u64, number, event)));
                        }
                    }
                }
            }
        }
        wakes = None;
        while let Some(&instance) = idle.last() {
            match queue.readiness(at(now)) {
                Readiness::Nothing => break,
                Readiness::At(time) => {
                    wakes = Some((time - start).as_nanos() as u64);
                    break;
                }
                Readiness::Now => {}
            }
            let batch = queue.take(at(now));
            assert!(!batch.is_empty());
            queue.started(instance, at(now));
            idle.pop();
            let index = batch[0].phase;
            let (phase, outcome) = (&load.phases[index], &mut outcomes[index]);
            let part = 1.0 - (ends[index] - now as f64 / NANOS) / phase.seconds;
            let size = batch.iter().map(|job| job.size).sum::<usize>();
            let seconds = (load.service)(size as f64, &mut random) * (phase.slowness)(part.min(1.0));
            outcome.busy += seconds;
            outcome.batches += 1;
            batches[instance] = batch;
            number += 1;
            events.push(Reverse((now + (seconds * NANOS) as u64, number, Event::Done { instance })));
        }
    }
}

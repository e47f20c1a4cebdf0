//! The dynamic batcher of models with a latency objective: delays and sizes follow the measured runs and the arrivals.
//!
//! Which requests go together, in which order, and for how long they may wait at most, are the rules of [`Batcher`]. Only when a
//! batch leaves is decided here.

mod arrivals;
mod controller;
mod run_times;

use std::time::{Duration, Instant};

use self::controller::{Controller, Finished, Forming, Seconds};
use super::{BatchFormer, BatchItem, Batcher, Rules};
use crate::{Adaptation, Queue, Readiness, Refusal, Ticket, WaitingLevel};

/// How long before a request expires its batch leaves, as a part of the objective.
const BEFORE_EXPIRY: f64 = 0.1;

/// Changes of the size that is aimed at are logged at most this often.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// A model with a latency objective.
#[derive(Clone, Debug)]
pub struct Objective {
    /// The model's name, for the log.
    pub model: String,
    /// The time within which 99 of 100 requests should be answered.
    pub latency: Duration,
    /// How many batches are executed at the same time.
    pub instances: usize,
}

/// Requests that wait, and the rules by which they leave in batches that meet an objective.
pub struct AdaptiveBatcher<T, F> {
    batcher: Batcher<T, F>,
    objective: Objective,
    controller: Controller,
    start: Instant,
    /// The earliest time at which a client that has a request in the queue stops waiting.
    deadline: Option<Instant>,
    /// The last batch that left, until its instance is known.
    leaving: Execution,
    /// The executions by instance.
    executions: Vec<Execution>,
    /// Items in all executions.
    executing: usize,
    logged: (usize, Option<Instant>),
}

/// A batch that is being executed, or was. Kept for its memory.
#[derive(Clone, Debug, Default)]
struct Execution {
    began: Option<Instant>,
    size: usize,
    /// How long it waited for company.
    waited: Duration,
    /// When each of its requests arrived.
    arrivals: Vec<Instant>,
}

impl<T: BatchItem, F: BatchFormer<T>> AdaptiveBatcher<T, F> {
    /// An empty queue. Preferred sizes of the rules are ignored, and their delay limits those that are chosen, unless it is 0.
    pub fn new(rules: Rules, former: F, objective: Objective, now: Instant) -> Self {
        let max_delay = if rules.delay.is_zero() { f64::INFINITY } else { rules.delay.as_secs_f64() };
        let latency = objective.latency.as_secs_f64();
        let controller = Controller::new(latency, max_delay, objective.instances, rules.max_batch_size);
        Self {
            executions: vec![Execution::default(); objective.instances],
            batcher: Batcher::new(rules, former),
            controller,
            objective,
            start: now,
            deadline: None,
            leaving: Execution::default(),
            executing: 0,
            logged: (0, None),
        }
    }

    fn seconds(&self, time: Instant) -> Seconds {
        time.saturating_duration_since(self.start).as_secs_f64()
    }

    fn in_progress(&self) -> usize {
        self.batcher.size + self.executing
    }

    /// Items that are certainly not answered yet. Instances report the end of an execution after its answers left, so that clients may
    /// send their next requests before; only the first halves of executions count.
    fn unanswered(&self, now: Instant) -> usize {
        let executions = self.executions.iter().filter(|execution| {
            let took = |began| now.saturating_duration_since(began).as_secs_f64();
            let took = execution.began.map_or(f64::INFINITY, took);
            took * 2.0 < self.controller.expected(execution.size)
        });
        executions.map(|execution| execution.size).sum()
    }

    /// The next batch, and whether it cannot grow.
    fn forming(&mut self) -> Option<(Forming, bool)> {
        let forming = self.batcher.form()?;
        let seconds = |time: Option<Instant>| time.map_or(f64::INFINITY, |time| self.seconds(time));
        let margin = self.objective.latency.as_secs_f64() * BEFORE_EXPIRY;
        let answered = seconds(self.deadline) - self.controller.run_time().unwrap_or(0.0);
        let batch = Forming {
            size: forming.size,
            oldest: self.seconds(forming.oldest),
            latest: answered.min(seconds(self.batcher.next_expiry())) - margin,
            in_progress: self.in_progress(),
        };
        Some((batch, forming.blocker.is_some() || self.batcher.closed))
    }

    /// The batch that leaves now, or when one does.
    fn decide(&mut self, now: Instant) -> Result<Forming, Readiness> {
        if self.batcher.len < self.batcher.rules.hold {
            return Err(Readiness::Nothing);
        }
        self.batcher.rules.hold = 0;
        let (batch, is_complete) = self.forming().ok_or(Readiness::Nothing)?;
        if is_complete {
            return Ok(batch);
        }
        match self.controller.decide(batch, self.seconds(now)) {
            None => Ok(batch),
            // Rounded up, so that the wait is over by then.
            Some(until) => {
                let until = Duration::try_from_secs_f64(until).unwrap_or_default() + Duration::from_nanos(1);
                Err(Readiness::At(self.start + until))
            }
        }
    }

    fn log(&mut self, now: Instant) {
        let aim = self.controller.aim();
        let (logged, at) = self.logged;
        let is_news = aim.abs_diff(logged) * 4 > logged;
        if !is_news || at.is_some_and(|at| now.saturating_duration_since(at) < LOG_PAUSE) {
            return;
        }
        self.logged = (aim, Some(now));
        let Adaptation { delay, run_time, .. } = self.adapted();
        tracing::debug!(
            "model '{}': batches of {aim} within {:?}, delay {delay:?}, execution {run_time:?}",
            self.objective.model,
            self.objective.latency
        );
    }

    fn adapted(&self) -> Adaptation {
        let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Adaptation {
            objective: self.objective.latency,
            batch_size: self.controller.aim(),
            delay: duration(self.controller.delay()),
            run_time: self.controller.run_time().map(duration),
        }
    }
}

impl<T: BatchItem, F: BatchFormer<T>> Queue for AdaptiveBatcher<T, F> {
    type Item = T;

    const OBSERVES_EXECUTIONS: bool = true;

    fn push(&mut self, item: T, now: Instant) -> Result<Ticket, (T, Refusal)> {
        if self.batcher.len == 0 {
            self.controller.forget_plan();
            self.deadline = None;
        }
        let (size, deadline) = (item.batch_size(), item.deadline());
        let ticket = self.batcher.push(item, now)?;
        self.deadline = self.deadline.into_iter().chain(deadline).min();
        let in_progress = self.batcher.size + self.unanswered(now);
        self.controller.arrived(size, in_progress, self.seconds(now));
        Ok(ticket)
    }

    /// None leaves without passing the queue: the time of its execution would not be seen.
    fn alone(&mut self, item: T) -> Result<Vec<T>, T> {
        Err(item)
    }

    fn readiness(&mut self, now: Instant) -> Readiness {
        match self.decide(now) {
            Ok(_) => Readiness::Now,
            Err(readiness) => readiness,
        }
    }

    fn first(&self) -> Option<&T> {
        self.batcher.first()
    }

    fn take(&mut self, now: Instant) -> Vec<T> {
        let Ok(batch) = self.decide(now) else { return Vec::new() };
        let idle = self.executions.iter().filter(|execution| execution.began.is_none()).count();
        let most = self.controller.most(batch, idle, self.seconds(now));
        let all = self.batcher.form().map_or(0, |forming| forming.count);
        let count = if most < batch.size { self.batcher.count_within(most).min(all) } else { all };
        let waited = self.controller.left(batch, self.seconds(now));
        let (leaving, before) = (&mut self.leaving, self.batcher.size);
        leaving.arrivals.clear();
        let items = self.batcher.leave(count, |arrived| leaving.arrivals.push(arrived));
        leaving.size = before - self.batcher.size;
        leaving.waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
        self.executing += leaving.size;
        self.deadline = None;
        items
    }

    fn remove(&mut self, ticket: Ticket) -> Option<T> {
        self.batcher.remove(ticket)
    }

    fn expire(&mut self, now: Instant) -> Vec<T> {
        self.batcher.expire(now)
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.batcher.next_expiry()
    }

    fn patience(&self, item: &T) -> Option<Duration> {
        self.batcher.patience(item)
    }

    fn batches_before(&self, item: &T) -> usize {
        self.batcher.batches_before(item)
    }

    fn waiting_levels(&self, most: usize) -> Vec<WaitingLevel> {
        self.batcher.waiting_levels(most)
    }

    fn len(&self) -> usize {
        self.batcher.len()
    }

    fn batches(&self) -> usize {
        self.batcher.batches()
    }

    fn close(&mut self) {
        self.batcher.close();
    }

    fn started(&mut self, instance: usize, now: Instant) {
        self.leaving.began = Some(now);
        if let Some(execution) = self.executions.get_mut(instance) {
            std::mem::swap(execution, &mut self.leaving);
        }
        self.leaving.began = None;
    }

    fn finished(&mut self, instance: usize, now: Instant) {
        let in_time = now.checked_sub(self.objective.latency);
        let Some(execution) = self.executions.get_mut(instance) else { return };
        let Some(began) = execution.began.take() else { return };
        self.executing -= execution.size;
        // Requests from before the first time were late, those from before the second one would have been without a wait, too.
        let late_anyway = in_time.and_then(|in_time| in_time.checked_sub(execution.waited));
        let before = |time: Option<Instant>| {
            execution.arrivals.iter().filter(|arrived| time.is_some_and(|time| **arrived < time)).count()
        };
        let (late, late_anyway) = (before(in_time), before(late_anyway));
        let run = Finished {
            size: execution.size,
            took: now.saturating_duration_since(began).as_secs_f64(),
            requests: execution.arrivals.len(),
            late: late - late_anyway,
            late_anyway,
        };
        self.controller.finished(run, self.seconds(now));
        self.log(now);
    }

    fn adaptation(&self) -> Option<Adaptation> {
        Some(self.adapted())
    }
}

#[cfg(test)]
mod tests;

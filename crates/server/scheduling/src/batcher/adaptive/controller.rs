//! Decides when a batch leaves, for the highest throughput at which 99 of 100 requests are answered within the objective.
//!
//! An instance serves the more requests the larger its batches are, so a batch waits for company as long as its oldest request
//! can: until the objective less the expected run. It leaves earlier
//! - at the size that is aimed at: the smallest one that larger ones hardly improve on, or the largest one that leaves time for
//!   another run in front of it, if that suffices for the load;
//! - if all clients wait for answers: then no request comes before one leaves;
//! - if no request came for a time in which fourteen were expected;
//! - at once, if the expected company would save less than 2 % of the instances' time.
//!
//! Late answers of batches that would have been in time without their wait lower the part of the objective that is used.
//! Knows no queue and no clock: sizes and times are arguments.

use super::arrivals::Arrivals;
use super::run_times::RunTimes;

/// A time since the start of the scheduler, or a duration, in seconds.
pub(super) type Seconds = f64;

/// The arrivals of this many objectives make their rate.
const WINDOW: f64 = 5.0;

/// The share of the instances' time that waiting has to save.
const LEAST_SAVING: f64 = 0.02;

/// The expected requests whose absence ends a wait.
const MISSING: f64 = 14.0;

/// The size that is aimed at serves at least this share of the requests that the best size does in the same time.
const NEARLY_BEST: f64 = 0.99;

/// How much more than the arriving items the instances have to be able to serve.
const HEADROOM: f64 = 1.1;

/// The accepted share of late requests: less than one in a hundred.
const LATE: f64 = 0.007;

/// The accepted share of requests that are late because of a wait, however many are late without one.
const LEAST_LATE: f64 = 0.001;

/// How much a request counts that would have been late without a wait of its batch: the batch in front of it may have been too
/// large.
const ANYWAY: f64 = 0.25;

/// Requests over which the share of those that are late without a wait is averaged.
const AVERAGED: f64 = 1000.0;

/// How much a late answer lowers the used part of the objective.
const STEP: f64 = 0.01;

/// The least and the greatest part of the objective that is used.
const LEAST_USED: f64 = 0.3;
const MOST_USED: f64 = 0.99;

/// The part of the mean deviation of runs that is added to the expected times.
const MARGIN: f64 = 0.5;

/// How much longer all instances have to take for a split batch to be worth more of their time.
const SPLIT: f64 = 1.1;

/// A planned end is moved forward only by more than this part of the objective, because each change wakes up a thread.
const NEGLIGIBLE: f64 = 0.02;

/// The next batch, as far as its requests have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forming {
    /// Items in it.
    pub(super) size: usize,
    /// When its oldest request arrived.
    pub(super) oldest: Seconds,
    /// When it has to leave for another reason than the objective.
    pub(super) latest: Seconds,
    /// Items in progress: waiting or being executed.
    pub(super) in_progress: usize,
}

/// A decided wait.
#[derive(Clone, Copy, Debug)]
struct Plan {
    began: Seconds,
    oldest: Seconds,
    until: Seconds,
    /// The size that the batch is expected to have by then.
    size: f64,
}

/// A finished run of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) size: usize,
    pub(super) took: Seconds,
    /// All requests.
    pub(super) requests: usize,
    /// Requests that were late because of a wait.
    pub(super) late: usize,
    /// Requests that were late, and would have been without a wait.
    pub(super) late_anyway: usize,
}

/// Chooses delays and sizes for a model.
pub(super) struct Controller {
    objective: Seconds,
    /// The configured limit of delays.
    max_delay: Seconds,
    instances: f64,
    max_size: usize,
    times: RunTimes,
    arrivals: Arrivals,
    plan: Option<Plan>,
    /// The part of the objective that waits may use up.
    used: f64,
    /// The share of requests that are late without a wait of their batch.
    late_anyway: f64,
    /// The size at which a batch leaves at once.
    aim: usize,
    /// The size that makes the most of an instance's time.
    best: usize,
    /// The wait that was planned for the last batch.
    delay: Seconds,
}

impl Controller {
    pub(super) fn new(objective: Seconds, max_delay: Seconds, instances: usize, max_size: usize) -> Self {
        Self {
            objective,
            max_delay,
            instances: instances.max(1) as f64,
            max_size,
            times: RunTimes::new(max_size),
            arrivals: Arrivals::new(WINDOW * objective),
            plan: None,
            used: MOST_USED,
            late_anyway: 0.0,
            aim: max_size,
            best: max_size,
            delay: 0.0,
        }
    }

    /// The size that is aimed at.
    pub(super) fn aim(&self) -> usize {
        self.aim
    }

    /// How long the last batch was to wait for company.
    pub(super) fn delay(&self) -> Seconds {
        self.delay
    }

    /// The expected time of a run at the size that is aimed at, if any is known.
    pub(super) fn run_time(&self) -> Option<Seconds> {
        self.times.is_known().then(|| self.times.expected(self.aim as f64))
    }

    /// The expected time of a run of this many items. Infinite before any is known.
    pub(super) fn expected(&self, size: usize) -> Seconds {
        self.times.expected(size as f64)
    }

    /// A request of this many items arrived. `in_progress` includes it.
    pub(super) fn arrived(&mut self, size: usize, in_progress: usize, now: Seconds) {
        self.arrivals.add(size, in_progress, now);
    }

    /// Drops the plan. The queue was empty since then.
    pub(super) fn forget_plan(&mut self) {
        self.plan = None;
    }

    /// Until when the batch waits, unless something changes before; `None` if it leaves now.
    pub(super) fn decide(&mut self, batch: Forming, now: Seconds) -> Option<Seconds> {
        let is_enough = batch.size >= self.aim || self.arrivals.are_over(batch.in_progress);
        if is_enough || !self.times.is_known() {
            return None;
        }
        let planned = self.plan.filter(|plan| plan.oldest <= batch.oldest);
        let plan = match planned {
            Some(plan) if batch.size as f64 <= plan.size => plan,
            // More arrived than expected, and the run takes longer.
            Some(plan) => {
                let (until, size) = self.end_of_wait(batch, now);
                let is_earlier = until < plan.until - NEGLIGIBLE * self.objective;
                Plan { until: if is_earlier { until } else { plan.until }, size, ..plan }
            }
            None => {
                let (until, size) = self.end_of_wait(batch, now);
                if until <= now || self.saving(batch.size as f64, size, now) < LEAST_SAVING {
                    self.delay = 0.0;
                    return None;
                }
                self.delay = until - batch.oldest;
                Plan { began: now, oldest: batch.oldest, until, size }
            }
        };
        self.plan = Some(plan);
        let until = plan.until.min(batch.latest).min(self.arrivals.missing_since(MISSING, now));
        (until > now).then_some(until)
    }

    /// When the oldest request of a batch has to leave to be answered in time, and the expected size by then.
    fn end_of_wait(&self, batch: Forming, now: Seconds) -> (Seconds, f64) {
        let answered = batch.oldest + self.used * self.objective;
        let rate = self.arrivals.rate(now);
        let grown = |until: Seconds| {
            let size = batch.size as f64 + rate * (until - now).max(0.0);
            size.min((self.aim as f64).max(batch.size as f64))
        };
        let run = self.times.expected(grown(answered)) * (1.0 + MARGIN * self.times.deviation());
        let until = (answered - run).min(batch.oldest + self.max_delay);
        (until, grown(until))
    }

    /// The share of the instances' time that is saved if batches leave with `later` items instead of `size`.
    fn saving(&self, size: f64, later: f64, now: Seconds) -> f64 {
        let by_item = |size: f64| self.times.expected(size) / size;
        self.arrivals.rate(now) * (by_item(size) - by_item(later)) / self.instances
    }

    /// The most items that leave at once, of a batch whose oldest request has waited so long.
    pub(super) fn most(&self, batch: Forming, idle: usize, now: Seconds) -> usize {
        if !self.times.is_known() {
            return batch.size;
        }
        let expected = self.times.expected(batch.size as f64);
        let slack = self.objective - (now - batch.oldest);
        if expected > slack {
            // The most that are in time. If none is, what clears the queue the fastest.
            let in_time = self.times.all().rev().find(|(_, time)| *time <= slack);
            return in_time.map_or(self.best, |(size, _)| size).max(self.aim);
        }
        // All clients wait for answers: instances that are idle now stay so.
        let split = batch.size.div_ceil(idle.max(1));
        if self.arrivals.are_over(batch.in_progress) && expected > SPLIT * self.times.expected(split as f64) {
            split
        } else {
            batch.size
        }
    }

    /// A batch leaves. The result is how long it waited for company.
    pub(super) fn left(&mut self, batch: Forming, now: Seconds) -> Seconds {
        self.arrivals.batch_left(batch.in_progress);
        self.plan.take().map_or(0.0, |plan| (now - plan.began).max(0.0))
    }

    /// A run has ended.
    pub(super) fn finished(&mut self, run: Finished, now: Seconds) {
        let is_new = self.times.add(run.size, run.took);
        let requests = run.requests.max(1) as f64;
        self.late_anyway +=
            (run.late_anyway as f64 / requests - self.late_anyway) * (requests / AVERAGED).min(1.0);
        let accepted = (LATE - self.late_anyway).max(LEAST_LATE);
        let change = STEP * (accepted * requests - run.late as f64 - ANYWAY * run.late_anyway as f64);
        self.used = (self.used + change).clamp(LEAST_USED, MOST_USED);
        if is_new {
            self.choose_sizes(now);
        }
    }

    fn choose_sizes(&mut self, now: Seconds) {
        let rates = || self.times.all().map(|(size, time)| (size, size as f64 / time));
        let best_rate = rates().map(|(_, rate)| rate).fold(0.0, f64::max);
        let first_with = |least: f64| rates().find(|(_, rate)| *rate >= least).map(|(size, _)| size);
        let Some(best) = first_with(NEARLY_BEST * best_rate) else { return };
        // A request that arrives when all instances have just begun waits for the first to end.
        let runs = (1.0 + MARGIN * self.times.deviation()) * (1.0 + 1.0 / self.instances);
        let known = self.times.greatest_known() * 2;
        let in_time = self
            .times
            .all()
            .take_while(|(size, time)| *size <= known && time * runs <= self.used * self.objective);
        let in_time = in_time.last().map_or(1, |(size, _)| size);
        let needed = first_with(HEADROOM * self.arrivals.rate(now) / self.instances).unwrap_or(self.max_size);
        self.best = best;
        self.aim = in_time.min(best).max(needed);
    }
}

//! The search: all candidates for a short time, the best third for longer, and so on, within a limit of time.
//!
//! Poor candidates cost little time then, and good ones are measured well. The present configuration is measured first and stays to the
//! end, as the baseline and to estimate how many candidates fit into the time. If some do not, the search prefers neighbours of the best
//! candidate so far.

mod objective;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

pub use self::objective::{Goal, Measurement, Objective};
use self::pace::Pace;
use crate::settings::{Engine, Settings};

/// The share of candidates that stay after a round, as a divisor.
const SHRINKING: usize = 3;
/// As many stay for the last round.
const FINALISTS: usize = 3;
/// The longest duration of a measurement, as a multiple of the expected one.
const PATIENCE: u32 = 3;

/// A candidate with its last measurement, or the reason of its failure.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The candidate.
    pub settings: Settings,
    /// The last and longest measurement.
    pub outcome: Result<Measurement, Failure>,
    /// Rounds in which it was measured.
    pub rounds: u32,
}

impl Trial {
    /// Whether the search ended before the candidate was measured.
    pub fn is_untried(&self) -> bool {
        self.outcome == Err(Failure::Untried)
    }

    /// Why the candidate does not run.
    pub fn failure(&self) -> Option<&Failure> {
        self.outcome.as_ref().err().filter(|failure| **failure != Failure::Untried)
    }
}

/// The reason of a missing measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The search ended first.
    Untried,
    /// A measurement took far longer than expected.
    Slow(Duration),
    /// The model cannot be loaded, or failed.
    Reason(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untried => formatter.write_str("not tried for lack of time"),
            Self::Slow(took) => {
                write!(formatter, "not loaded and measured within {:.1} s", took.as_secs_f64())
            }
            Self::Reason(reason) => formatter.write_str(reason),
        }
    }
}

/// The time for a measurement, without the load of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The longest warm-up.
    pub warm_up: Duration,
    /// The window in which answers count.
    pub window: Duration,
}

/// The time of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Start of the search, before the first load.
    pub began: Instant,
    /// Longest duration, including the curves afterwards.
    pub budget: Duration,
    /// The points of a curve.
    pub points: usize,
}

impl Limit {
    /// The end.
    pub fn end(&self) -> Instant {
        self.began + self.budget
    }
}

/// How far the search is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Measurements that are done, and all as far as is known.
    pub done: usize,
    /// See `done`.
    pub all: usize,
    /// The time until the end of the search.
    pub left: Duration,
    /// The best so far.
    pub best: Option<Measurement>,
}

/// The result of a search.
#[derive(Debug)]
pub struct Found {
    /// All candidates, the best first.
    pub trials: Vec<Trial>,
    /// The time for each point of curves, if there is time for them.
    pub point: Option<Duration>,
    /// A sufficient time for all candidates or, if only the present configuration was measured, for one other.
    pub enough: Duration,
}

/// The planned sizes of the rounds after the first one.
fn later_sizes(count: usize) -> Vec<usize> {
    if count < 2 {
        return Vec::new();
    }
    let next = |size: &usize| (*size > FINALISTS).then(|| size.div_ceil(SHRINKING).max(FINALISTS));
    let first = next(&count).unwrap_or(count);
    std::iter::successors(Some(first), next).collect()
}

/// Measures the candidates, the first of which is the present configuration. Drops a measurement that is still in progress at the end of
/// the limit.
pub async fn search(
    candidates: Vec<Settings>,
    objective: &Objective,
    limit: Limit,
    mut measure: impl AsyncFnMut(&Settings, Slot) -> Result<Measurement, String>,
    mut progress: impl FnMut(Progress),
) -> Found {
    let mut course = Course::new(candidates, objective, limit);
    let slot = course.pace.probe(limit.budget);
    if let Some(&present) = course.trials.first().map(|trial| &trial.settings) {
        course.run(present, slot, limit.began, course.deadline, &mut measure).await;
    }
    // Without it there would be nothing to compare with.
    if course.untried().count() < course.trials.len() {
        course.reserve_curves();
        course.try_all(&mut measure, &mut progress).await;
        course.compare_best(&mut measure, &mut progress).await;
    }
    course.end()
}

/// A search that is under way.
struct Course<'a> {
    objective: &'a Objective,
    limit: Limit,
    /// The end of the search, without the curves.
    deadline: Instant,
    point: Option<Duration>,
    pace: Pace,
    trials: Vec<Trial>,
    done: usize,
    /// The longest window so far.
    longest: Duration,
}

impl<'a> Course<'a> {
    fn new(candidates: Vec<Settings>, objective: &'a Objective, limit: Limit) -> Self {
        let trial = |settings| Trial { settings, outcome: Err(Failure::Untried), rounds: 0 };
        Self {
            objective,
            limit,
            deadline: limit.end(),
            point: None,
            pace: Pace::new(),
            trials: candidates.into_iter().map(trial).collect(),
            done: 0,
            longest: Duration::ZERO,
        }
    }

    /// Measures one candidate after the other, as far as there is time.
    async fn try_all(
        &mut self,
        measure: &mut impl AsyncFnMut(&Settings, Slot) -> Result<Measurement, String>,
        progress: &mut impl FnMut(Progress),
    ) {
        let began = Instant::now();
        let time = left(self.deadline);
        loop {
            self.skip_unavailable();
            let untried = self.untried().count();
            let count = self.trials.len().saturating_sub(1);
            let end = began + self.pace.first_round(time, count, began.elapsed(), untried);
            let count = self.fitting(end);
            let planned = later_sizes(self.measured().count() + count);
            let later = left(self.deadline).saturating_sub(self.pace.all(count, self.pace.shortest()));
            self.report(count + self.later_rounds(&planned, later).iter().sum::<usize>(), progress);
            let Some(settings) = self.next().filter(|_| count > 0) else { break };
            let shortest = self.pace.shortest();
            let window = self.pace.window(left(end), count, shortest).unwrap_or(shortest);
            self.run(settings, Pace::slot(window), Instant::now(), self.patience(window, end), measure).await;
        }
    }

    /// Measures the best for longer, in rounds.
    async fn compare_best(
        &mut self,
        measure: &mut impl AsyncFnMut(&Settings, Slot) -> Result<Measurement, String>,
        progress: &mut impl FnMut(Progress),
    ) {
        let mut planned = later_sizes(self.measured().count());
        loop {
            let sizes = self.later_rounds(&planned, left(self.deadline));
            let Some((&size, later)) = sizes.split_first() else { break };
            planned = later.to_vec();
            let shortest = self.later_shortest();
            let end = Instant::now() + left(self.deadline) / u32::try_from(sizes.len()).unwrap_or(u32::MAX);
            let members = self.best(size);
            let mut measured = Vec::new();
            for (done, &settings) in members.iter().enumerate() {
                let Some(window) = self.pace.window(left(end), members.len() - done, shortest) else { break };
                // It was measured before: what delays it now is the machine.
                if !self.run(settings, Pace::slot(window), Instant::now(), self.deadline, measure).await {
                    break;
                }
                measured.push(settings);
                let later: usize = self.later_rounds(&planned, left(self.deadline)).iter().sum();
                self.report(members.len() - done - 1 + later, progress);
            }
            if measured.len() < members.len() {
                // Do not rank candidates lower because the time was over.
                let again = self.trials.iter_mut().filter(|trial| measured.contains(&trial.settings));
                again.for_each(|trial| trial.rounds = trial.rounds.saturating_sub(1));
                self.objective.sort(&mut self.trials);
                self.report(0, progress);
                break;
            }
        }
    }

    /// Measures a candidate. Returns false if `until` comes first.
    async fn run(
        &mut self,
        settings: Settings,
        slot: Slot,
        began: Instant,
        until: Instant,
        measure: &mut impl AsyncFnMut(&Settings, Slot) -> Result<Measurement, String>,
    ) -> bool {
        let Some(trial) = self.trials.iter_mut().find(|trial| trial.settings == settings) else {
            return true;
        };
        self.done += 1;
        let outcome = timeout_at(until, measure(&settings, slot)).await;
        let is_complete = outcome.is_ok();
        match outcome {
            Ok(Ok(measured)) => {
                trial.outcome = Ok(measured);
                trial.rounds += 1;
                self.longest = self.longest.max(slot.window);
                self.pace.add(began.elapsed(), slot.window, measured.rate);
            }
            Ok(Err(reason)) => trial.outcome = Err(Failure::Reason(reason)),
            // An earlier measurement stays.
            Err(_) if trial.outcome.is_ok() => {}
            Err(_) if until < self.deadline => trial.outcome = Err(Failure::Slow(began.elapsed())),
            Err(_) => {}
        }
        self.objective.sort(&mut self.trials);
        is_complete
    }

    /// The deadline of a measurement.
    fn patience(&self, window: Duration, end: Instant) -> Instant {
        let slot = Pace::slot(window);
        let expected = self.pace.overhead() + slot.warm_up + slot.window;
        let mut most = (expected * PATIENCE).max(left(end) / 4);
        if self.measured().count() > 1 {
            // Others need time, too.
            most = most.min((left(self.deadline) / 2).max(expected * 2));
        }
        self.deadline.min(Instant::now() + most)
    }

    fn reserve_curves(&mut self) {
        let curves = self.pace.curves(self.limit.points, self.limit.budget);
        self.point = curves.map(|(_, point)| point);
        self.deadline -= curves.map_or(Duration::ZERO, |(time, _)| time);
    }

    /// The number of measurements until the end of the first round. At least one candidate is tried besides the present configuration.
    fn fitting(&self, end: Instant) -> usize {
        let slot = self.pace.all(1, self.pace.shortest()).as_nanos().max(1);
        let fitting = usize::try_from(left(end).as_nanos() / slot).unwrap_or(usize::MAX);
        let is_alone = self.measured().count() < 2 && !left(self.deadline).is_zero();
        fitting.max(usize::from(is_alone)).min(self.untried().count())
    }

    /// The sizes of the rounds that are planned, as far as they fit into some time.
    fn later_rounds(&self, planned: &[usize], time: Duration) -> Vec<usize> {
        self.pace.later_rounds(planned, time, self.later_shortest())
    }

    /// The shortest window of later rounds: about as long as those before.
    fn later_shortest(&self) -> Duration {
        self.pace.shortest().max(self.longest / 2)
    }

    fn untried(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.is_untried())
    }

    fn measured(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.outcome.is_ok())
    }

    /// The present configuration and the best others, `size` together.
    fn best(&self, size: usize) -> Vec<Settings> {
        let (present, others): (Vec<_>, Vec<_>) =
            self.measured().map(|trial| trial.settings).partition(|settings| *settings == Settings::PRESENT);
        present.into_iter().chain(others).take(size).collect()
    }

    /// The next candidate: the first of an untried engine, else the nearest neighbour of the best so far.
    fn next(&self) -> Option<Settings> {
        let is_untried =
            |engine| self.trials.iter().filter(|it| it.settings.engine == engine).all(Trial::is_untried);
        let best = self.measured().next().map_or(Settings::PRESENT, |trial| trial.settings);
        let key = |it: &Settings| (!is_untried(it.engine), it.distance(&best));
        self.untried().map(|trial| trial.settings).min_by_key(key)
    }

    /// Candidates of an engine that cannot run the model fail without a measurement.
    fn skip_unavailable(&mut self) {
        let reasons = self.untried().map(|trial| trial.settings.engine).collect::<BTreeSet<_>>();
        let reasons =
            reasons.into_iter().filter_map(|engine| Some((engine, unavailable(&self.trials, engine)?)));
        let reasons: BTreeMap<_, _> = reasons.collect();
        for trial in self.trials.iter_mut().filter(|trial| trial.is_untried()) {
            if let Some(reason) = reasons.get(&trial.settings.engine) {
                trial.outcome = Err(reason.clone());
                self.done += 1;
            }
        }
        self.objective.sort(&mut self.trials);
    }

    /// Reports progress, given the number of remaining measurements.
    fn report(&self, remaining: usize, progress: &mut impl FnMut(Progress)) {
        let curves = self.limit.end() - self.deadline;
        let longest = self.pace.all(remaining, self.pace.longest()) + curves;
        progress(Progress {
            done: self.done,
            all: self.done + remaining,
            left: left(self.limit.end()).min(longest),
            best: self.measured().next().and_then(|trial| trial.outcome.clone().ok()),
        });
    }

    fn end(self) -> Found {
        let is_alone = self.measured().count() < 2;
        let count = if is_alone { 1 } else { self.trials.len() };
        let enough = self.pace.enough(self.limit.budget, count);
        Found { enough, trials: self.trials, point: self.point }
    }
}

/// The time until an instant.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Why no candidate of an engine runs, if one failed, or two were slow, and none was measured.
fn unavailable(trials: &[Trial], engine: Engine) -> Option<Failure> {
    let of_engine = || trials.iter().filter(|trial| trial.settings.engine == engine);
    if engine == Engine::Configured || of_engine().any(|trial| trial.outcome.is_ok()) {
        return None;
    }
    let failures = || of_engine().filter_map(Trial::failure);
    // The machine may have been busy once.
    failures().find(|failure| matches!(failure, Failure::Reason(_))).or_else(|| failures().nth(1)).cloned()
}

#[cfg(test)]
mod tests;

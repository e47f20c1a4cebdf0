//! The search: all candidates for a short time, the best third for three times as long, and so on.
//!
//! Poor candidates cost little time then, and good ones are measured well. The present configuration stays to the end, since the others
//! are compared with it.

use std::cmp::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::{Engine, Settings};

/// The share of candidates that stay after a round, as a divisor.
const SHRINKING: usize = 3;
/// As many stay for the last round.
const FINALISTS: usize = 3;
/// The shortest and the longest time in which a candidate is measured.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(15);
/// A start of a server, as long as none was seen.
const START: Duration = Duration::from_millis(700);
/// The gain from which on a change is advised.
const GAIN: f64 = 1.03;
/// With the objective of memory, the share of the most requests that is enough.
const ENOUGH: f64 = 0.8;

/// The figures of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Answers a second.
    pub rate: f64,
    /// Milliseconds within which half of the requests, and 99 of 100, were answered.
    pub median: f64,
    /// See `median`.
    pub p99: f64,
    /// Processor time of the server and its processes, in milliseconds a request.
    pub cpu: f64,
    /// Memory of the server and its processes, in bytes.
    pub memory: u64,
}

/// The measure of the best settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The most requests a second.
    Throughput,
    /// The shortest time within which 99 of 100 requests are answered.
    Latency,
    /// The least memory with which nearly as many requests are answered as can be.
    Memory,
}

/// The goal, and a limit.
#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// The goal.
    pub goal: Goal,
    /// The most milliseconds within which 99 of 100 requests are to be answered.
    pub p99: Option<f64>,
}

/// A candidate with its last measurement, or the reason of its failure.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The candidate.
    pub settings: Settings,
    /// The last and longest measurement.
    pub outcome: Result<Measurement, String>,
    /// Rounds in which it was measured.
    pub rounds: u32,
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

impl Objective {
    /// The better of two measurements first. `most` is the highest rate of all that are compared.
    fn compare(&self, one: &Measurement, other: &Measurement, most: f64) -> Ordering {
        let late = |it: &Measurement| self.p99.is_some_and(|limit| it.p99 > limit);
        let slow = |it: &Measurement| self.goal == Goal::Memory && it.rate < ENOUGH * most;
        let misses = |it: &Measurement| (late(it), slow(it));
        misses(one).cmp(&misses(other)).then_with(|| match (late(one), slow(one), self.goal) {
            (true, ..) | (_, _, Goal::Latency) => one.p99.total_cmp(&other.p99),
            (_, true, _) | (_, _, Goal::Throughput) => other.rate.total_cmp(&one.rate),
            (_, _, Goal::Memory) => one.memory.cmp(&other.memory),
        })
    }

    /// Sorts trials, the best first and those that do not run last.
    pub fn sort(&self, trials: &mut [Trial]) {
        let rates = trials.iter().filter_map(|trial| Some(trial.outcome.as_ref().ok()?.rate));
        let most = rates.fold(0.0, f64::max);
        trials.sort_by(|one, other| match (&one.outcome, &other.outcome) {
            (Ok(left), Ok(right)) => {
                // What was measured longer is known better.
                other.rounds.cmp(&one.rounds).then_with(|| self.compare(left, right, most))
            }
            (left, right) => left.is_err().cmp(&right.is_err()),
        });
    }

    /// Whether a measurement is better than the one of the present configuration by more than chance.
    fn gains(&self, one: &Measurement, present: &Measurement) -> bool {
        if self.compare(one, present, one.rate.max(present.rate)) != Ordering::Less {
            return false;
        }
        let late = self.p99.is_some_and(|limit| present.p99 > limit);
        let factor = match self.goal {
            _ if late => return true,
            Goal::Throughput => one.rate / present.rate,
            Goal::Latency => present.p99 / one.p99,
            Goal::Memory => present.memory as f64 / one.memory.max(1) as f64,
        };
        factor >= GAIN || self.goal == Goal::Memory && present.rate < ENOUGH * one.rate
    }

    /// The settings to be advised: the best, or the present ones unless another gains by them.
    pub fn advised<'a>(&self, sorted: &'a [Trial]) -> Option<&'a Trial> {
        let best = sorted.first().filter(|trial| trial.outcome.is_ok())?;
        let present = sorted.iter().find(|trial| trial.settings == Settings::PRESENT);
        let Some((present, Ok(before))) = present.map(|trial| (trial, &trial.outcome)) else {
            return Some(best);
        };
        let gains = best.outcome.as_ref().is_ok_and(|after| self.gains(after, before));
        Some(if gains { best } else { present })
    }
}

/// How many candidates each round has.
fn rounds(count: usize) -> Vec<usize> {
    let mut sizes = vec![count.max(1)];
    while let Some(&last) = sizes.last()
        && last > FINALISTS
    {
        sizes.push(last.div_ceil(SHRINKING).max(FINALISTS));
    }
    sizes
}

/// Measures the candidates, the first of which is the present configuration, within about `budget`. Sorted, the best first.
pub async fn search(
    candidates: Vec<Settings>,
    objective: &Objective,
    budget: Duration,
    mut measure: impl AsyncFnMut(&Settings, Duration) -> Result<Measurement, String>,
    mut progress: impl FnMut(Progress),
) -> Vec<Trial> {
    let began = Instant::now();
    let sizes = rounds(candidates.len());
    let mut ended: Vec<Trial> = Vec::new();
    let mut open: Vec<Trial> = candidates
        .into_iter()
        .map(|settings| Trial { settings, outcome: Err(String::new()), rounds: 0 })
        .collect();
    let (mut starts, mut starting) = (0_u32, Duration::ZERO);
    let mut done = 0;
    for (round, size) in sizes.iter().enumerate() {
        if round > 0 {
            objective.sort(&mut open);
            let is_present = |trial: &Trial| trial.settings == Settings::PRESENT;
            let (present, mut others): (Vec<_>, Vec<_>) = open.into_iter().partition(is_present);
            others.retain(|trial| match trial.outcome {
                Ok(_) => true,
                Err(_) => {
                    ended.push(trial.clone());
                    false
                }
            });
            ended.extend(others.split_off(others.len().min(size.saturating_sub(present.len()))));
            open = present.into_iter().chain(others).collect();
        }
        let later: usize = sizes.iter().skip(round + 1).sum();
        // Rounds take equal times.
        let rounds = u32::try_from(sizes.len() - round).unwrap_or(1);
        let end = began.elapsed() + budget.saturating_sub(began.elapsed()) / rounds;
        for at in 0..open.len() {
            let start = starting.checked_div(starts).unwrap_or(START);
            let count = u32::try_from(open.len() - at).unwrap_or(u32::MAX);
            let window = end.saturating_sub(began.elapsed()) / count;
            let window = window.saturating_sub(start).clamp(SHORTEST, LONGEST);
            let failed = open.get(at).and_then(|trial| unavailable(&open, trial.settings.engine));
            let Some(trial) = open.get_mut(at) else { break };
            trial.outcome = match failed {
                Some(reason) => Err(reason),
                None => {
                    let before = Instant::now();
                    let outcome = measure(&trial.settings, window).await;
                    starts += 1;
                    starting += before.elapsed().saturating_sub(window);
                    outcome
                }
            };
            trial.rounds += u32::from(trial.outcome.is_ok());
            done += 1;
            let mut sorted: Vec<_> = open.iter().filter(|trial| trial.rounds > 0).cloned().collect();
            objective.sort(&mut sorted);
            progress(Progress {
                done,
                all: done + (open.len() - at - 1) + later,
                left: budget.saturating_sub(began.elapsed()),
                best: sorted.first().and_then(|trial| trial.outcome.clone().ok()),
            });
        }
    }
    ended.extend(open);
    objective.sort(&mut ended);
    ended
}

/// Why no candidate of an engine runs, if the first one did not and no other did.
fn unavailable(trials: &[Trial], engine: Engine) -> Option<String> {
    if engine == Engine::Configured {
        return None;
    }
    let mut of_engine = trials.iter().filter(|trial| trial.settings.engine == engine);
    let is_tried =
        |trial: &&Trial| trial.rounds > 0 || trial.outcome.as_ref().is_err_and(|why| !why.is_empty());
    let first = of_engine.clone().find(is_tried)?;
    let reason = first.outcome.as_ref().err().filter(|_| first.rounds == 0)?;
    of_engine.all(|trial| trial.rounds == 0).then(|| reason.clone())
}

#[cfg(test)]
mod tests;

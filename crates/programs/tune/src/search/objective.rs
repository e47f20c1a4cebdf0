//! Objectives, and the order of measurements by an objective.

use std::cmp::Ordering;

use super::{Failure, Trial};
use crate::settings::Settings;

/// The least gain of an advised change, and of one that was measured only once.
const GAIN: f64 = 1.03;
const GAIN_OF_ONE_ROUND: f64 = 1.15;
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
    /// The least memory at nearly the highest rate.
    Memory,
}

/// The goal, and a limit.
#[derive(Clone, Copy, Debug)]
pub struct Objective {
    /// The goal.
    pub goal: Goal,
    /// The longest acceptable p99, in milliseconds.
    pub p99: Option<f64>,
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

    /// Sorts trials: the best first, then those that do not run, and last those that were not tried.
    pub fn sort(&self, trials: &mut [Trial]) {
        let place = |outcome: &Result<Measurement, Failure>| match outcome {
            Ok(_) => 0,
            Err(Failure::Slow(_) | Failure::Reason(_)) => 1,
            Err(Failure::Untried) => 2,
        };
        let rates = trials.iter().filter_map(|trial| Some(trial.outcome.as_ref().ok()?.rate));
        let most = rates.fold(0.0, f64::max);
        trials.sort_by(|one, other| match (&one.outcome, &other.outcome) {
            (Ok(left), Ok(right)) => {
                // What was measured longer is known better.
                other.rounds.cmp(&one.rounds).then_with(|| self.compare(left, right, most))
            }
            (left, right) => place(left).cmp(&place(right)),
        });
    }

    /// Compares with the present configuration, allowing for chance.
    fn gains(&self, one: &Measurement, present: &Measurement, rounds: u32) -> bool {
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
        let least = if rounds > 1 { GAIN } else { GAIN_OF_ONE_ROUND };
        factor >= least || self.goal == Goal::Memory && present.rate < ENOUGH * one.rate
    }

    /// The settings to be advised: the best, or the present ones unless another gains by them.
    pub fn advised<'a>(&self, sorted: &'a [Trial]) -> Option<&'a Trial> {
        let best = sorted.first().filter(|trial| trial.outcome.is_ok())?;
        let present = sorted.iter().find(|trial| trial.settings == Settings::PRESENT);
        let Some((present, Ok(before))) = present.map(|trial| (trial, &trial.outcome)) else {
            return Some(best);
        };
        let gains = best.outcome.as_ref().is_ok_and(|after| self.gains(after, before, best.rounds));
        Some(if gains { best } else { present })
    }
}

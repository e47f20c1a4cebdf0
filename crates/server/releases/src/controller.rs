//! Which versions have which share, by their results: promotes a candidate that proved itself, and withdraws one that does not.
//!
//! Parts: `Established`; `Candidate` -> `Promoted` | `Withdrawn` | `Replaced` (another one was promoted). A promoted candidate is
//! the established version from then on, and the release is over: nothing leaves these states.
//!
//! A candidate is withdrawn as soon as its results are worse than the limits allow beyond chance. One with enough results is
//! promoted if they are within the limits, and withdrawn otherwise. An operator may decide before that. The first decision holds.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nereid_core::Verdict;

use crate::settings::{Rules, Settings};
use crate::shares::Shares;
use crate::trial::{Trial, likely_rates};

/// The least number of results, or of comparisons, before errors and differences withdraw a candidate.
const LEAST_CERTAIN: u64 = 20;

/// The least number of results, of both versions, before differences of latencies count.
const LEAST_LATENCIES: u64 = 50;

/// The least number of the established version's results before a candidate is promoted.
const LEAST_RESULTS: u64 = 100;

/// The compared latencies: the median, and the slowest but 5 %.
pub(crate) const QUANTILES: [(f64, &str); 2] = [(0.5, "median"), (0.95, "95th percentile")];

/// The part of a version in a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Other versions are compared with it.
    Established,
    /// A new version that has to prove itself.
    Candidate,
    /// A candidate that proved itself.
    Promoted(Reason),
    /// A candidate worse than the limits allow.
    Withdrawn(Reason),
    /// Another candidate was promoted.
    Replaced,
}

impl Part {
    /// The name for clients.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::Candidate => "candidate",
            Self::Promoted(_) => "promoted",
            Self::Withdrawn(_) => "withdrawn",
            Self::Replaced => "replaced",
        }
    }

    /// The reason for the decision.
    pub(crate) fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Promoted(reason) | Self::Withdrawn(reason) => Some(reason),
            Self::Established | Self::Candidate | Self::Replaced => None,
        }
    }
}

/// Why a candidate was promoted or withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason(String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request was answered after this time.
    Answered(Duration),
    /// A copy of a request was answered. Copies wait for each other, because no client waits for them: their latencies say little.
    Copied,
    /// The request failed.
    Failed,
    /// The client left after this time.
    Cancelled(Duration),
}

/// A decision about a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The candidate.
    pub version: u64,
    /// The decision.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    #[cfg(test)]
    fn is_promotion(&self) -> bool {
        self.verdict == Verdict::Promoted
    }
}

/// Decides about the candidates of a release.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    rules: Option<Rules>,
    established: u64,
    shares: Shares,
    versions: BTreeMap<u64, (Part, Trial)>,
}

impl Controller {
    /// Begins a release.
    pub(crate) fn new(settings: &Settings) -> Self {
        let shares = settings.shares.clone();
        let established = shares.versions().next().unwrap_or(0);
        let part = |version| if version == established { Part::Established } else { Part::Candidate };
        let versions = shares.versions().map(|version| (version, (part(version), Trial::default())));
        let versions = versions.collect();
        Self { rules: settings.rules, established, shares, versions }
    }

    /// The established version.
    pub(crate) fn established(&self) -> u64 {
        self.established
    }

    /// The shares of the versions now.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The versions that have to prove themselves.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = u64> {
        let candidates = self.versions.iter().filter(|(_, (part, _))| *part == Part::Candidate);
        candidates.map(|(version, _)| *version)
    }

    /// The part of a version, and its results.
    pub(crate) fn version(&self, version: u64) -> Option<&(Part, Trial)> {
        self.versions.get(&version)
    }

    /// Counts a result.
    pub(crate) fn add(&mut self, version: u64, outcome: Outcome) -> Option<Decision> {
        if matches!(outcome, Outcome::Cancelled(after) if after <= self.patience()) {
            return None;
        }
        let (_, trial) = self.versions.get_mut(&version)?;
        match outcome {
            Outcome::Answered(latency) | Outcome::Cancelled(latency) => trial.add(Some(latency)),
            Outcome::Copied => trial.results += 1,
            Outcome::Failed => trial.add(None),
        }
        self.decide(version)
    }

    /// A client that waited longer than nearly all of the established version's clients met a latency of at least that time.
    fn patience(&self) -> Duration {
        let trial = self.trial(self.established);
        let trial = trial.filter(|trial| trial.latencies.count() >= LEAST_LATENCIES);
        trial.map_or(Duration::MAX, |trial| trial.latencies.quantile(0.95))
    }

    /// Counts a comparison of the answer to a copy with the established version's.
    pub(crate) fn compared(&mut self, version: u64, is_equal: bool) -> Option<Decision> {
        let (_, trial) = self.versions.get_mut(&version)?;
        trial.compared += 1;
        trial.different += u64::from(!is_equal);
        self.decide(version)
    }

    /// Decides by hand. `None` if that was decided before.
    ///
    /// # Errors
    /// The part of the version that leaves nothing to decide; `None` if it has no part in the release.
    pub(crate) fn decide_by_hand(
        &mut self,
        version: u64,
        verdict: Verdict,
        reason: String,
    ) -> Result<Option<Decision>, Option<Part>> {
        match (self.version(version).map(|(part, _)| part), verdict) {
            (Some(Part::Candidate), _) => Ok(Some(self.settle(version, verdict, reason))),
            (Some(Part::Promoted(_)), Verdict::Promoted) | (Some(Part::Withdrawn(_)), Verdict::Withdrawn) => {
                Ok(None)
            }
            (part, _) => Err(part.cloned()),
        }
    }

    fn trial(&self, version: u64) -> Option<&Trial> {
        self.versions.get(&version).map(|(_, trial)| trial)
    }

    fn decide(&mut self, version: u64) -> Option<Decision> {
        let rules = self.rules?;
        let (Part::Candidate, trial) = self.versions.get(&version)? else { return None };
        let base = self.trial(self.established)?;
        let (verdict, reason) = match certain_fault(&rules, trial, base) {
            Some(fault) => (Verdict::Withdrawn, fault),
            None => {
                let wanted = rules.promote_after?;
                // Without requests to the established version, there is nothing to wait for.
                let is_compared = base.results >= wanted.min(LEAST_RESULTS)
                    || self.shares().of(self.established) == 0.0 && base.results == 0;
                if trial.results < wanted || !is_compared {
                    return None;
                }
                match fault(&rules, trial, base) {
                    Some(fault) => (Verdict::Withdrawn, fault),
                    None => (Verdict::Promoted, merit(trial, base)),
                }
            }
        };
        Some(self.settle(version, verdict, reason))
    }

    /// Carries out a decision.
    fn settle(&mut self, decided: u64, verdict: Verdict, reason: String) -> Decision {
        let (reason, is_promotion) = (Reason(reason), verdict == Verdict::Promoted);
        for (version, (part, _)) in &mut self.versions {
            if *version == decided {
                *part = match verdict {
                    Verdict::Promoted => Part::Promoted(reason.clone()),
                    Verdict::Withdrawn => Part::Withdrawn(reason.clone()),
                };
            } else if is_promotion && matches!(part, Part::Established | Part::Candidate) {
                *part = Part::Replaced;
            }
        }
        if is_promotion {
            self.established = decided;
        }
        let mut weights = self.shares.weights().to_vec();
        for (version, weight) in &mut weights {
            if is_promotion {
                *weight = f64::from(u8::from(*version == decided));
            } else if *version == decided {
                *weight = 0.0;
            }
        }
        // Without any weight left, the established version has all requests.
        if weights.iter().all(|(_, weight)| *weight == 0.0) {
            weights.iter_mut().take(1).for_each(|(_, weight)| *weight = 1.0);
        }
        self.shares = Shares::new(weights);
        Decision { version: decided, verdict, reason }
    }
}

/// The limit that results exceed beyond chance.
fn certain_fault(rules: &Rules, trial: &Trial, base: &Trial) -> Option<String> {
    let (least, _) = likely_rates(trial.errors, trial.results);
    let most_of_base = if base.results == 0 { 0.0 } else { likely_rates(base.errors, base.results).1 };
    if trial.results >= LEAST_CERTAIN && least > most_of_base + rules.error_margin {
        return Some(errors(trial, base));
    }
    let (least, _) = likely_rates(trial.different, trial.compared);
    if trial.compared >= LEAST_CERTAIN && least > rules.difference_limit {
        return Some(differences(trial));
    }
    if trial.latencies.count() < LEAST_LATENCIES || base.latencies.count() < LEAST_LATENCIES {
        return None;
    }
    QUANTILES.into_iter().find_map(|(share, name)| {
        let (least, _) = trial.latencies.likely_quantiles(share);
        let (_, most) = base.latencies.likely_quantiles(share);
        let is_slower = least.as_secs_f64() > most.as_secs_f64() * rules.latency_ratio;
        is_slower.then(|| latencies(trial, base, share, name))
    })
}

/// The limit that results exceed.
fn fault(rules: &Rules, trial: &Trial, base: &Trial) -> Option<String> {
    if trial.error_rate() > base.error_rate() + rules.error_margin {
        return Some(errors(trial, base));
    }
    if trial.difference_rate() > rules.difference_limit {
        return Some(differences(trial));
    }
    if base.latencies.count() == 0 || trial.latencies.count() == 0 {
        return None;
    }
    QUANTILES.into_iter().find_map(|(share, name)| {
        let [own, other] = [trial, base].map(|trial| trial.latencies.quantile(share).as_secs_f64());
        (own > other * rules.latency_ratio).then(|| latencies(trial, base, share, name))
    })
}

fn errors(trial: &Trial, base: &Trial) -> String {
    format!(
        "{} of {} requests failed, {} of {} of the established version",
        trial.errors, trial.results, base.errors, base.results
    )
}

fn differences(trial: &Trial) -> String {
    format!("{} of {} compared answers differ", trial.different, trial.compared)
}

fn latencies(trial: &Trial, base: &Trial, share: f64, name: &str) -> String {
    let [own, other] = [trial, base].map(|trial| trial.latencies.quantile(share).as_secs_f64() * 1000.0);
    format!("its {name} of latencies is {own:.1} ms, that of the established version {other:.1} ms")
}

fn merit(trial: &Trial, base: &Trial) -> String {
    let compared = match trial.compared {
        0 => String::new(),
        _ => format!("; {}", differences(trial)),
    };
    let latencies = match trial.latencies.count() {
        0 => String::new(),
        _ => format!("; {}", latencies(trial, base, 0.5, "median")),
    };
    format!("{}{latencies}{compared}", errors(trial, base))
}

#[cfg(test)]
mod tests;

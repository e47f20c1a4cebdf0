//! The release of one model: routes requests, counts results, and carries out what the controller decides.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use nereid_core::backend_api::{CorrelationId, Error, InferRequest, Result};
use nereid_core::{AnswerDifference, ModelId, Release, ReleaseStatus, ReleasedVersion, RequestHead, Verdict};

use crate::compare::Mismatch;
use crate::controller::{Controller, Decision, Outcome, QUANTILES};
use crate::settings::Settings;
use crate::shares::{Shares, point_of, point_of_key};

/// How many differences are kept for the author of the model.
const KEPT_DIFFERENCES: usize = 100;

/// A decision about a version, for listeners.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseDecision<'a> {
    /// The model.
    pub id: &'a ModelId,
    /// The version.
    pub version: u64,
    /// The decision.
    pub verdict: Verdict,
    /// The reason.
    pub reason: &'a str,
    /// Whether its results decided, rather than an operator.
    pub is_automatic: bool,
}

/// Hears the decisions of all releases.
pub(crate) type Listener = Arc<OnceLock<Box<dyn Fn(ReleaseDecision<'_>) + Send + Sync>>>;

/// The release of a model.
pub(crate) struct ModelRelease {
    id: ModelId,
    settings: Settings,
    listener: Listener,
    state: Mutex<State>,
    /// Read for each request; replaced by each decision.
    routing: ArcSwap<Routing>,
    /// Number of requests without a key.
    requests: AtomicU64,
    /// The requests that each version was chosen for.
    chosen: BTreeMap<u64, AtomicU64>,
    /// Number of requests that a copy may be made of.
    copyable: AtomicU64,
    /// Copies in progress, and the bytes of their inputs and of the answers that they are compared with.
    pub copies: AtomicUsize,
    pub copied_bytes: AtomicUsize,
}

struct State {
    controller: Controller,
    /// The fingerprint of each version that takes part.
    files: BTreeMap<u64, u64>,
    counts: BTreeMap<u64, Counts>,
    differences: VecDeque<AnswerDifference>,
}

/// Where requests go, as decided so far.
struct Routing {
    shares: Shares,
    established: u64,
    candidates: Vec<u64>,
}

impl Routing {
    fn of(controller: &Controller) -> Self {
        let (shares, established) = (controller.shares().clone(), controller.established());
        Self { shares, established, candidates: controller.candidates().collect() }
    }
}

/// The copies for a version.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    copies: u64,
    skipped: u64,
}

impl ModelRelease {
    pub(crate) fn new(id: ModelId, settings: Settings, listener: Listener) -> Self {
        let state = State {
            controller: Controller::new(&settings),
            files: BTreeMap::new(),
            counts: BTreeMap::new(),
            differences: VecDeque::new(),
        };
        let chosen = settings.shares.versions().map(|version| (version, AtomicU64::new(0)));
        Self {
            id,
            listener,
            routing: ArcSwap::from_pointee(Routing::of(&state.controller)),
            state: Mutex::new(state),
            chosen: chosen.collect(),
            settings,
            requests: AtomicU64::new(0),
            copyable: AtomicU64::new(0),
            copies: AtomicUsize::new(0),
            copied_bytes: AtomicUsize::new(0),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a version with files of this fingerprint. If its files have changed, the release starts over.
    pub(crate) fn join(&self, version: u64, files: u64) {
        let mut state = self.lock();
        let before = state.files.insert(version, files);
        if before.is_some_and(|before| before != files) && state.controller.version(version).is_some() {
            tracing::info!("the release of '{}' starts over: version {version} has changed", self.id);
            state.controller = Controller::new(&self.settings);
            state.differences.clear();
            self.reroute(&state);
        }
    }

    /// Counts the result of a request.
    pub(crate) fn add(&self, version: u64, outcome: Outcome) {
        let mut state = self.lock();
        let decision = state.controller.add(version, outcome);
        self.decided(state, decision, true);
    }

    /// Counts a copy that the candidate refused.
    pub(crate) fn refused(&self, version: u64) {
        self.add(version, Outcome::Failed);
    }

    /// The versions that get a copy of a request to `version`.
    pub(crate) fn copies_for(&self, version: u64) -> Vec<u64> {
        if self.settings.shadows.is_empty() {
            return Vec::new();
        }
        let routing = self.routing.load();
        if routing.established != version {
            return Vec::new();
        }
        // From the other end than routing does, so that the same requests are not always copied.
        let position = point_of(self.copyable.fetch_add(1, Ordering::Relaxed)) as f64 / u64::MAX as f64;
        let drawn = self.settings.shadows.iter().filter(|(_, share)| position < *share);
        drawn.map(|(version, _)| *version).filter(|version| routing.candidates.contains(version)).collect()
    }

    /// Counts a copy for a version, which was made or skipped.
    pub(crate) fn count_copy(&self, version: u64, is_made: bool) {
        let mut state = self.lock();
        let counts = state.counts.entry(version).or_default();
        counts.copies += u64::from(is_made);
        counts.skipped += u64::from(!is_made);
    }

    /// Counts the comparison of a copy's answer.
    pub(crate) fn compared(
        &self,
        request_id: &str,
        established: u64,
        candidate: u64,
        mismatch: Option<Mismatch>,
    ) {
        let mut state = self.lock();
        let decision = state.controller.compared(candidate, mismatch.is_none());
        if let Some(Mismatch { output, difference }) = mismatch {
            if state.differences.len() == KEPT_DIFFERENCES {
                state.differences.pop_front();
            }
            let at = SystemTime::now();
            let request_id = request_id.to_owned();
            let difference = AnswerDifference { at, request_id, established, candidate, output, difference };
            state.differences.push_back(difference);
        }
        self.decided(state, decision, true);
    }

    /// Routes requests by the controller from now on.
    fn reroute(&self, state: &State) {
        self.routing.store(Arc::new(Routing::of(&state.controller)));
    }

    /// Carries out a decision, if there is one.
    fn decided(&self, state: MutexGuard<'_, State>, decision: Option<Decision>, is_automatic: bool) {
        let Some(Decision { version, verdict, reason }) = decision else { return };
        self.reroute(&state);
        drop(state);
        let (id, reason) = (&self.id, reason.to_string());
        match verdict {
            Verdict::Promoted => tracing::info!("'{id}' version {version} was promoted: {reason}"),
            Verdict::Withdrawn => tracing::warn!("'{id}' version {version} was withdrawn: {reason}"),
        }
        if let Some(listener) = self.listener.get() {
            listener(ReleaseDecision { id, version, verdict, reason: &reason, is_automatic });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Release for ModelRelease {
    fn established(&self) -> u64 {
        self.routing.load().established
    }

    fn has_keys(&self) -> bool {
        self.settings.sticky_header.is_some()
    }

    fn key(&self, head: &RequestHead) -> Option<u64> {
        let value = head.get(self.settings.sticky_header.as_deref()?)?;
        Some(point_of_key(value.as_bytes()))
    }

    fn choose(&self, request: &InferRequest, key: Option<u64>, served: &[u64]) -> u64 {
        let point = key.or_else(|| key_of(&request.correlation_id));
        let point = point.unwrap_or_else(|| point_of(self.requests.fetch_add(1, Ordering::Relaxed)));
        let routing = self.routing.load();
        let is_served = |version: u64| served.contains(&version);
        let chosen = routing.shares.at(point, is_served);
        // Without a served version that has a share: the established one, or a candidate, or the latest.
        let fallback = || {
            let candidate = || served.iter().copied().rfind(|version| routing.candidates.contains(version));
            Some(routing.established)
                .filter(|version| is_served(*version))
                .or_else(candidate)
                .or(served.last().copied())
        };
        let chosen = chosen.or_else(fallback).unwrap_or_default();
        if let Some(count) = self.chosen.get(&chosen) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        chosen
    }

    fn note(&self, version: u64) -> Option<String> {
        let state = self.lock();
        let (part, _) = state.controller.version(version)?;
        let reason = part.reason().map_or_else(String::new, |reason| format!(": {reason}"));
        let share = state.controller.shares().of(version) * 100.0;
        Some(format!("{} of a release, {share:.1} % of the requests{reason}", part.name()))
    }

    fn status(&self) -> ReleaseStatus {
        let state = self.lock();
        let shares = state.controller.shares();
        let of_version = |version: u64| {
            let (part, trial) = state.controller.version(version)?;
            let counts = state.counts.get(&version).copied().unwrap_or_default();
            let [median, slowest] = QUANTILES.map(|(share, _)| trial.latencies.quantile(share));
            Some(ReleasedVersion {
                version,
                part: part.name(),
                reason: part.reason().map(ToString::to_string),
                share: shares.of(version),
                requests: self.chosen.get(&version).map_or(0, |count| count.load(Ordering::Relaxed)),
                results: trial.results,
                errors: trial.errors,
                latencies: (median, slowest),
                copies: counts.copies,
                skipped: counts.skipped,
                equal: trial.compared - trial.different,
                different: trial.different,
            })
        };
        ReleaseStatus {
            versions: shares.versions().filter_map(of_version).collect(),
            differences: state.differences.iter().cloned().collect(),
        }
    }

    fn decide(&self, version: u64, verdict: Verdict, reason: &str) -> Result<()> {
        let mut state = self.lock();
        let decided = state.controller.decide_by_hand(version, verdict, reason.to_owned());
        let decision = decided.map_err(|part| {
            let name = &self.id;
            let Some(part) = part else {
                let versions: Vec<_> = self.settings.shares.versions().map(|it| it.to_string()).collect();
                let versions = versions.join(", ");
                return Error::invalid_arg(format!(
                    "model '{name}': version {version} has no part in the release (versions: {versions})"
                ));
            };
            let reason = part.reason().map_or_else(String::new, |reason| format!(" ({reason})"));
            let (part, verdict) = (part.name(), verdict.name());
            Error::invalid_arg(format!(
                "model '{name}': version {version} is {part}{reason}, and only a candidate can be {verdict}; load the model \
                 with other 'release_versions' to begin a new release"
            ))
        })?;
        self.decided(state, decision, false);
        Ok(())
    }
}

/// The key of a sequence.
fn key_of(id: &CorrelationId) -> Option<u64> {
    match id {
        CorrelationId::None => None,
        CorrelationId::Number(number) => Some(point_of_key(&number.to_le_bytes())),
        CorrelationId::Text(text) => Some(point_of_key(text.as_bytes())),
    }
}

impl fmt::Debug for ModelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelRelease").field("id", &self.id).finish_non_exhaustive()
    }
}

//! A version at the moment: queue by priority, open sequences, processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nereid_core::model_config::proto::ModelQueuePolicy;
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::model_config::proto::model_queue_policy::TimeoutAction;
use nereid_core::{Adaptation, Model, WaitingLevel};
use serde::Serialize;

use crate::process::Usage;

/// The most priority levels in a document.
const MAX_LEVELS: usize = 50;

/// A version at the moment.
#[derive(Serialize)]
pub(crate) struct NowDocument {
    /// Requests that wait for an instance.
    waiting: usize,
    /// Sequences that clients may continue, if the model has sequences.
    sequences: Option<usize>,
    /// Processes apart from the server's, and their resident memory in bytes.
    processes: usize,
    memory: u64,
    /// The number of priority levels in the configuration.
    priority_levels: u64,
    /// These levels; of more than 50, those with waiting requests or a policy of their own.
    levels: Vec<Level>,
    /// How batches follow the latency objective, if there is one.
    batches: Option<Batches>,
}

/// Batches of a version with a latency objective, with times in seconds.
#[derive(Debug, PartialEq, Serialize)]
struct Batches {
    objective: f64,
    /// The size that is executed at once.
    size: usize,
    /// How long the last batch was to wait for more requests.
    delay: f64,
    /// The expected time of an execution, once some were measured.
    execution: Option<f64>,
}

impl From<Adaptation> for Batches {
    fn from(adaptation: Adaptation) -> Self {
        Self {
            objective: adaptation.objective.as_secs_f64(),
            size: adaptation.batch_size,
            delay: adaptation.delay.as_secs_f64(),
            execution: adaptation.run_time.map(|time| time.as_secs_f64()),
        }
    }
}

/// A priority level. The most urgent one is 1.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Level {
    level: u64,
    is_default: bool,
    waiting: usize,
    /// How long the request that leaves first has waited; `None` without any.
    seconds: Option<f64>,
    /// 0 for no limit.
    max_queue_size: u32,
    /// The longest time in the queue in seconds.
    timeout: Option<f64>,
    /// Whether requests that waited longer are delayed rather than refused.
    delays: bool,
}

impl NowDocument {
    pub(crate) fn of(model: &Model, now: Instant) -> Self {
        let config = model.config();
        let (priority_levels, levels) = match &config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) if batching.priority_levels > 0 => {
                let configured = Configured {
                    count: batching.priority_levels,
                    default: batching.default_priority_level,
                    policy: batching.default_queue_policy.as_ref(),
                    policies: batching.priority_queue_policy.iter().map(|(level, it)| (*level, it)).collect(),
                };
                (batching.priority_levels, configured.levels(&model.waiting_levels(MAX_LEVELS), now))
            }
            _ => (0, Vec::new()),
        };
        let has_sequences = matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
        let processes = model.processes();
        Self {
            waiting: model.pending(),
            sequences: has_sequences.then(|| model.open_sequences(0).0),
            processes: processes.len(),
            memory: Usage::of(&processes).memory,
            priority_levels,
            levels,
            batches: model.adaptation().map(Batches::from),
        }
    }
}

/// The levels of a configuration.
struct Configured<'c> {
    count: u64,
    default: u64,
    policy: Option<&'c ModelQueuePolicy>,
    policies: BTreeMap<u64, &'c ModelQueuePolicy>,
}

impl Configured<'_> {
    /// The levels to show, with the requests that wait.
    fn levels(&self, waiting: &[WaitingLevel], now: Instant) -> Vec<Level> {
        let most = MAX_LEVELS as u64;
        let few = (1..=self.count).take_while(|_| self.count <= most);
        let waited: BTreeMap<_, _> = waiting.iter().map(|one| (one.level, one)).collect();
        let others = waited.keys().chain(self.policies.keys()).copied().chain([self.default]);
        let shown: BTreeSet<_> = few.chain(others).collect();
        let level = |level: u64| {
            let policy = self.policies.get(&level).copied().or(self.policy);
            let timeout = policy.map_or(0, |policy| policy.default_timeout_microseconds);
            let waited = waited.get(&level);
            Level {
                level,
                is_default: level == self.default,
                waiting: waited.map_or(0, |one| one.waiting),
                seconds: waited.map(|one| now.saturating_duration_since(one.since).as_secs_f64()),
                max_queue_size: policy.map_or(0, |policy| policy.max_queue_size),
                timeout: (timeout > 0).then_some(timeout as f64 / 1e6),
                delays: policy.is_some_and(|policy| policy.timeout_action() == TimeoutAction::Delay),
            }
        };
        shown.into_iter().take(MAX_LEVELS).map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn levels_have_their_requests_and_policies() {
        let refusing = ModelQueuePolicy { max_queue_size: 7, ..ModelQueuePolicy::default() };
        let delaying = ModelQueuePolicy {
            timeout_action: TimeoutAction::Delay as i32,
            default_timeout_microseconds: 1_500_000,
            ..ModelQueuePolicy::default()
        };
        let now = Instant::now();
        let waiting =
            [WaitingLevel { level: 3, waiting: 4, since: now.checked_sub(Duration::from_secs(2)).unwrap() }];
        let policies = BTreeMap::from([(2, &delaying)]);
        let configured = Configured { count: 3, default: 2, policy: Some(&refusing), policies };
        let plain = |level| Level { level, max_queue_size: 7, ..Level::default() };
        let expected = [
            plain(1),
            Level { level: 2, is_default: true, timeout: Some(1.5), delays: true, ..Level::default() },
            Level { waiting: 4, seconds: Some(2.0), ..plain(3) },
        ];
        assert_eq!(configured.levels(&waiting, now), expected);
        // Millions of levels cannot be shown.
        let many = Configured { count: u64::MAX, ..configured };
        assert_eq!(many.levels(&waiting, now), expected[1..]);
        let policies: BTreeMap<_, _> = (1..=90).map(|level| (level, &delaying)).collect();
        assert_eq!(Configured { policies, ..many }.levels(&waiting, now).len(), MAX_LEVELS);
    }
}

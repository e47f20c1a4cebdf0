//! When the states of models and the readiness of the server changed, for the last changes.

use std::collections::{BTreeMap, VecDeque};

use nereid_core::{ModelId, ModelStatus};
use serde::Serialize;

/// Changes that are kept.
const MAX_CHANGES: usize = 1000;
/// Bytes of a reason that are kept.
const MAX_REASON: usize = 300;

/// The changes, and the states after the last one.
#[derive(Default)]
pub(crate) struct StateHistory {
    is_ready: Option<bool>,
    known: BTreeMap<(ModelId, Option<u64>), State>,
    changes: VecDeque<StateChange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    name: &'static str,
    reason: Option<String>,
    /// The number of the observation that had it last.
    seen: u64,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StateChange {
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    /// `None` for the server.
    pub model: Option<String>,
    #[serde(skip)]
    pub namespace: String,
    pub version: Option<String>,
    /// The name of the new state; of the server, whether it is ready.
    pub state: &'static str,
    pub reason: Option<String>,
}

impl StateHistory {
    /// Notes what changed since the last observation.
    pub(crate) fn observe(&mut self, at: u64, is_ready: bool, statuses: impl Iterator<Item = ModelStatus>) {
        let seen = self.changes.back().map_or(0, |change| change.at).max(at);
        for status in statuses {
            let reason = status.reason().map(|reason| {
                let end = reason.floor_char_boundary(MAX_REASON);
                reason.get(..end).unwrap_or_default().to_owned()
            });
            let (name, version) = (status.state.name(), status.version);
            let key = (status.id, version);
            let ModelId { name: model, namespace } = key.0.clone();
            let state = State { name, reason: reason.clone(), seen };
            let before = self.known.insert(key, state);
            if before.is_none_or(|before| (before.name, &before.reason) != (name, &reason)) {
                let version = version.map(|version| version.to_string());
                self.add(StateChange { at, model: Some(model), namespace, version, state: name, reason });
            }
        }
        self.known.retain(|_, state| state.seen == seen);
        if self.is_ready.replace(is_ready) != Some(is_ready) {
            let state = if is_ready { "READY" } else { "NOT READY" };
            let namespace = String::new();
            self.add(StateChange { at, model: None, namespace, version: None, state, reason: None });
        }
    }

    fn add(&mut self, change: StateChange) {
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    /// The changes, oldest first.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &StateChange> {
        self.changes.iter()
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::VersionState;
    use nereid_core::backend_api::Error;

    use super::*;

    fn status(name: &str, state: VersionState) -> ModelStatus {
        ModelStatus { id: ModelId::plain(name), version: Some(1), state, failed_reload: None }
    }

    fn texts(history: &StateHistory) -> Vec<String> {
        let text = |change: &StateChange| {
            let model = change.model.as_deref().unwrap_or("server");
            format!("{} {model} {} {}", change.at, change.state, change.reason.as_deref().unwrap_or(""))
        };
        history.changes().map(text).collect()
    }

    #[test]
    fn changes_are_kept_with_their_times_and_reasons() {
        let mut history = StateHistory::default();
        let broken = || VersionState::Unavailable(Error::internal("é".repeat(MAX_REASON)));
        history.observe(1, false, [status("m", VersionState::Loading { was_evicted: false })].into_iter());
        history.observe(2, false, [status("m", VersionState::Loading { was_evicted: false })].into_iter());
        history.observe(3, true, [status("m", broken()), status("n", VersionState::Unloaded)].into_iter());
        history.observe(4, true, [status("n", VersionState::Unloaded)].into_iter());
        history.observe(5, true, [status("m", broken()), status("n", VersionState::Unloaded)].into_iter());
        let reason = "é".repeat(MAX_REASON / 2);
        let expected = [
            "1 m LOADING ".to_owned(),
            "1 server NOT READY ".to_owned(),
            format!("3 m UNAVAILABLE {reason}"),
            "3 n UNAVAILABLE unloaded".to_owned(),
            "3 server READY ".to_owned(),
            // `m` was missing in between.
            format!("5 m UNAVAILABLE {reason}"),
        ];
        assert_eq!(texts(&history), expected);
    }

    #[test]
    fn only_the_last_changes_are_kept() {
        let mut history = StateHistory::default();
        for at in 0..MAX_CHANGES as u64 + 5 {
            history.observe(at, at % 2 == 0, std::iter::empty());
        }
        let times: Vec<_> = history.changes().map(|change| change.at).collect();
        assert_eq!((times.len(), times[0]), (MAX_CHANGES, 5));
    }
}

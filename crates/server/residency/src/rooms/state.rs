//! The state behind the budgets: sizes and uses of models, loads in progress and waiting, and recent evictions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use nereid_backend_api::{Error, Result};
use nereid_core::{ModelTable, ScopedName, VersionState};

use super::{FRESH, MINUTE};
use crate::amounts::{Amount, MemoryBudgets};
use crate::policy::Policy;
use crate::queue::{Place, Queue};
use crate::served::{Served, is_composite, uses};
use crate::sizes::{Reading, Sizes};

#[derive(Default)]
pub(super) struct State {
    pub sizes: Sizes,
    pub policy: Policy,
    /// The models that are being loaded, and since when.
    pub loading: BTreeMap<String, Instant>,
    /// The loads that wait for room.
    pub queue: Queue,
    /// The models that were loaded a moment ago, and when: their requests may not have reached them.
    pub fresh: BTreeMap<String, Instant>,
    /// The models that are being loaded by their schedules, and whether there was no room.
    pub scheduled: BTreeMap<String, bool>,
    /// When models left to make room in the last minute, and which.
    pub evictions: VecDeque<(Instant, String)>,
    /// When each model was used last, going by its counters.
    pub uses: BTreeMap<String, (u64, Instant)>,
}

impl State {
    /// The memory of all models but one: of those in memory, being unloaded and being loaded, and of those whose loads wait.
    pub(super) fn used(&self, models: &ModelTable, except: &str) -> Amount {
        let all = self.resident(models).chain(leaving(models)).chain(self.queue.all());
        self.sum(all.filter(|name| *name != except))
    }

    /// The memory of models in memory, being unloaded and being loaded, and of those whose loads have waited for longer than the load
    /// at this place in the queue; without the model of that load.
    pub(super) fn used_before(&self, place: Place, name: &str, models: &ModelTable) -> Amount {
        let all = self.resident(models).chain(leaving(models)).chain(self.queue.ahead_of(place));
        self.sum(all.filter(|other| *other != name))
    }

    /// As [`used_before`](Self::used_before), once the models that are being unloaded have left.
    pub(super) fn used_once_left(&self, place: Place, name: &str, models: &ModelTable) -> Amount {
        let all = self.resident(models).chain(self.queue.ahead_of(place));
        self.sum(all.filter(|other| *other != name))
    }

    /// The memory of models that are in memory or being loaded, and not about to leave.
    pub(super) fn staying(&self, models: &ModelTable) -> Amount {
        self.sum(self.resident(models))
    }

    fn resident<'m>(&'m self, models: &'m ModelTable) -> impl Iterator<Item = &'m str> {
        let is_there = |state: &VersionState| state.model().is_some_and(|model| !model.is_composite());
        let resident =
            models.names().filter(move |name| models.states_of(ScopedName::everywhere(name)).any(is_there));
        resident.chain(self.loading.keys().map(String::as_str))
    }

    /// The memory of models, each counted once.
    fn sum<'n>(&self, names: impl Iterator<Item = &'n str>) -> Amount {
        let amounts = names.collect::<BTreeSet<_>>().into_iter().map(|name| self.sizes.amount(name));
        amounts.fold(Amount::default(), |sum, amount| sum.plus(&amount))
    }

    /// Whether a model was loaded a moment ago, and its first request may be on its way.
    pub(super) fn is_fresh(&self, name: &str, total: u64, now: Instant) -> bool {
        let loaded = self.fresh.get(name);
        total == 0 && loaded.is_some_and(|at| now.saturating_duration_since(*at) < FRESH)
    }

    pub(super) fn begin(&mut self, name: &str, before: Reading) {
        self.loading.insert(name.to_owned(), Instant::now());
        self.sizes.begin(name, before);
    }

    /// Notes how often the models in memory were used, and what they take. A request to an ensemble is a use of each member.
    pub(super) fn note_uses(&mut self, models: &Served, budgets: &MemoryBudgets) {
        let counts = models.iter().map(|(name, versions)| (name.as_str(), uses(versions)));
        let counts: BTreeMap<_, _> =
            counts.map(|(name, total)| (name, self.policy.count(name, total))).collect();
        for (name, versions) in models.iter().filter(|(_, versions)| !is_composite(versions)) {
            let last = || versions.iter().map(|model| model.statistics().load_duration()).sum();
            let cost = self.sizes.load_time(name).unwrap_or_else(last);
            let users = models.with_users(name).into_iter();
            let uses = users.filter_map(|user| counts.get(user)).sum();
            self.policy.note(name, uses, budgets.weight(&self.sizes.amount(name)), cost);
        }
    }

    /// When a model was used last, which has answered this many requests.
    pub(super) fn last_use(&mut self, name: &str, total: u64, now: Instant) -> Instant {
        let last = self.uses.entry(name.to_owned()).or_insert((total, now));
        if last.0 != total {
            *last = (total, now);
        }
        last.1
    }

    /// Whether fewer models than this left the memory within the last minute.
    pub(super) fn is_calm(&mut self, limit: usize, now: Instant) -> bool {
        while self.evictions.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MINUTE) {
            self.evictions.pop_front();
        }
        self.evictions.len() < limit
    }

    /// Limits how many models leave in a minute.
    pub(super) fn check_rate(&mut self, name: &str, limit: usize, now: Instant) -> Result<()> {
        if self.is_calm(limit, now) {
            return Ok(());
        }
        let Some((first, _)) = self.evictions.front() else { return Ok(()) };
        let mut competing: BTreeMap<&str, usize> = BTreeMap::new();
        self.evictions.iter().for_each(|(_, other)| *competing.entry(other).or_default() += 1);
        let mut competing: Vec<_> = competing.into_iter().collect();
        competing.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let competing: Vec<_> =
            competing.iter().take(5).map(|(other, count)| format!("'{other}' {count} times")).collect();
        tracing::warn!(
            "'{name}' has to wait: {limit} models left the memory within a minute, most of all {}; raise \
             --model-memory-budget, or spread the models over several servers",
            competing.join(", ")
        );
        let message =
            format!("no room for model '{name}': {limit} models left the memory within the last minute");
        let left = (*first + MINUTE).saturating_duration_since(now);
        Err(Error::unavailable(message).with_retry_after(left))
    }
}

/// The models with versions that are being unloaded.
fn leaving(models: &ModelTable) -> impl Iterator<Item = &str> {
    let leaves = |state: &VersionState| matches!(state, VersionState::Unloading { .. });
    models.names().filter(move |name| models.states_of(ScopedName::everywhere(name)).any(leaves))
}

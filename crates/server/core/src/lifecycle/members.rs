//! Brings the members of a model into memory before the model is reconciled with them.
//!
//! Members may be loaded on demand, or have left the memory to make room. A model whose members find no room waits for its first
//! request, unless one waits for it already.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{Error, Result};

use super::LifeCycle;
use super::records::Records;
use super::tasks::{Job, LoadReason, Stage, Task};
use crate::spec::{ModelId, ModelSpec};
use crate::table::{ModelTable, VersionState};

/// How often a model queues the loads of its members. More than two are needed only where members leave for other reasons than to
/// make room.
const MOST_ROUNDS: u8 = 4;

/// How the members of a model are loaded that are not in memory.
#[derive(Clone, Copy)]
pub(crate) struct MemberLoads {
    /// The reason for their loads.
    pub reason: LoadReason,
    /// When the model was requested or polled.
    pub as_of: Instant,
    /// Whether members are loaded that were never loaded, or that a client unloaded.
    with_unloaded: bool,
    /// Whether a change of a member is the cause, not a load of the model.
    is_change: bool,
    /// How often loads were queued.
    rounds: u8,
}

impl MemberLoads {
    /// For a model that a task has read. Nothing makes room for members of a model that no request waits for and that is not
    /// served.
    pub(super) fn of(task: &Task, is_served: bool) -> Self {
        let (reason, as_of, with_unloaded) = match task {
            Task::Load { reason, as_of, .. } => (*reason, *as_of, false),
            Task::Poll { as_of, with_members } => (LoadReason::Start, *as_of, *with_members),
            _ => (LoadReason::Member, Instant::now(), false),
        };
        let is_requested = is_served || reason == LoadReason::Request;
        let reason = if is_requested { LoadReason::Request } else { LoadReason::Member };
        Self { reason, as_of, with_unloaded, is_change: false, rounds: 0 }
    }

    /// For a model whose members have changed.
    pub(super) fn of_change() -> Self {
        let (reason, as_of) = (LoadReason::Member, Instant::now());
        Self { reason, as_of, with_unloaded: false, is_change: true, rounds: 0 }
    }

    /// Whether the model takes turns with others where memory is limited: members that are in memory may leave before its turn.
    pub(super) fn takes_turns(self) -> bool {
        self.reason == LoadReason::Request
    }

    /// The loads of all members are queued.
    pub(super) fn queued(self) -> Self {
        Self { rounds: 1, ..self }
    }

    /// Whether it is the model's turn: members that left before are loaded now.
    pub(super) fn is_turn(self) -> bool {
        self.rounds > 1
    }
}

/// The presence of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Served,
    Evicted,
    Unloaded,
    Failed,
}

impl LifeCycle {
    /// Queues the loads of members that are not in memory, and the reconciliation after them. Returns a job that has none.
    pub(super) fn load_members_first(
        self: &Arc<Self>,
        mut job: Job,
        records: Records,
    ) -> Option<(Job, Records)> {
        let Task::Reconcile { members, circle: None, .. } = &mut job.task else {
            return Some((job, records));
        };
        let how = *members;
        let in_turn = how.takes_turns() && how.rounds < MOST_ROUNDS && self.lock().in_turn();
        if how.rounds > 0 && !in_turn {
            return Some((job, records));
        }
        members.rounds += 1;
        let how_now = *members;
        let concerned = records.pending().filter(|spec| !self.is_left_alone(spec, how));
        let absent = concerned.flat_map(|spec| self.absent_members(spec, how.with_unloaded));
        let mut absent: BTreeSet<_> = absent.collect();
        let mut tasks = self.lock();
        if in_turn && how.rounds > 0 {
            absent.retain(|member| tasks.known.get(member).is_some_and(|known| known.failure().is_none()));
        }
        if absent.is_empty() || tasks.closed {
            return Some((job, records));
        }
        tasks.end(&job.name);
        tasks.known.insert(job.name.clone(), records);
        tasks.reconcile_after_loads(job, absent, how_now);
        self.spawn_workers(tasks, Some(Stage::Load));
        None
    }

    /// Whether a change of a member leaves a model as it is: its next request will load both. A member that was unloaded takes it
    /// out of service, as if it were in memory.
    pub(super) fn is_left_alone(&self, spec: &ModelSpec, how: MemberLoads) -> bool {
        let table = self.table.load();
        let mut members = self.services.executors.dependencies(spec).into_iter().flatten();
        how.is_change
            && table.is_evicted(&spec.id)
            && !members.any(|member| table.presence(spec, &member) == Presence::Unloaded)
    }

    /// The outcome for a model whose members could not be brought into memory: it waits for its first request, or fails. `None` if
    /// members that are missing have reasons of their own, or none is missing.
    pub(super) fn without_members(&self, spec: &ModelSpec, how: MemberLoads) -> Option<Result<()>> {
        let id = &spec.id;
        if self.table.load().is_served(id) {
            return None;
        }
        let is_deferred = how.reason == LoadReason::Member && !self.absent_members(spec, false).is_empty();
        if is_deferred && self.defer(spec) {
            return Some(Ok(()));
        }
        let (member, cause) = self.unrecorded_failure(spec)?;
        let context = format!("model '{id}' depends on '{member}', which could not be loaded");
        let error = cause.context(context);
        if self.table.load().is_evicted(id) {
            tracing::error!("failed to load '{id}': {error}");
            return Some(Err(error.context(format_args!("load failed for model '{id}'"))));
        }
        Some(Err(self.refuse(spec, &error)))
    }

    /// A member that failed to load and whose state does not show it, as it waits for its next request.
    fn unrecorded_failure(&self, spec: &ModelSpec) -> Option<(String, Error)> {
        let (table, tasks) = (self.table.load(), self.lock());
        let mut members = self.services.executors.dependencies(spec)?.into_iter();
        members.find_map(|member| {
            let is_silent = matches!(table.presence(spec, &member), Presence::Evicted | Presence::Unloaded);
            let failure = tasks.known.get(&member).filter(|_| is_silent)?.failure()?.clone();
            Some((member, failure))
        })
    }

    /// The members to load before the model: those that are not in memory, if no other one is missing.
    fn absent_members(&self, spec: &ModelSpec, with_unloaded: bool) -> BTreeSet<String> {
        let table = self.table.load();
        let mut absent = BTreeSet::new();
        for member in self.services.executors.dependencies(spec).into_iter().flatten() {
            match table.presence(spec, &member) {
                Presence::Served => {}
                Presence::Evicted => drop(absent.insert(member)),
                Presence::Unloaded if with_unloaded => drop(absent.insert(member)),
                Presence::Unloaded | Presence::Failed => return BTreeSet::new(),
            }
        }
        absent
    }
}

impl ModelTable {
    /// The presence of a model's member: the model in the same namespace, or else those of this name.
    fn presence(&self, user: &ModelSpec, member: &str) -> Presence {
        let id = |namespace: &String| ModelId { name: member.to_owned(), namespace: namespace.clone() };
        let own = id(&user.id.namespace);
        let mut ids: Vec<_> = self.namespaces(member).map(id).collect();
        if ids.contains(&own) {
            ids = vec![own];
        }
        let is_any = |is: &dyn Fn(&ModelId) -> bool| ids.iter().any(is);
        let has_failed = |id: &ModelId| {
            let failed = |(_, state): (u64, &VersionState)| matches!(state, VersionState::Unavailable(_));
            self.failure(id).is_some() || self.versions(id).any(failed)
        };
        if is_any(&|id| self.is_served(id)) {
            Presence::Served
        } else if is_any(&|id| self.is_evicted(id)) {
            Presence::Evicted
        } else if is_any(&has_failed) {
            Presence::Failed
        } else {
            Presence::Unloaded
        }
    }
}

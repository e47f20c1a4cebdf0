//! Limits how many instances execute at a time, over all models, by resources that each of them needs.
//!
//! An instance requests its resources before it executes. Waiting instances are served by rank: the number of executions
//! so far, times the priority of the instance's group (a greater priority is served less often). Of equal ranks, the more
//! urgent group goes first, then the earlier request. An instance that cannot be served yet reserves the resources it needs
//! against those behind it, so that it does not starve; others proceed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Result};

/// How executions are limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RateLimit {
    /// They are not.
    #[default]
    Off,
    /// By resources; those who executed less often go first.
    ExecutionCount(Vec<ResourceLimit>),
}

/// How much there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The resource's name.
    pub name: String,
    /// How much there is.
    pub count: usize,
    /// On which device; `None` for each of them.
    pub device: Option<i32>,
}

/// The resources that an instance needs while it executes.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The name of the instance, for messages.
    pub instance: String,
    /// The device it runs on; 0 for the processor, as in the reference.
    pub device: i32,
    /// How much of which resource. Global ones are shared by all devices.
    pub resources: Vec<Need>,
    /// Weighs its executions; 0 counts as 1.
    pub priority: u32,
}

/// How much of a resource an instance needs.
#[derive(Clone, Debug)]
pub struct Need {
    /// The name of the resource.
    pub name: String,
    /// The amount.
    pub count: usize,
    /// Whether all devices share the resource.
    pub global: bool,
}

/// A resource of one device, or of all together.
type Key = (Option<i32>, String);

/// The resources that all instances of the server share.
pub struct RateLimiter {
    /// The configured amounts; empty if none is configured.
    limits: Vec<ResourceLimit>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    instances: BTreeMap<u64, Instance>,
    next: u64,
    /// Waiting instances, in the order of their requests.
    waiting: Vec<u64>,
    taken: BTreeMap<Key, usize>,
}

struct Instance {
    needs: BTreeMap<Key, usize>,
    priority: u64,
    executions: u64,
    holds: bool,
    /// Whether the instance has taken a request since it acquired its resources.
    has_pulled: bool,
    granted: Arc<Condvar>,
}

impl Instance {
    /// The place among waiting instances, the smallest first. A tie goes to the more urgent group: otherwise the others
    /// would execute more often than their priority allows.
    fn rank(&self) -> (u64, u64) {
        (self.executions.saturating_mul(self.priority), self.priority)
    }
}

/// The instances of one model among those that the limiter knows. Dropped, it forgets them.
pub struct Permits {
    limiter: Arc<RateLimiter>,
    ids: Vec<u64>,
}

impl RateLimiter {
    /// A limiter of these resources. Without limits, there is as much of each resource as the neediest instance needs.
    pub fn new(limits: Vec<ResourceLimit>) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Takes the instances of a model in.
    ///
    /// # Errors
    /// `InvalidArg` if one of them needs what it could never get.
    pub fn register(self: &Arc<Self>, instances: Vec<Needs>) -> Result<Permits> {
        let mut state = self.lock();
        let mut ids = Vec::new();
        let mut refused = None;
        for instance in instances {
            let needs = self.needs(&instance).and_then(|needs| {
                state.check_scopes(&needs, &instance.instance)?;
                Ok(needs)
            });
            let needs = match needs {
                Ok(needs) => needs,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            };
            let id = state.next;
            state.next += 1;
            ids.push(id);
            let priority = u64::from(instance.priority.max(1));
            let granted = Arc::default();
            state.instances.insert(
                id,
                Instance { needs, priority, executions: 0, holds: false, has_pulled: false, granted },
            );
        }
        drop(state);
        // Dropped, it takes back what was registered before the one that was refused.
        let permits = Permits { limiter: Arc::clone(self), ids };
        match refused {
            None => Ok(permits),
            Some(error) => Err(error),
        }
    }

    fn needs(&self, instance: &Needs) -> Result<BTreeMap<Key, usize>> {
        let mut needs = BTreeMap::new();
        for Need { name, count, global } in &instance.resources {
            let device = (!global).then_some(instance.device);
            if !self.limits.is_empty() {
                let limit = self.limit(name, device);
                if limit < *count {
                    return Err(Error::invalid_arg(format!(
                        "instance '{}' needs {count} of resource '{name}', but its limit is {limit}; \
                         set --rate-limit-resource={name}:{count} or more",
                        instance.instance
                    )));
                }
            }
            needs.insert((device, name.clone()), *count);
        }
        Ok(needs)
    }

    /// The configured limit of a resource. Global limits apply regardless of the device in the setting.
    fn limit(&self, name: &str, device: Option<i32>) -> usize {
        let counts = |limit: &&ResourceLimit| {
            limit.name == name && (device.is_none() || limit.device.is_none() || limit.device == device)
        };
        self.limits.iter().filter(counts).map(|limit| limit.count).max().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of instances that wait for resources.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Serves those who wait, as far as there is enough.
    fn serve(&self, state: &mut State) {
        if state.waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut state.waiting);
        // Stable: equals keep the order of their requests.
        waiting.sort_by_key(|id| state.instances.get(id).map(Instance::rank));
        let mut wanted = BTreeSet::new();
        for id in waiting {
            let Some(instance) = state.instances.get(&id) else { continue };
            let free = |(key, count): (&Key, &usize)| {
                let taken = state.taken.get(key).copied().unwrap_or(0);
                !wanted.contains(key) && taken + count <= self.total(state, key)
            };
            if !instance.needs.iter().all(free) {
                wanted.extend(instance.needs.keys().cloned());
                state.waiting.push(id);
                continue;
            }
            let needs: Vec<_> = instance.needs.iter().map(|(key, count)| (key.clone(), *count)).collect();
            for (key, count) in needs {
                *state.taken.entry(key).or_default() += count;
            }
            if let Some(instance) = state.instances.get_mut(&id) {
                (instance.holds, instance.has_pulled) = (true, false);
                instance.granted.notify_one();
            }
        }
    }

    fn total(&self, state: &State, key: &Key) -> usize {
        if self.limits.is_empty() {
            let needs = state.instances.values().filter_map(|instance| instance.needs.get(key));
            return needs.max().copied().unwrap_or(0);
        }
        self.limit(&key.1, key.0)
    }
}

impl State {
    /// A resource belongs to one device for all instances, or to all devices for all instances.
    fn check_scopes(&self, needs: &BTreeMap<Key, usize>, instance: &str) -> Result<()> {
        let own = needs.keys();
        let others = self.instances.values().flat_map(|instance| instance.needs.keys());
        let known: Vec<_> = own.chain(others).collect();
        for (device, name) in needs.keys() {
            if known.iter().any(|(other, same)| same == name && other.is_none() != device.is_none()) {
                return Err(Error::invalid_arg(format!(
                    "instance '{instance}': resource '{name}' is global in one instance group and per device in another; \
                     use the same scope everywhere"
                )));
            }
        }
        Ok(())
    }

    /// Counts an execution, and takes back what it needed, if the instance was allowed to execute.
    fn executed(&mut self, id: u64) -> bool {
        let held = self.give_back(id);
        if let Some(instance) = self.instances.get_mut(&id).filter(|_| held) {
            instance.executions += 1;
        }
        held
    }

    fn give_back(&mut self, id: u64) -> bool {
        let Some(instance) = self.instances.get_mut(&id) else { return false };
        if !std::mem::take(&mut instance.holds) {
            return false;
        }
        for (key, count) in &instance.needs {
            if let Some(taken) = self.taken.get_mut(key) {
                *taken -= count;
            }
        }
        true
    }
}

/// Whether an instance may execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// The instance has not requested resources.
    None,
    /// The instance may execute once.
    Granted,
    /// The instance holds its resources.
    Used,
}

impl Permits {
    /// Waits until the instance may execute. What it holds from an execution before goes back in the same step.
    pub fn acquire(&self, instance: usize) {
        let id = self.ids[instance];
        let mut state = self.limiter.lock();
        state.executed(id);
        state.waiting.push(id);
        self.limiter.serve(&mut state);
        let Some(granted) = state.instances.get(&id).map(|instance| Arc::clone(&instance.granted)) else {
            return;
        };
        while state.instances.get(&id).is_some_and(|instance| !instance.holds) {
            state = granted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The instance has executed, if it was allowed to.
    pub fn executed(&self, instance: usize) {
        let mut state = self.limiter.lock();
        if state.executed(self.ids[instance]) {
            self.limiter.serve(&mut state);
        }
    }

    /// Counts an execution of an instance that takes requests while it executes others. `false` if it must not take one now:
    /// it holds no resources, or another instance that waits for them goes first. An instance that `is_idle` then releases its
    /// resources.
    pub fn pull(&self, instance: usize, is_idle: bool) -> bool {
        let mut state = self.limiter.lock();
        let id = self.ids[instance];
        let Some(own) = state.instances.get(&id).filter(|own| own.holds) else { return false };
        let goes_first = |other: &Instance| {
            other.rank() < own.rank() && other.needs.keys().any(|key| own.needs.contains_key(key))
        };
        let waiting = state.waiting.iter().filter_map(|id| state.instances.get(id));
        if own.has_pulled && waiting.into_iter().any(goes_first) {
            if is_idle {
                state.give_back(id);
                self.limiter.serve(&mut state);
            }
            return false;
        }
        if let Some(own) = state.instances.get_mut(&id) {
            (own.has_pulled, own.executions) = (true, own.executions + 1);
        }
        true
    }

    /// The instance may execute and does not.
    pub fn give_back(&self, instance: usize) {
        let mut state = self.limiter.lock();
        state.give_back(self.ids[instance]);
        self.limiter.serve(&mut state);
    }

    /// The first of these instances of the model by priority.
    pub fn first(&self, instances: &[usize]) -> Option<usize> {
        let state = self.limiter.lock();
        let rank = |instance: &usize| state.instances.get(&self.ids[*instance]).map(Instance::rank);
        instances.iter().copied().min_by_key(rank)
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        for id in &self.ids {
            state.give_back(*id);
            state.instances.remove(id);
        }
        self.limiter.serve(&mut state);
    }
}

#[cfg(test)]
mod tests;

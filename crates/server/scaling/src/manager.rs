//! Observes the models whose instances follow the load, and has their instances changed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use nereid_core::backend_api::Result;
use nereid_core::{Interceptor, InterceptorFactory, LoadedVersion, Model, ModelId, Server};
use nereid_scheduling::timer::{Alarm, Ring, Timer};

use crate::controller::{Controller, Limits, Load, Pace};
use crate::parameters::limits;

/// The time between two observations.
const INTERVAL: Duration = Duration::from_millis(100);

/// The least time that an instance is kept without need.
const LEAST_KEPT: Duration = if cfg!(test) { Duration::from_millis(600) } else { Duration::from_secs(30) };

/// The pause after a change that failed.
const PAUSE: Duration = Duration::from_secs(10);

/// Changes the instances of models by their load. To be added to the interceptors of a server, and attached to it: it makes no
/// interceptors, but sees the configuration of every version.
pub struct Scaling {
    shared: Arc<Shared>,
    _timer: Timer,
}

struct Shared {
    this: Weak<Self>,
    server: OnceLock<Weak<Server>>,
    alarm: OnceLock<Alarm>,
    /// Whether a model takes part.
    is_on: AtomicBool,
    /// The most instances of a model.
    processors: usize,
    watched: Mutex<BTreeMap<(ModelId, u64), Watched>>,
}

/// The observations of a version.
struct Watched {
    controller: Controller,
    observed: Instant,
    /// The time that its instances had executed by then.
    executed: Duration,
    /// How long an instance takes to start.
    start: Duration,
    change: Change,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// The life cycle changes the instances.
    Running,
    /// The last change failed. The next one waits until this time.
    PausedUntil(Instant),
}

impl Scaling {
    /// Changes nothing before it is [attached](Self::attach) to a server.
    pub fn new() -> Arc<Self> {
        Self::with_processors(available_parallelism().map_or(1, usize::from))
    }

    fn with_processors(processors: usize) -> Arc<Self> {
        let timer = Timer::default();
        let shared = Arc::new_cyclic(|this| Shared {
            this: Weak::clone(this),
            server: OnceLock::new(),
            alarm: OnceLock::new(),
            is_on: AtomicBool::new(false),
            processors,
            watched: Mutex::default(),
        });
        let target = Arc::downgrade(&shared);
        let _ = shared.alarm.set(timer.alarm(target));
        Arc::new(Self { shared, _timer: timer })
    }

    /// Changes the instances of this server's models. It does not keep the server alive.
    pub fn attach(&self, server: &Arc<Server>) {
        let _ = self.shared.server.set(Arc::downgrade(server));
    }
}

/// Sees the configurations, and makes no interceptors.
impl InterceptorFactory for Scaling {
    fn for_version(&self, version: &LoadedVersion<'_>) -> Result<Option<Arc<dyn Interceptor>>> {
        if limits(version.config)?.is_some() && !self.shared.is_on.swap(true, Ordering::Relaxed) {
            self.shared.set_alarm();
        }
        Ok(None)
    }
}

impl Ring for Shared {
    fn ring(&self) {
        let Some(server) = self.server.get().and_then(Weak::upgrade) else { return self.set_alarm() };
        if server.is_stopping() {
            return;
        }
        let models: Vec<_> = server.models().ready().cloned().collect();
        let now = Instant::now();
        let mut seen = Vec::new();
        for model in models {
            if let Ok(Some(limits)) = limits(model.config())
                && let Some(instances) = model.instances()
            {
                seen.push((model.id().clone(), model.version()));
                self.observe(&server, &model, instances, limits, now);
            }
        }
        self.watched().retain(|key, _| seen.contains(key));
        self.set_alarm();
    }
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, BTreeMap<(ModelId, u64), Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_alarm(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.set(Instant::now() + INTERVAL);
        }
    }

    fn observe(&self, server: &Server, model: &Arc<Model>, instances: usize, limits: Limits, now: Instant) {
        let key = (model.id().clone(), model.version());
        let (executed, batch) = executions(model);
        let max = limits.max.min(self.processors).max(limits.min);
        let limits = Limits { max, ..limits };
        let mut watched = self.watched();
        let entry = watched.entry(key).or_insert_with(|| Watched {
            controller: Controller::default(),
            observed: now,
            executed,
            start: model.statistics().load_duration() / u32::try_from(instances.max(1)).unwrap_or(u32::MAX),
            change: Change::None,
        });
        let elapsed = now.saturating_duration_since(entry.observed);
        let busy = executed.saturating_sub(entry.executed).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        (entry.observed, entry.executed) = (now, executed);
        match entry.change {
            Change::Running => return,
            Change::PausedUntil(time) if now < time => return,
            _ => entry.change = Change::None,
        }
        let waiting = model.pending() as f64;
        // Long executions have not ended yet: their requests are in flight, and do not wait.
        let executing = (model.statistics().in_flight() as f64 - waiting).max(0.0) / batch;
        let busy = busy.max(executing).min(instances as f64);
        let load = Load { instances, waiting: waiting / batch, busy };
        let wanted = entry.controller.observe(
            load,
            limits,
            elapsed,
            Pace { start: entry.start, least_kept: LEAST_KEPT },
        );
        if wanted == instances || wanted > instances && !server.has_room_for_instances(model, wanted) {
            return;
        }
        entry.change = Change::Running;
        drop(watched);
        self.change(server, model, instances, wanted);
    }

    fn change(&self, server: &Server, model: &Arc<Model>, instances: usize, wanted: usize) {
        let (id, version) = (model.id().clone(), model.version());
        let why = if wanted > instances { "requests wait" } else { "fewer suffice" };
        tracing::info!("'{id}' version {version} gets {wanted} instances instead of {instances}: {why}");
        let (shared, began) = (self.this.clone(), Instant::now());
        let added = u32::try_from(wanted.saturating_sub(instances)).unwrap_or(u32::MAX);
        let key = (id.clone(), version);
        server.change_instances(&id, version, wanted, move |outcome| {
            let Some(shared) = shared.upgrade() else { return };
            let mut watched = shared.watched();
            let Some(entry) = watched.get_mut(&key) else { return };
            entry.change = match outcome {
                Ok(()) => {
                    if let Some(took) = began.elapsed().checked_div(added) {
                        entry.start = took;
                    }
                    Change::None
                }
                Err(error) => {
                    let (id, version) = &key;
                    tracing::warn!("the instances of '{id}' version {version} cannot be changed: {error}");
                    Change::PausedUntil(Instant::now() + PAUSE)
                }
            };
        });
    }
}

/// How long the instances of a model have executed, and the mean number of requests in an execution.
fn executions(model: &Model) -> (Duration, f64) {
    let statistics = model.statistics().snapshot();
    let times = |batch: &nereid_core::BatchStatistics| {
        batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns
    };
    let executed = Duration::from_nanos(statistics.batches.values().map(times).sum());
    let (requests, executions) = (statistics.success.count as f64, statistics.execution_count as f64);
    (executed, if executions > 0.0 { (requests / executions).max(1.0) } else { 1.0 })
}

#[cfg(test)]
mod tests;

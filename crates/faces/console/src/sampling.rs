//! Samples the server's counters at an interval.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nereid_core::{Model, Server};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::details::{BatchCounts, Quantiles, batches};
use crate::gpus::{Gpu, GpuHistory};
use crate::history::{Details, History, INTERVAL, Reading, VersionKey};
use crate::process::Usage;
use crate::states::StateHistory;

/// The shortest time between two looks at the states of models.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads the GPUs. May block.
pub type ReadGpus = Arc<dyn Fn() -> Vec<Gpu> + Send + Sync>;

/// The samples of a server, and the task that takes them. Clones share the samples.
#[derive(Clone)]
pub struct Sampling {
    /// Weak: samples keep no server.
    server: Weak<Server>,
    history: Arc<Mutex<History>>,
    states: Arc<Mutex<StateHistory>>,
    gpus: Arc<Mutex<GpuHistory>>,
    read_gpus: Option<ReadGpus>,
    started: Instant,
    started_ms: u64,
}

impl Sampling {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self {
            server: Arc::downgrade(server),
            history: Arc::default(),
            states: Arc::default(),
            gpus: Arc::default(),
            read_gpus: None,
            started: Instant::now(),
            started_ms: unix_ms(),
        }
    }

    /// Samples the GPUs, too.
    pub(crate) fn with_gpus(self, read_gpus: Option<ReadGpus>) -> Self {
        Self { read_gpus, ..self }
    }

    /// Samples until the server ends.
    pub async fn run(self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Some(mut changes) = self.server.upgrade().map(|server| server.changes()) else { return };
        loop {
            let is_tick = tokio::select! {
                _ = ticks.tick() => true,
                _ = changes.next() => false,
            };
            let Some(server) = self.server.upgrade() else { return };
            self.observe(&server);
            if !is_tick {
                drop(server);
                // While many models are loaded, one look sees several changes.
                sleep(PAUSE).await;
                continue;
            }
            let at = u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX);
            let sampling = self.clone();
            // Reads counters of every instance, which takes milliseconds where there are thousands of models.
            let sampled = spawn_blocking(move || sampling.sample(at, server));
            if sampled.await.is_err() {
                return;
            }
        }
    }

    /// Adds a sample at this many seconds since the first one.
    pub(crate) fn sample(&self, at: u32, server: Arc<Server>) {
        // Copied, so that reading the rest does not delay any unload.
        let models: Vec<_> = server.models().ready().cloned().collect();
        drop(server);
        let mut readings: Vec<_> = models.iter().map(reading).collect();
        let needed: Vec<_> = {
            let history = self.history();
            readings.iter().map(|reading| history.needs_details(reading)).collect()
        };
        let active = readings.iter_mut().zip(&models).zip(needed).filter(|(_, needed)| *needed);
        active.for_each(|((reading, model), _)| reading.details = details(model));
        drop(models);
        let usage = Usage::read();
        self.history().tick(at, &readings, usage);
        if let Some(read) = &self.read_gpus {
            let gpus = read();
            self.gpus().tick(at, &gpus);
        }
    }

    /// Notes which states changed.
    pub(crate) fn observe(&self, server: &Server) {
        self.states().observe(unix_ms(), server.is_ready(), server.models().index());
    }

    /// The changes of states.
    pub(crate) fn states(&self) -> MutexGuard<'_, StateHistory> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples. The lock is held for microseconds.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples of GPUs.
    pub(crate) fn gpus(&self) -> MutexGuard<'_, GpuHistory> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When sampling began, in milliseconds since the Unix epoch.
    pub(crate) fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// The time of a sample in milliseconds since the Unix epoch, by the clock as it is now.
    pub(crate) fn unix_ms(&self, at: u32) -> u64 {
        let ago = self.started.elapsed().as_millis();
        let ago = u64::try_from(ago).unwrap_or(u64::MAX).saturating_sub(u64::from(at) * 1000);
        unix_ms().saturating_sub(ago)
    }
}

/// The time in milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn reading(model: &Arc<Model>) -> Reading {
    Reading {
        key: VersionKey { id: model.id().clone(), version: model.version() },
        totals: model.statistics().totals(),
        pending: model.pending(),
        processes: Usage::of(&model.processes()),
        details: Details::default(),
    }
}

fn details(model: &Model) -> Details {
    let statistics = model.statistics();
    let batches = match model.config().max_batch_size {
        ..=1 => BatchCounts::default(),
        _ => batches(statistics),
    };
    Details { batches, quantiles: Quantiles::of(statistics) }
}

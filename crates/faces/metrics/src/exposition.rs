//! Combines all metrics into one text.

use std::time::Duration;

use nereid_core::{MetricKind, MetricRegistry, ModelId, Server};

use crate::cache::{self, ResponseCacheMetrics};
use crate::gpu::{self, Gpus};
use crate::machine::{self, Machine};
use crate::memory::{self, VersionMemory};
use crate::principals::{self, PrincipalMetrics};
use crate::repositories::{self, RemoteRepository};
use crate::text::{Labels, Text};
use crate::{custom, models, nvml, releases};

const POLICY_VALID: &str = "nereid_access_policy_valid";
const AUDIT_EVENTS: &str = "nereid_audit_events_total";
const PINNED_TOTAL: &str = "nv_pinned_memory_pool_total_bytes";
const PINNED_USED: &str = "nv_pinned_memory_pool_used_bytes";

/// Options of the exported metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsOptions {
    /// Whether the machine's CPU and memory are included.
    pub cpu: bool,
    /// Whether its GPUs are included.
    pub gpu: bool,
    /// The shortest time between two readings of the machine.
    pub interval: Duration,
    /// Whether durations of requests are exported as counters.
    pub counter_latencies: bool,
    /// The quantiles of summaries, if the server keeps any.
    pub quantiles: Vec<f64>,
    /// Whether load times of models are included.
    pub load_durations: bool,
}

/// The default quantiles.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

impl Default for MetricsOptions {
    fn default() -> Self {
        let quantiles = QUANTILES.to_vec();
        Self {
            cpu: true,
            gpu: false,
            interval: Duration::from_secs(2),
            counter_latencies: true,
            quantiles,
            load_durations: true,
        }
    }
}

/// The pinned memory pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Bytes that backends can borrow.
    pub total: u64,
    /// Bytes in use by backends.
    pub used: u64,
}

/// Writes the metrics of a server. Several threads may do so at once.
pub struct Exposition {
    pinned: Box<dyn Fn() -> PinnedMemory + Send + Sync>,
    repositories: Box<dyn Fn() -> Vec<RemoteRepository> + Send + Sync>,
    access_policy: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    audit: Option<Box<dyn Fn() -> AuditEvents + Send + Sync>>,
    principals: Box<dyn Fn() -> Vec<PrincipalMetrics> + Send + Sync>,
    memory: Box<dyn Fn() -> Vec<VersionMemory> + Send + Sync>,
    response_cache: Option<Box<dyn Fn() -> Option<ResponseCacheMetrics> + Send + Sync>>,
    options: MetricsOptions,
    registry: MetricRegistry,
    machine: Option<Machine>,
    gpus: Option<Gpus>,
}

/// The number of events for the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditEvents {
    /// Written.
    pub written: u64,
    /// Lost because of the file.
    pub lost: u64,
    /// Refusals that were omitted because there were too many.
    pub omitted: u64,
}

impl Exposition {
    /// Exposes the server's metrics and those in `registry`, where it reserves the server's names. GPUs that cannot be read
    /// are left out with a warning in the log.
    pub fn new(options: MetricsOptions, registry: MetricRegistry) -> Self {
        let own = models::names().chain(cache::names()).chain(gpu::names()).chain(machine::NAMES);
        let own = own.chain(repositories::NAMES).chain(memory::NAMES).chain(releases::NAMES);
        registry.reserve(own.chain([PINNED_TOTAL, PINNED_USED, POLICY_VALID]));
        let machine = options.cpu.then(|| Machine::new(options.interval));
        let gpus = options.gpu.then(nvml::open).and_then(|read| match read {
            Ok(read) => Some(Gpus::new(read, options.interval)),
            Err(reason) => {
                tracing::warn!("cannot read GPU metrics: {reason}");
                None
            }
        });
        Self {
            options,
            registry,
            machine,
            gpus,
            pinned: Box::new(PinnedMemory::default),
            repositories: Box::new(Vec::new),
            access_policy: None,
            audit: None,
            principals: Box::new(Vec::new),
            memory: Box::new(Vec::new),
            response_cache: None,
        }
    }

    /// Exposes pinned memory as `pinned` reports it; zero without it.
    pub fn with_pinned_memory(self, pinned: impl Fn() -> PinnedMemory + Send + Sync + 'static) -> Self {
        Self { pinned: Box::new(pinned), ..self }
    }

    /// Exposes repositories that are not on this machine as `repositories` reports them; none without it.
    pub fn with_repositories(
        self,
        repositories: impl Fn() -> Vec<RemoteRepository> + Send + Sync + 'static,
    ) -> Self {
        Self { repositories: Box::new(repositories), ..self }
    }

    /// Exposes whether the files of the access policy are in use, as `is_valid` reports it.
    pub fn with_access_policy(self, is_valid: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { access_policy: Some(Box::new(is_valid)), ..self }
    }

    /// Exposes the events of the audit log as `events` counts them.
    pub fn with_audit(self, events: impl Fn() -> AuditEvents + Send + Sync + 'static) -> Self {
        Self { audit: Some(Box::new(events)), ..self }
    }

    /// Exposes what principals have used as `principals` reports it; none without it.
    pub fn with_principals(
        self,
        principals: impl Fn() -> Vec<PrincipalMetrics> + Send + Sync + 'static,
    ) -> Self {
        Self { principals: Box::new(principals), ..self }
    }

    /// Exposes the memory of versions as `memory` reports it; none without it.
    pub fn with_memory(self, memory: impl Fn() -> Vec<VersionMemory> + Send + Sync + 'static) -> Self {
        Self { memory: Box::new(memory), ..self }
    }

    /// Exposes the response cache as a whole as `cache` reports it, unless that returns `None`. The counters of models do
    /// not depend on it.
    pub fn with_response_cache(
        self,
        cache: impl Fn() -> Option<ResponseCacheMetrics> + Send + Sync + 'static,
    ) -> Self {
        Self { response_cache: Some(Box::new(cache)), ..self }
    }

    /// The GPUs, if they are among the metrics.
    pub fn gpus(&self) -> Vec<gpu::Reading> {
        self.gpus.as_ref().map(Gpus::readings).unwrap_or_default()
    }

    /// The current metrics in Prometheus's text format. All values are read before any text is written, so locks are
    /// held only while values are copied.
    pub fn text(&self, server: &Server) -> String {
        let rows = models::rows(server);
        let mut families = self.registry.snapshot();
        custom::add_queues(&mut families, &rows);
        let gpus = self.gpus();
        let repositories = (self.repositories)();
        let memory = (self.memory)();
        let released = releases::rows(server, |_| true);
        let mut text = Text::default();
        models::write_counters(&mut text, &rows, self.options.counter_latencies);
        cache::write_counters(&mut text, &rows, self.options.counter_latencies);
        models::write_load_failures(&mut text, server, |_| true);
        repositories::write_counters(&mut text, &repositories);
        releases::write_counters(&mut text, &released);
        gpu::write_counters(&mut text, &gpus);
        custom::write(&mut text, &families, MetricKind::Counter);
        models::write_gauges(&mut text, &rows, self.options.load_durations);
        models::write_readiness(&mut text, server, |_| true);
        let pinned = (self.pinned)();
        for (name, help, bytes) in [
            (PINNED_TOTAL, "Size of the pinned memory pool, in bytes", pinned.total),
            (PINNED_USED, "Pinned memory in use by backends, in bytes", pinned.used),
        ] {
            text.family(name, "gauge", help);
            text.sample(name, "", &Labels::default(), bytes);
        }
        if let Some(is_valid) = &self.access_policy {
            let help = "Whether the files of the access policy are in use, 1 or 0: broken ones leave the previous rules active";
            text.family(POLICY_VALID, "gauge", help);
            text.sample(POLICY_VALID, "", &Labels::default(), u8::from(is_valid()));
        }
        if let Some(audit) = &self.audit {
            let AuditEvents { written, lost, omitted } = audit();
            let help = "Events of the audit log: written, lost because of the file, and refusals omitted because there were too many";
            text.family(AUDIT_EVENTS, "counter", help);
            for (outcome, count) in [("written", written), ("lost", lost), ("omitted", omitted)] {
                text.sample(AUDIT_EVENTS, "", &Labels::default().and("outcome", outcome), count);
            }
        }
        principals::write(&mut text, &(self.principals)());
        gpu::write_gauges(&mut text, &gpus);
        if let Some(machine) = &self.machine {
            machine.write(&mut text);
        }
        if let Some(metrics) = self.response_cache.as_ref().and_then(|cache| cache()) {
            cache::write_gauges(&mut text, &metrics);
        }
        repositories::write_gauges(&mut text, &repositories, server);
        memory::write(&mut text, &memory);
        releases::write_gauges(&mut text, &released);
        custom::write(&mut text, &families, MetricKind::Gauge);
        models::write_histograms(&mut text, &rows);
        custom::write(&mut text, &families, MetricKind::Histogram);
        models::write_summaries(&mut text, &rows, &self.options.quantiles);
        text.into_string()
    }

    /// The metrics of some models alone.
    pub fn text_of(&self, server: &Server, is_visible: impl Fn(&ModelId) -> bool) -> String {
        let mut rows = models::rows(server);
        rows.retain(|row| is_visible(&row.id));
        let released = releases::rows(server, &is_visible);
        let mut text = Text::default();
        models::write_counters(&mut text, &rows, self.options.counter_latencies);
        cache::write_counters(&mut text, &rows, self.options.counter_latencies);
        models::write_load_failures(&mut text, server, &is_visible);
        releases::write_counters(&mut text, &released);
        models::write_gauges(&mut text, &rows, self.options.load_durations);
        models::write_readiness(&mut text, server, is_visible);
        releases::write_gauges(&mut text, &released);
        models::write_histograms(&mut text, &rows);
        models::write_summaries(&mut text, &rows, &self.options.quantiles);
        text.into_string()
    }
}

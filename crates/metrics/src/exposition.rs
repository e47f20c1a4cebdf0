//! All metrics as one text.

use std::time::Duration;

use nereid_core::{MetricKind, MetricRegistry, Server};

use crate::gpu::{self, Gpus};
use crate::machine::{self, Machine};
use crate::text::{Labels, Text};
use crate::{custom, models, nvml};

const PINNED_TOTAL: &str = "nv_pinned_memory_pool_total_bytes";
const PINNED_USED: &str = "nv_pinned_memory_pool_used_bytes";

/// What is exported, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsOptions {
    /// Whether the machine's CPU and memory are included.
    pub cpu: bool,
    /// Whether its GPUs are included.
    pub gpu: bool,
    /// The machine is looked at no more often than this.
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
            load_durations: false,
        }
    }
}

/// So much pinned memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Bytes that backends can borrow.
    pub total: u64,
    /// Bytes of them that backends have.
    pub used: u64,
}

/// Tells the metrics of a server. It may be asked from several threads at once.
pub struct Exposition {
    pinned: Box<dyn Fn() -> PinnedMemory + Send + Sync>,
    options: MetricsOptions,
    registry: MetricRegistry,
    machine: Option<Machine>,
    gpus: Option<Gpus>,
}

impl Exposition {
    /// Tells of what `registry` has beside the server's own, whose names it reserves there. GPUs that cannot be read are
    /// left out, and the log says so.
    pub fn new(options: MetricsOptions, registry: MetricRegistry) -> Self {
        let own = models::names().chain(gpu::names()).chain(machine::NAMES);
        registry.reserve(own.chain([PINNED_TOTAL, PINNED_USED]));
        let machine = options.cpu.then(|| Machine::new(options.interval));
        let gpus = options.gpu.then(nvml::open).and_then(|read| match read {
            Ok(read) => Some(Gpus::new(read, options.interval)),
            Err(reason) => {
                tracing::warn!("there are no metrics of GPUs: {reason}");
                None
            }
        });
        Self { options, registry, machine, gpus, pinned: Box::new(PinnedMemory::default) }
    }

    /// Tells of pinned memory, too, what `pinned` then says; without it there is none.
    pub fn with_pinned_memory(self, pinned: impl Fn() -> PinnedMemory + Send + Sync + 'static) -> Self {
        Self { pinned: Box::new(pinned), ..self }
    }

    /// The metrics now, in the text form of Prometheus. Everything is read first and written then: nothing is locked for
    /// longer than it takes to copy it.
    pub fn text(&self, server: &Server) -> String {
        let rows = models::rows(server);
        let families = self.registry.snapshot();
        let gpus = self.gpus.as_ref().map(Gpus::readings).unwrap_or_default();
        let mut text = Text::default();
        models::write_counters(&mut text, &rows, self.options.counter_latencies);
        gpu::write_counters(&mut text, &gpus);
        custom::write(&mut text, &families, MetricKind::Counter);
        models::write_gauges(&mut text, &rows, self.options.load_durations);
        let pinned = (self.pinned)();
        for (name, help, bytes) in [
            (PINNED_TOTAL, "Pinned memory that backends may borrow, in bytes", pinned.total),
            (PINNED_USED, "Pinned memory that backends have borrowed, in bytes", pinned.used),
        ] {
            text.family(name, "gauge", help);
            text.sample(name, "", &Labels::default(), bytes);
        }
        gpu::write_gauges(&mut text, &gpus);
        if let Some(machine) = &self.machine {
            machine.write(&mut text);
        }
        custom::write(&mut text, &families, MetricKind::Gauge);
        models::write_histograms(&mut text, &rows);
        custom::write(&mut text, &families, MetricKind::Histogram);
        models::write_summaries(&mut text, &rows, &self.options.quantiles);
        text.into_string()
    }
}

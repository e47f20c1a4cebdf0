//! Counts fetched bytes by origin.

use nereid_core::backend_api::Result;
use nereid_core::{Metric, MetricKind, MetricLabels, MetricRegistry};
use nereid_repository::Way;

/// The counters of a route, shared by all routes.
pub(super) struct RouteCounters {
    peers: Metric,
    store: Metric,
}

impl RouteCounters {
    pub(super) fn new(registry: &MetricRegistry) -> Result<Self> {
        let family = registry.family(
            MetricKind::Counter,
            "nereid_dragonfly_fetched_bytes",
            "Number of bytes of models fetched through Dragonfly, or from their buckets in its place",
        )?;
        let counter = |source: &str| {
            let labels: MetricLabels = [("source".to_owned(), source.to_owned())].into_iter().collect();
            family.metric(labels, None)
        };
        Ok(Self { peers: counter("dragonfly")?, store: counter("bucket")? })
    }

    pub(super) fn count(&self, way: Way, bytes: u64) {
        let counter = match way {
            Way::Route => &self.peers,
            Way::Store => &self.store,
        };
        // A counter takes any number that is not negative.
        counter.increment(bytes as f64).unwrap_or_default();
    }
}

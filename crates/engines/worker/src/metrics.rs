//! The metrics of a process: it names families and metrics by handles, and drops them when they are not needed any more.

use std::collections::HashMap;

use nereid_backend_api::{Error, Metric, MetricFamily, MetricKind, Peers, Result};
use nereid_worker_protocol::side::{METRIC_INCREMENT, METRIC_OBSERVE, METRIC_SET, METRIC_VALUE};
use nereid_worker_protocol::{Malformed, Reader};

/// Most handles of one process.
const MAX_HANDLES: usize = 1 << 16;

/// The families and metrics that a process holds.
#[derive(Default)]
pub(crate) struct Metrics {
    handles: HashMap<u64, FamilyOrMetric>,
    last: u64,
}

enum FamilyOrMetric {
    Family(MetricFamily),
    Metric(Metric),
}

impl Metrics {
    /// Makes or finds a family.
    pub(crate) fn family(
        &mut self,
        peers: &dyn Peers,
        reader: &mut Reader<'_>,
    ) -> Result<Result<u64>, Malformed> {
        let kind = match reader.u8()? {
            0 => MetricKind::Counter,
            1 => MetricKind::Gauge,
            2 => MetricKind::Histogram,
            _ => return Err(Malformed("unknown kind of metric")),
        };
        let (name, description) = (reader.text()?, reader.text()?);
        let family = peers.metrics().and_then(|registry| registry.family(kind, name, description));
        Ok(family.and_then(|family| self.keep(FamilyOrMetric::Family(family))))
    }

    /// Makes or finds a metric.
    pub(crate) fn metric(&mut self, reader: &mut Reader<'_>) -> Result<Result<u64>, Malformed> {
        let (family, labels) = (reader.u64()?, reader.pairs()?);
        let bounds = (0..reader.count(8)?).map(|_| reader.f64()).collect::<Result<Vec<_>, _>>()?;
        let Some(FamilyOrMetric::Family(family)) = self.handles.get(&family) else {
            return Err(Malformed("unknown family of metrics"));
        };
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let histogram = family.kind() == MetricKind::Histogram || !bounds.is_empty();
        let metric = family.metric(labels, histogram.then_some(bounds));
        Ok(metric.and_then(|metric| self.keep(FamilyOrMetric::Metric(metric))))
    }

    /// Changes or reads a metric; the value if it is read.
    pub(crate) fn operate(&self, reader: &mut Reader<'_>) -> Result<Result<Option<f64>>, Malformed> {
        let (metric, operation, value) = (reader.u64()?, reader.u8()?, reader.f64()?);
        let Some(FamilyOrMetric::Metric(metric)) = self.handles.get(&metric) else {
            return Err(Malformed("unknown metric"));
        };
        Ok(match operation {
            METRIC_VALUE => metric.value().map(Some),
            METRIC_INCREMENT => metric.increment(value).map(|()| None),
            METRIC_SET => metric.set(value).map(|()| None),
            METRIC_OBSERVE => metric.observe(value).map(|()| None),
            _ => return Err(Malformed("unknown operation on a metric")),
        })
    }

    /// Drops a handle.
    pub(crate) fn drop(&mut self, handle: u64) {
        self.handles.remove(&handle);
    }

    fn keep(&mut self, made: FamilyOrMetric) -> Result<u64> {
        if self.handles.len() == MAX_HANDLES {
            return Err(Error::unavailable(format!("a process may have {MAX_HANDLES} metrics at most")));
        }
        self.last += 1;
        self.handles.insert(self.last, made);
        Ok(self.last)
    }
}

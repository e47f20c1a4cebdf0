//! Metrics of backends, and the text of all metrics of the server.
//!
//! Knows no text format: the program that assembles the server supplies one, see
//! [`LibraryBackends::attach`](crate::LibraryBackends::attach).

use std::ffi::c_char;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use nereid_backend_api::{Error, MetricKind, MetricLabels, MetricRegistry, Result};
use triton_sys::*;

use crate::boundary::{List, Out, exports};
use crate::handle::Handle;
use crate::parameter::Parameter;

/// The metrics of all backends. C's functions name no server, so all servers share one registry.
static REGISTRY: LazyLock<MetricRegistry> = LazyLock::new(MetricRegistry::default);

/// The metrics of backends in libraries.
pub fn metric_registry() -> MetricRegistry {
    REGISTRY.clone()
}

fn kind(kind: TRITONSERVER_MetricKind) -> Result<MetricKind> {
    match kind {
        TRITONSERVER_METRIC_KIND_COUNTER => Ok(MetricKind::Counter),
        TRITONSERVER_METRIC_KIND_GAUGE => Ok(MetricKind::Gauge),
        TRITONSERVER_METRIC_KIND_HISTOGRAM => Ok(MetricKind::Histogram),
        other => Err(Error::invalid_arg(format!("unknown metric kind {}", other.0))),
    }
}

fn kind_to_c(kind: MetricKind) -> TRITONSERVER_MetricKind {
    match kind {
        MetricKind::Counter => TRITONSERVER_METRIC_KIND_COUNTER,
        MetricKind::Gauge => TRITONSERVER_METRIC_KIND_GAUGE,
        MetricKind::Histogram => TRITONSERVER_METRIC_KIND_HISTOGRAM,
    }
}

/// Arguments of a metric under construction: the bounds of a histogram.
#[derive(Default)]
pub(crate) struct MetricArgs(Mutex<Option<Vec<f64>>>);

impl MetricArgs {
    /// # Errors
    /// The bounds were not set.
    fn bounds(&self) -> Result<Vec<f64>> {
        let bounds = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        bounds.ok_or_else(|| Error::invalid_arg("the arguments of the metric are empty"))
    }
}

fn labels(labels: &Out<*const TRITONSERVER_Parameter>, count: u64) -> Result<MetricLabels> {
    let label = |pointer: *const TRITONSERVER_Parameter| {
        let parameter = Handle::<Parameter>::of(pointer.cast_mut()).get()?;
        let name = parameter.name().to_string_lossy().into_owned();
        let no_text = || Error::invalid_arg(format!("the label '{name}' is not a string"));
        let value = parameter.as_text().ok_or_else(no_text)?;
        Ok((name, value))
    };
    labels.elements(count)?.into_iter().map(label).collect()
}

fn bounds(buckets: &List<f64>, count: u64) -> Result<Vec<f64>> {
    let bounds = buckets.elements(count)?;
    if !bounds.is_sorted_by(|one, next| one < next) {
        return Err(Error::invalid_arg("the bounds of a histogram's buckets must ascend"));
    }
    Ok(bounds)
}

/// The metrics of the server at one moment, as text.
pub(crate) struct Snapshot(pub(crate) String);

exports! {
    fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut TRITONSERVER_MetricFamily,
        kind: TRITONSERVER_MetricKind,
        name: *const c_char,
        description: *const c_char,
    ) {
        let help = description.read_optional().unwrap_or_default();
        let object = REGISTRY.family(self::kind(kind)?, &name.read()?, &help)?;
        family.give(Arc::new(object))?;
    }

    fn TRITONSERVER_MetricFamilyDelete(family: *mut TRITONSERVER_MetricFamily) {
        if !family.get()?.is_empty() {
            return Err(Error::internal("a metric family cannot be deleted before its metrics"));
        }
        family.take()?;
    }

    fn TRITONSERVER_GetMetricFamilyKind(
        family: *mut TRITONSERVER_MetricFamily,
        kind: *mut TRITONSERVER_MetricKind,
    ) {
        kind.set(kind_to_c(family.get()?.kind()))?;
    }

    fn TRITONSERVER_MetricArgsNew(args: *mut *mut TRITONSERVER_MetricArgs) {
        args.give(Arc::<MetricArgs>::default())?;
    }

    fn TRITONSERVER_MetricArgsSetHistogram(
        args: *mut TRITONSERVER_MetricArgs,
        buckets: *const f64,
        buckets_count: u64,
    ) {
        let bounds = bounds(&buckets, buckets_count)?;
        *args.get()?.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bounds);
    }

    fn TRITONSERVER_MetricArgsDelete(args: *mut TRITONSERVER_MetricArgs) {
        args.delete()?;
    }

    fn TRITONSERVER_MetricNew(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
    ) {
        let labels = self::labels(&labels, label_count)?;
        metric.give(Arc::new(family.get()?.metric(labels, None)?))?;
    }

    fn TRITONSERVER_MetricNewWithArgs(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
        args: *const TRITONSERVER_MetricArgs,
    ) {
        let labels = self::labels(&labels, label_count)?;
        let bounds = if args.is_null() { None } else { Some(args.get()?.bounds()?) };
        metric.give(Arc::new(family.get()?.metric(labels, bounds)?))?;
    }

    fn TRITONSERVER_MetricDelete(metric: *mut TRITONSERVER_Metric) {
        metric.delete()?;
    }

    fn TRITONSERVER_MetricValue(metric: *mut TRITONSERVER_Metric, value: *mut f64) {
        value.set(metric.get()?.value()?)?;
    }

    fn TRITONSERVER_MetricIncrement(metric: *mut TRITONSERVER_Metric, value: f64) {
        metric.get()?.increment(value)?;
    }

    fn TRITONSERVER_MetricSet(metric: *mut TRITONSERVER_Metric, value: f64) {
        metric.get()?.set(value)?;
    }

    fn TRITONSERVER_MetricObserve(metric: *mut TRITONSERVER_Metric, value: f64) {
        metric.get()?.observe(value)?;
    }

    fn TRITONSERVER_GetMetricKind(metric: *mut TRITONSERVER_Metric, kind: *mut TRITONSERVER_MetricKind) {
        kind.set(kind_to_c(metric.get()?.kind()))?;
    }

    fn TRITONSERVER_MetricsDelete(metrics: *mut TRITONSERVER_Metrics) {
        metrics.delete()?;
    }

    fn TRITONSERVER_MetricsFormatted(
        metrics: *mut TRITONSERVER_Metrics,
        format: TRITONSERVER_MetricFormat,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) {
        if format != TRITONSERVER_METRIC_PROMETHEUS {
            return Err(Error::invalid_arg(format!("unknown metrics format {}", format.0)));
        }
        let metrics = metrics.get()?;
        base.set(metrics.0.as_ptr().cast())?;
        byte_size.set(metrics.0.len())?;
    }
}

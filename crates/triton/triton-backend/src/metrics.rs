//! Metrics of a backend, exported with the server's.

use std::ptr;
use std::sync::Arc;

use triton_sys::*;

use crate::error::{Error, Result, c_string, check};

/// The kind of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observed values in buckets with these upper bounds, ascending.
    Histogram(Vec<f64>),
}

/// A family: the metrics that share one name.
#[derive(Clone)]
pub struct MetricFamily {
    family: Arc<Family>,
    kind: MetricKind,
}

/// One metric, with its labels.
pub struct Metric {
    handle: *mut TRITONSERVER_Metric,
    // Outlives its metrics.
    _family: Arc<Family>,
}

struct Family(*mut TRITONSERVER_MetricFamily);

// SAFETY: families and metrics may be used from any thread; the server synchronizes access.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}
// SAFETY: as above.
unsafe impl Send for Metric {}
// SAFETY: as above.
unsafe impl Sync for Metric {}

impl MetricFamily {
    /// A family of metrics. If the server already has a family of this name and kind, it is reused.
    ///
    /// # Errors
    /// `Unsupported` if the server has no metrics; `InvalidArgument` if another kind of metric has this name.
    pub fn new(kind: MetricKind, name: &str, description: &str) -> Result<Self> {
        let (name, description) = (c_string(name)?, c_string(description)?);
        let c_kind = match kind {
            MetricKind::Counter => TRITONSERVER_METRIC_KIND_COUNTER,
            MetricKind::Gauge => TRITONSERVER_METRIC_KIND_GAUGE,
            MetricKind::Histogram(_) => TRITONSERVER_METRIC_KIND_HISTOGRAM,
        };
        let mut family = ptr::null_mut();
        // SAFETY: the texts end with a zero and are copied; the address may be written.
        unsafe {
            check(TRITONSERVER_MetricFamilyNew(&mut family, c_kind, name.as_ptr(), description.as_ptr()))?;
        }
        Ok(Self { family: Arc::new(Family(family)), kind })
    }

    /// A metric of this family.
    ///
    /// # Errors
    /// The server's error.
    pub fn metric(&self, labels: &[(&str, &str)]) -> Result<Metric> {
        let labels = labels.iter().map(|(key, value)| Label::new(key, value)).collect::<Result<Vec<_>>>()?;
        let mut parameters: Vec<*const TRITONSERVER_Parameter> =
            labels.iter().map(|label| label.0.cast_const()).collect();
        let count = parameters.len() as u64;
        let mut handle = ptr::null_mut();
        // SAFETY: family and labels live, match their count, and are copied; the arguments are ours from `New` to
        // `Delete`, and the bounds match their count.
        unsafe {
            match &self.kind {
                MetricKind::Histogram(bounds) => {
                    let mut arguments = ptr::null_mut();
                    check(TRITONSERVER_MetricArgsNew(&mut arguments))?;
                    let made = check(TRITONSERVER_MetricArgsSetHistogram(
                        arguments,
                        bounds.as_ptr(),
                        bounds.len() as u64,
                    ))
                    .and_then(|()| {
                        check(TRITONSERVER_MetricNewWithArgs(
                            &mut handle,
                            self.family.0,
                            parameters.as_mut_ptr(),
                            count,
                            arguments,
                        ))
                    });
                    drop(check(TRITONSERVER_MetricArgsDelete(arguments)));
                    made?;
                }
                _ => {
                    let made =
                        TRITONSERVER_MetricNew(&mut handle, self.family.0, parameters.as_mut_ptr(), count);
                    check(made)?;
                }
            }
        }
        Ok(Metric { handle, _family: Arc::clone(&self.family) })
    }
}

impl Metric {
    /// Adds to a counter or gauge.
    ///
    /// # Errors
    /// `InvalidArgument` for a negative addition to a counter, `Unsupported` for a histogram.
    pub fn increment(&self, by: f64) -> Result<()> {
        // SAFETY: the metric lives.
        unsafe { check(TRITONSERVER_MetricIncrement(self.handle, by)) }
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// `Unsupported` for other kinds.
    pub fn set(&self, value: f64) -> Result<()> {
        // SAFETY: the metric lives.
        unsafe { check(TRITONSERVER_MetricSet(self.handle, value)) }
    }

    /// Adds a value to a histogram.
    ///
    /// # Errors
    /// `Unsupported` for other kinds.
    pub fn observe(&self, value: f64) -> Result<()> {
        // SAFETY: the metric lives.
        unsafe { check(TRITONSERVER_MetricObserve(self.handle, value)) }
    }

    /// The value of a counter or gauge.
    ///
    /// # Errors
    /// `Unsupported` for a histogram.
    pub fn value(&self) -> Result<f64> {
        let mut value = 0.0;
        // SAFETY: the metric lives, and the address may be written.
        unsafe { check(TRITONSERVER_MetricValue(self.handle, &mut value))? };
        Ok(value)
    }
}

impl Drop for Metric {
    fn drop(&mut self) {
        // SAFETY: the metric is ours and not used after this.
        drop(unsafe { check(TRITONSERVER_MetricDelete(self.handle)) });
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: the family is ours, all its metrics are deleted, and it is not used after this.
        drop(unsafe { check(TRITONSERVER_MetricFamilyDelete(self.0)) });
    }
}

struct Label(*mut TRITONSERVER_Parameter);

impl Label {
    fn new(key: &str, value: &str) -> Result<Self> {
        let (key, value) = (c_string(key)?, c_string(value)?);
        // SAFETY: both texts end with a zero and are copied.
        let handle = unsafe {
            TRITONSERVER_ParameterNew(key.as_ptr(), TRITONSERVER_PARAMETER_STRING, value.as_ptr().cast())
        };
        if handle.is_null() {
            return Err(Error::internal("the server could not make a label"));
        }
        Ok(Self(handle))
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        // SAFETY: the label is ours and not used after this.
        unsafe { TRITONSERVER_ParameterDelete(self.0) };
    }
}

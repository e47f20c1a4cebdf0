//! Metrics of backends: families, each with a series for each set of labels.
//!
//! Knows no exposition format: the metrics face takes a [`snapshot`](MetricRegistry::snapshot).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::{Error, Result};

/// The labels of a series: names and values.
pub type MetricLabels = BTreeMap<String, String>;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that never decreases.
    Counter,
    /// A number.
    Gauge,
    /// Counts of observed values, in buckets.
    Histogram,
}

impl MetricKind {
    /// The kind's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All families, by name.
#[derive(Clone, Default)]
pub struct MetricRegistry(Arc<Mutex<Families>>);

impl fmt::Debug for MetricRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MetricRegistry").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Families {
    named: BTreeMap<String, Weak<FamilyData>>,
    /// Number of families created so far.
    count: u64,
    reserved: BTreeSet<&'static str>,
}

/// A family exists as long as a handle to it or to one of its metrics. Dropping it removes it from the registry.
struct FamilyData {
    registry: Weak<Mutex<Families>>,
    name: String,
    kind: MetricKind,
    help: String,
    /// The family's rank in the order of creation.
    number: u64,
    series: Mutex<BTreeMap<MetricLabels, Weak<Series>>>,
}

/// The value for one set of labels. Metrics with the same labels share one series. Like a family, a series is removed
/// with its last handle.
struct Series {
    family: Arc<FamilyData>,
    labels: MetricLabels,
    value: Mutex<MetricValue>,
}

impl Drop for FamilyData {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut families = lock(&registry);
        // A new family may have taken the name by now.
        if families.named.get(&self.name).is_some_and(|family| family.strong_count() == 0) {
            families.named.remove(&self.name);
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let mut all = lock(&self.family.series);
        if all.get(&self.labels).is_some_and(|series| series.strong_count() == 0) {
            all.remove(&self.labels);
        }
    }
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// The value of a counter or gauge.
    Number(f64),
    /// The value of a histogram.
    Histogram(HistogramValue),
}

/// The state of a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramValue {
    /// The upper bounds of its buckets, ascending.
    pub bounds: Vec<f64>,
    /// Number of values in each bucket; the last entry counts values beyond the last bound.
    pub counts: Vec<u64>,
    /// The sum of the values.
    pub sum: f64,
}

/// A family at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilySnapshot {
    /// The family's name.
    pub name: String,
    /// The kind of its metrics.
    pub kind: MetricKind,
    /// The family's description.
    pub help: String,
    /// The series, by their labels.
    pub series: Vec<(MetricLabels, MetricValue)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No operation under these locks panics halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MetricRegistry {
    /// Reserves names that the server exposes itself.
    pub fn reserve(&self, names: impl IntoIterator<Item = &'static str>) {
        lock(&self.0).reserved.extend(names);
    }

    /// Finds or creates the family of that name. A family exists as long as a handle to it.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid or reserved name, or a family of another kind.
    pub fn family(&self, kind: MetricKind, name: &str, help: &str) -> Result<MetricFamily> {
        if !is_name(name, true) {
            return Err(Error::invalid_arg(format!("invalid metric name '{name}'")));
        }
        let mut families = lock(&self.0);
        if families.reserved.contains(name) {
            return Err(Error::invalid_arg(format!("the metric name '{name}' is reserved by the server")));
        }
        let family = families.named.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let family = Arc::new(FamilyData {
                registry: Arc::downgrade(&self.0),
                name: name.to_owned(),
                kind,
                help: help.to_owned(),
                number: families.count,
                series: Mutex::default(),
            });
            families.count += 1;
            families.named.insert(name.to_owned(), Arc::downgrade(&family));
            family
        });
        // Release the lock first: dropping the last handle to a family takes it.
        drop(families);
        if family.kind != kind {
            return Err(Error::invalid_arg(format!(
                "metric family '{name}' is a {}, not a {}",
                family.kind.name(),
                kind.name()
            )));
        }
        Ok(MetricFamily(family))
    }

    /// All families, in the order of creation. Each series is locked separately while its value is copied.
    pub fn snapshot(&self) -> Vec<FamilySnapshot> {
        let mut families: Vec<_> = lock(&self.0).named.values().filter_map(Weak::upgrade).collect();
        families.sort_by_key(|family| family.number);
        families.iter().map(|family| family.snapshot()).collect()
    }
}

impl FamilyData {
    fn snapshot(&self) -> FamilySnapshot {
        let series: Vec<_> = lock(&self.series).values().filter_map(Weak::upgrade).collect();
        let series = series.iter().map(|series| (series.labels.clone(), lock(&series.value).clone()));
        FamilySnapshot {
            name: self.name.clone(),
            kind: self.kind,
            help: self.help.clone(),
            series: series.collect(),
        }
    }
}

/// A handle to a family of metrics.
pub struct MetricFamily(Arc<FamilyData>);

impl MetricFamily {
    /// The kind of its metrics.
    pub fn kind(&self) -> MetricKind {
        self.0.kind
    }

    /// Whether the family has no metrics.
    pub fn is_empty(&self) -> bool {
        lock(&self.0.series).values().all(|series| series.strong_count() == 0)
    }

    /// Finds or creates the metric with these labels, which exists as long as a handle to it. `bounds` are the upper
    /// bounds of a histogram's buckets; other kinds have none.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid label name, and for bounds that do not ascend, are missing, or do not apply to the
    /// kind.
    pub fn metric(&self, labels: MetricLabels, bounds: Option<Vec<f64>>) -> Result<Metric> {
        if let Some(name) = labels.keys().find(|name| !is_name(name, false)) {
            return Err(Error::invalid_arg(format!("invalid label name '{name}'")));
        }
        let value = new_value(self.kind(), bounds)?;
        let mut all = lock(&self.0.series);
        let series = all.get(&labels).and_then(Weak::upgrade).unwrap_or_else(|| {
            let family = Arc::clone(&self.0);
            let series = Arc::new(Series { family, labels: labels.clone(), value: Mutex::new(value) });
            all.insert(labels, Arc::downgrade(&series));
            series
        });
        Ok(Metric(series))
    }
}

/// Whether this is a valid name of a metric (with `colons`) or of a label.
fn is_name(name: &str, colons: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || colons && c == ':';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn new_value(kind: MetricKind, bounds: Option<Vec<f64>>) -> Result<MetricValue> {
    match (kind, bounds) {
        (MetricKind::Counter | MetricKind::Gauge, None) => Ok(MetricValue::Number(0.0)),
        (MetricKind::Counter | MetricKind::Gauge, Some(_)) => {
            Err(Error::invalid_arg(format!("a {} has no buckets", kind.name())))
        }
        (MetricKind::Histogram, Some(bounds)) => {
            if !bounds.is_sorted_by(|one, next| one < next) || bounds.iter().any(|bound| bound.is_nan()) {
                return Err(Error::invalid_arg("the bounds of a histogram's buckets must ascend"));
            }
            let counts = vec![0; bounds.len() + 1];
            Ok(MetricValue::Histogram(HistogramValue { bounds, counts, sum: 0.0 }))
        }
        (MetricKind::Histogram, None) => {
            Err(Error::invalid_arg("a histogram needs the bounds of its buckets"))
        }
    }
}

/// A handle to a series.
pub struct Metric(Arc<Series>);

impl Metric {
    /// The kind of the metric.
    pub fn kind(&self) -> MetricKind {
        self.0.family.kind
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(format!(
            "the {} '{}' does not support {what}",
            self.kind().name(),
            self.0.family.name
        ))
    }

    /// The value of a counter or a gauge.
    ///
    /// # Errors
    /// `Unsupported` for a histogram.
    pub fn value(&self) -> Result<f64> {
        match &*lock(&self.0.value) {
            MetricValue::Number(value) => Ok(*value),
            MetricValue::Histogram(_) => Err(self.unsupported("reading a value")),
        }
    }

    /// Adds to a counter or a gauge.
    ///
    /// # Errors
    /// `InvalidArg` if a counter would decrease, `Unsupported` for a histogram.
    pub fn increment(&self, by: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Number(_) if self.kind() == MetricKind::Counter && (by < 0.0 || by.is_nan()) => Err(
                Error::invalid_arg(format!("a counter cannot be incremented by {by}: it never decreases")),
            ),
            MetricValue::Number(value) => {
                *value += by;
                Ok(())
            }
            MetricValue::Histogram(_) => Err(self.unsupported("increments")),
        }
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// `Unsupported` for other kinds.
    pub fn set(&self, to: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Number(value) if self.kind() == MetricKind::Gauge => {
                *value = to;
                Ok(())
            }
            MetricValue::Number(_) | MetricValue::Histogram(_) => Err(self.unsupported("setting a value")),
        }
    }

    /// Adds a value to a histogram.
    ///
    /// # Errors
    /// `Unsupported` for other kinds.
    pub fn observe(&self, observed: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Histogram(HistogramValue { bounds, counts, sum }) => {
                let bucket = bounds.iter().position(|bound| observed <= *bound).unwrap_or(bounds.len());
                counts[bucket] += 1;
                *sum += observed;
                Ok(())
            }
            MetricValue::Number(_) => Err(self.unsupported("observations")),
        }
    }
}

#[cfg(test)]
mod tests;

//! Metrics that backends keep: families, and in each a series for each set of labels.
//!
//! Knows no exposition format: whoever exposes metrics takes a [`snapshot`](MetricRegistry::snapshot).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::{Error, Result};

/// The labels of a series: names and values.
pub type MetricLabels = BTreeMap<String, String>;

/// What a metric tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// How many values were at most how large.
    Histogram,
}

impl MetricKind {
    /// Its name in lower case.
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
    /// How many there were so far.
    count: u64,
    reserved: BTreeSet<&'static str>,
}

/// A family is there as long as somebody has it or a metric of it, and strikes itself off the list then.
struct FamilyData {
    registry: Weak<Mutex<Families>>,
    name: String,
    kind: MetricKind,
    help: String,
    /// Its place in the order in which families came.
    number: u64,
    series: Mutex<BTreeMap<MetricLabels, Weak<Series>>>,
}

/// What is counted for one set of labels. Several metrics with the same labels are one series. As with families, it strikes
/// itself off the list when nobody has it any more.
struct Series {
    family: Arc<FamilyData>,
    labels: MetricLabels,
    value: Mutex<MetricValue>,
}

impl Drop for FamilyData {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut families = lock(&registry);
        // Unless another one has its name already.
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
    /// That of a counter or a gauge.
    Number(f64),
    /// That of a histogram.
    Histogram(HistogramValue),
}

/// What a histogram has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramValue {
    /// The upper bounds of its buckets, ascending.
    pub bounds: Vec<f64>,
    /// How many values fell into each bucket; one more for those beyond the last.
    pub counts: Vec<u64>,
    /// The sum of the values.
    pub sum: f64,
}

/// A family at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilySnapshot {
    /// Its name.
    pub name: String,
    /// What its metrics tell.
    pub kind: MetricKind,
    /// What it is about.
    pub help: String,
    /// Its series, by their labels.
    pub series: Vec<(MetricLabels, MetricValue)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is changed under these locks is changed by calls that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MetricRegistry {
    /// Keeps names for whoever tells metrics of its own beside these.
    pub fn reserve(&self, names: impl IntoIterator<Item = &'static str>) {
        lock(&self.0).reserved.extend(names);
    }

    /// The family of that name, a new one if there is none. It is there as long as somebody has it.
    ///
    /// # Errors
    /// `InvalidArg` for what no metric may be called, what the server calls its own, and for a family of another kind.
    pub fn family(&self, kind: MetricKind, name: &str, help: &str) -> Result<MetricFamily> {
        if !is_name(name, true) {
            return Err(Error::invalid_arg(format!("'{name}' is not a name that a metric may have")));
        }
        let mut families = lock(&self.0);
        if families.reserved.contains(name) {
            return Err(Error::invalid_arg(format!("the metric family '{name}' is the server's own")));
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
        // The last one to have a family locks the list.
        drop(families);
        if family.kind != kind {
            return Err(Error::invalid_arg(format!(
                "the metric family '{name}' is a {} already and cannot be a {}",
                family.kind.name(),
                kind.name()
            )));
        }
        Ok(MetricFamily(family))
    }

    /// All that there is now, in the order in which the families came. Each series is locked by itself, and only while its
    /// value is copied.
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

/// A family of metrics. Several of the same name are one.
pub struct MetricFamily(Arc<FamilyData>);

impl MetricFamily {
    /// What its metrics tell.
    pub fn kind(&self) -> MetricKind {
        self.0.kind
    }

    /// Whether nobody has a metric of it.
    pub fn is_empty(&self) -> bool {
        lock(&self.0.series).values().all(|series| series.strong_count() == 0)
    }

    /// The metric with these labels, a new one if there is none. It is there as long as somebody has it. `bounds` are those
    /// of a histogram's buckets, and only a histogram has some.
    ///
    /// # Errors
    /// `InvalidArg` for what no label may be called, for bounds that do not ascend, are missing, or are not wanted.
    pub fn metric(&self, labels: MetricLabels, bounds: Option<Vec<f64>>) -> Result<Metric> {
        if let Some(name) = labels.keys().find(|name| !is_name(name, false)) {
            return Err(Error::invalid_arg(format!("'{name}' is not a name that a label may have")));
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

/// Whether it may be the name of a metric, with `colons`, or of a label.
fn is_name(name: &str, colons: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || colons && c == ':';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn new_value(kind: MetricKind, bounds: Option<Vec<f64>>) -> Result<MetricValue> {
    match (kind, bounds) {
        (MetricKind::Counter | MetricKind::Gauge, None) => Ok(MetricValue::Number(0.0)),
        (MetricKind::Counter | MetricKind::Gauge, Some(_)) => {
            Err(Error::invalid_arg(format!("a {} takes no arguments", kind.name())))
        }
        (MetricKind::Histogram, Some(bounds)) => {
            if !bounds.is_sorted_by(|one, next| one < next) || bounds.iter().any(|bound| bound.is_nan()) {
                return Err(Error::invalid_arg("the bounds of a histogram's buckets have to ascend"));
            }
            let counts = vec![0; bounds.len() + 1];
            Ok(MetricValue::Histogram(HistogramValue { bounds, counts, sum: 0.0 }))
        }
        (MetricKind::Histogram, None) => {
            Err(Error::invalid_arg("a histogram needs the bounds of its buckets"))
        }
    }
}

/// A series in the hands of who keeps it.
pub struct Metric(Arc<Series>);

impl Metric {
    /// What it tells.
    pub fn kind(&self) -> MetricKind {
        self.0.family.kind
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(format!("the {} '{}' cannot {what}", self.kind().name(), self.0.family.name))
    }

    /// The value of a counter or a gauge.
    ///
    /// # Errors
    /// `Unsupported` for a histogram.
    pub fn value(&self) -> Result<f64> {
        match &*lock(&self.0.value) {
            MetricValue::Number(value) => Ok(*value),
            MetricValue::Histogram(_) => Err(self.unsupported("say its value")),
        }
    }

    /// Adds to a counter or a gauge.
    ///
    /// # Errors
    /// `InvalidArg` where a counter would shrink, `Unsupported` for a histogram.
    pub fn increment(&self, by: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Number(_) if self.kind() == MetricKind::Counter && (by < 0.0 || by.is_nan()) => {
                Err(Error::invalid_arg(format!("a counter only grows, it cannot be incremented by {by}")))
            }
            MetricValue::Number(value) => {
                *value += by;
                Ok(())
            }
            MetricValue::Histogram(_) => Err(self.unsupported("be incremented")),
        }
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// `Unsupported` for anything else.
    pub fn set(&self, to: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Number(value) if self.kind() == MetricKind::Gauge => {
                *value = to;
                Ok(())
            }
            MetricValue::Number(_) | MetricValue::Histogram(_) => Err(self.unsupported("be set")),
        }
    }

    /// Shows a histogram a value.
    ///
    /// # Errors
    /// `Unsupported` for anything else.
    pub fn observe(&self, observed: f64) -> Result<()> {
        match &mut *lock(&self.0.value) {
            MetricValue::Histogram(HistogramValue { bounds, counts, sum }) => {
                let bucket = bounds.iter().position(|bound| observed <= *bound).unwrap_or(bounds.len());
                counts[bucket] += 1;
                *sum += observed;
                Ok(())
            }
            MetricValue::Number(_) => Err(self.unsupported("observe values")),
        }
    }
}

#[cfg(test)]
mod tests;

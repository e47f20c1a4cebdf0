//! Metrics that backends keep: families, and in each a series for each set of labels.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::boundary::{List, Out, exports};
use crate::handle::Handle;
use crate::parameter::Parameter;

/// All families that a backend has, by name. Several handles to one family are one family.
static FAMILIES: LazyLock<Mutex<BTreeMap<String, Arc<FamilyData>>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is changed under these locks is changed by calls that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn of(kind: TRITONSERVER_MetricKind) -> Result<Self> {
        match kind {
            TRITONSERVER_METRIC_KIND_COUNTER => Ok(Self::Counter),
            TRITONSERVER_METRIC_KIND_GAUGE => Ok(Self::Gauge),
            TRITONSERVER_METRIC_KIND_HISTOGRAM => Ok(Self::Histogram),
            other => Err(Error::invalid_arg(format!("{} is not the number of a kind of metric", other.0))),
        }
    }

    fn as_c(self) -> TRITONSERVER_MetricKind {
        TRITONSERVER_MetricKind(self as u32)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

type Labels = BTreeMap<String, String>;

struct FamilyData {
    name: String,
    kind: Kind,
    help: String,
    series: Mutex<BTreeMap<Labels, Arc<Series>>>,
}

/// What is counted for one set of labels. Several metrics with the same labels are one series.
struct Series(Mutex<Number>);

enum Number {
    Value(f64),
    /// Bounds, ascending; how many values were at most that much, with one more for those beyond; their sum.
    Histogram(Vec<f64>, Vec<u64>, f64),
}

/// A family in C's hands.
pub(crate) struct Family(Arc<FamilyData>);

/// A metric in C's hands.
pub(crate) struct Metric {
    family: Arc<FamilyData>,
    labels: Labels,
    series: Arc<Series>,
}

/// Arguments of a metric, in the making: the bounds of a histogram.
#[derive(Default)]
pub(crate) struct MetricArgs(Mutex<Option<Vec<f64>>>);

impl Family {
    fn new(kind: Kind, name: &str, help: &str) -> Result<Self> {
        if !is_name(name, true) {
            return Err(Error::invalid_arg(format!("'{name}' is not a name that a metric may have")));
        }
        let mut families = lock(&FAMILIES);
        let family = families.entry(name.to_owned()).or_insert_with(|| {
            let (name, help) = (name.to_owned(), help.to_owned());
            Arc::new(FamilyData { name, kind, help, series: Mutex::default() })
        });
        if family.kind != kind {
            return Err(Error::invalid_arg(format!(
                "the metric family '{name}' is a {} already and cannot be a {}",
                family.kind.name(),
                kind.name()
            )));
        }
        Ok(Self(Arc::clone(family)))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let mut families = lock(&FAMILIES);
        // Held by the list and by this: nobody else has it any more.
        if Arc::strong_count(&self.0) == 2 {
            families.remove(&self.0.name);
        }
    }
}

/// Whether Prometheus takes it for a name; those of metrics may have colons.
fn is_name(name: &str, colons: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || colons && c == ':';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn new_number(kind: Kind, args: Option<&MetricArgs>) -> Result<Number> {
    let buckets = args.map(|args| lock(&args.0).clone());
    match (kind, buckets) {
        (Kind::Counter | Kind::Gauge, None) => Ok(Number::Value(0.0)),
        (Kind::Counter | Kind::Gauge, Some(_)) => {
            Err(Error::invalid_arg(format!("a {} takes no arguments", kind.name())))
        }
        (Kind::Histogram, Some(Some(bounds))) => {
            let counts = vec![0; bounds.len() + 1];
            Ok(Number::Histogram(bounds, counts, 0.0))
        }
        (Kind::Histogram, _) => Err(Error::invalid_arg("a histogram needs the bounds of its buckets")),
    }
}

impl Metric {
    fn new(family: &Family, labels: Labels, args: Option<&MetricArgs>) -> Result<Self> {
        let number = new_number(family.0.kind, args)?;
        let mut all = lock(&family.0.series);
        let series = all.entry(labels.clone()).or_insert_with(|| Arc::new(Series(Mutex::new(number))));
        Ok(Self { family: Arc::clone(&family.0), labels, series: Arc::clone(series) })
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(format!("the {} '{}' cannot {what}", self.family.kind.name(), self.family.name))
    }

    fn value(&self) -> Result<f64> {
        match &*lock(&self.series.0) {
            Number::Value(value) => Ok(*value),
            Number::Histogram(..) => Err(self.unsupported("say its value")),
        }
    }

    fn increment(&self, by: f64) -> Result<()> {
        match &mut *lock(&self.series.0) {
            Number::Value(_) if self.family.kind == Kind::Counter && (by < 0.0 || by.is_nan()) => {
                Err(Error::invalid_arg(format!("a counter only grows, it cannot be incremented by {by}")))
            }
            Number::Value(value) => {
                *value += by;
                Ok(())
            }
            Number::Histogram(..) => Err(self.unsupported("be incremented")),
        }
    }

    fn set(&self, to: f64) -> Result<()> {
        match &mut *lock(&self.series.0) {
            Number::Value(value) if self.family.kind == Kind::Gauge => {
                *value = to;
                Ok(())
            }
            Number::Value(_) | Number::Histogram(..) => Err(self.unsupported("be set")),
        }
    }

    fn observe(&self, observed: f64) -> Result<()> {
        match &mut *lock(&self.series.0) {
            Number::Histogram(bounds, counts, sum) => {
                let bucket = bounds.iter().position(|bound| observed <= *bound).unwrap_or(bounds.len());
                counts[bucket] += 1;
                *sum += observed;
                Ok(())
            }
            Number::Value(_) => Err(self.unsupported("observe values")),
        }
    }
}

impl Drop for Metric {
    fn drop(&mut self) {
        let mut series = lock(&self.family.series);
        // Held by the family and by this.
        if Arc::strong_count(&self.series) == 2 {
            series.remove(&self.labels);
        }
    }
}

fn labels(labels: &Out<*const TRITONSERVER_Parameter>, count: u64) -> Result<Labels> {
    let label = |pointer: *const TRITONSERVER_Parameter| {
        let parameter = Handle::<Parameter>::of(pointer.cast_mut()).get()?;
        let name = parameter.name().to_string_lossy().into_owned();
        if !is_name(&name, false) {
            return Err(Error::invalid_arg(format!("'{name}' is not a name that a label may have")));
        }
        let no_text = || Error::invalid_arg(format!("the label '{name}' is not a string"));
        let value = parameter.as_text().ok_or_else(no_text)?;
        Ok((name, value))
    };
    labels.elements(count)?.into_iter().map(label).collect()
}

fn bounds(buckets: &List<f64>, count: u64) -> Result<Vec<f64>> {
    let bounds = buckets.elements(count)?;
    if !bounds.is_sorted_by(|one, next| one < next) {
        return Err(Error::invalid_arg("the bounds of a histogram's buckets have to ascend"));
    }
    Ok(bounds)
}

/// The metrics of all backends as they were at one moment, in the text form of Prometheus.
pub(crate) struct Snapshot(String);

impl Snapshot {
    pub(crate) fn take() -> Self {
        let families: Vec<_> = lock(&FAMILIES).values().cloned().collect();
        let mut text = String::new();
        for family in families {
            // Writing to memory does not fail.
            let _ = write_family(&mut text, &family);
        }
        Self(text)
    }
}

fn write_family(text: &mut String, family: &FamilyData) -> std::fmt::Result {
    let name = &family.name;
    let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", family.kind.name())?;
    for (labels, series) in &*lock(&family.series) {
        match &*lock(&series.0) {
            Number::Value(value) => writeln!(text, "{name}{} {value}", in_braces(labels, None))?,
            Number::Histogram(bounds, counts, sum) => {
                let mut total = 0;
                let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(counts) {
                    total += count;
                    writeln!(text, "{name}_bucket{} {total}", in_braces(labels, Some(&bound)))?;
                }
                let labels = in_braces(labels, None);
                writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {total}")?;
            }
        }
    }
    Ok(())
}

fn in_braces(labels: &Labels, bound: Option<&str>) -> String {
    let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<_> = labels
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        })
        .collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

exports! {
    fn TRITONSERVER_MetricFamilyNew(
        family: *mut *mut TRITONSERVER_MetricFamily,
        kind: TRITONSERVER_MetricKind,
        name: *const c_char,
        description: *const c_char,
    ) {
        let object = Family::new(Kind::of(kind)?, &name.read()?, &description.read_if_given().unwrap_or_default())?;
        family.set(Handle::give(Arc::new(object))?.as_c())?;
    }

    fn TRITONSERVER_MetricFamilyDelete(family: *mut TRITONSERVER_MetricFamily) {
        if !lock(&family.get()?.0.series).is_empty() {
            return Err(Error::internal("a metric family is deleted after its metrics, and it has some"));
        }
        family.take()?;
    }

    fn TRITONSERVER_GetMetricFamilyKind(
        family: *mut TRITONSERVER_MetricFamily,
        kind: *mut TRITONSERVER_MetricKind,
    ) {
        kind.set(family.get()?.0.kind.as_c())?;
    }

    fn TRITONSERVER_MetricArgsNew(args: *mut *mut TRITONSERVER_MetricArgs) {
        args.set(Handle::give(Arc::<MetricArgs>::default())?.as_c())?;
    }

    fn TRITONSERVER_MetricArgsSetHistogram(
        args: *mut TRITONSERVER_MetricArgs,
        buckets: *const f64,
        buckets_count: u64,
    ) {
        *lock(&args.get()?.0) = Some(bounds(&buckets, buckets_count)?);
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
        metric.set(Handle::give(Arc::new(Metric::new(&*family.get()?, labels, None)?))?.as_c())?;
    }

    fn TRITONSERVER_MetricNewWithArgs(
        metric: *mut *mut TRITONSERVER_Metric,
        family: *mut TRITONSERVER_MetricFamily,
        labels: *mut *const TRITONSERVER_Parameter,
        label_count: u64,
        args: *const TRITONSERVER_MetricArgs,
    ) {
        let labels = self::labels(&labels, label_count)?;
        let args = if args.is_null() { None } else { Some(args.get()?) };
        metric.set(Handle::give(Arc::new(Metric::new(&*family.get()?, labels, args.as_deref())?))?.as_c())?;
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
        kind.set(metric.get()?.family.kind.as_c())?;
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
            return Err(Error::invalid_arg(format!("{} is not the number of a form of metrics", format.0)));
        }
        let metrics = metrics.get()?;
        base.set(metrics.0.as_ptr().cast())?;
        byte_size.set(metrics.0.len())?;
    }
}

//! Lifetimes, values and errors of families and series.

use crate::ErrorCode;

use super::*;

fn labels(labels: &[(&str, &str)]) -> MetricLabels {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn names(registry: &MetricRegistry) -> Vec<String> {
    registry.snapshot().into_iter().map(|family| family.name).collect()
}

#[test]
fn snapshot_lists_families_in_order_of_creation() {
    let registry = MetricRegistry::default();
    let z = registry.family(MetricKind::Counter, "z", "of z").unwrap();
    let _a = registry.family(MetricKind::Gauge, "a:b", "").unwrap();
    let metric = z.metric(labels(&[("model", "m")]), None).unwrap();
    metric.increment(2.5).unwrap();
    assert_eq!(names(&registry), ["z", "a:b"]);
    let expected = FamilySnapshot {
        name: "z".into(),
        kind: MetricKind::Counter,
        help: "of z".into(),
        series: vec![(labels(&[("model", "m")]), MetricValue::Number(2.5))],
    };
    assert_eq!(registry.snapshot()[0], expected);
}

#[test]
fn series_and_families_live_as_long_as_their_handles() {
    let registry = MetricRegistry::default();
    let family = registry.family(MetricKind::Counter, "c", "").unwrap();
    let same = registry.family(MetricKind::Counter, "c", "another text").unwrap();
    let one = family.metric(labels(&[]), None).unwrap();
    let other = same.metric(labels(&[]), None).unwrap();
    one.increment(1.0).unwrap();
    assert_eq!(other.value(), Ok(1.0));
    drop((one, family));
    assert_eq!(same.metric(labels(&[]), None).unwrap().value(), Ok(1.0));
    assert!(!same.is_empty());
    drop(other);
    assert!(same.is_empty());
    assert_eq!(same.metric(labels(&[]), None).unwrap().value(), Ok(0.0), "it began anew");
    drop(same);
    assert_eq!(names(&registry), [""; 0]);
}

#[test]
fn metric_keeps_its_family_alive() {
    let registry = MetricRegistry::default();
    let family = registry.family(MetricKind::Gauge, "g", "").unwrap();
    let metric = family.metric(labels(&[]), None).unwrap();
    drop(family);
    metric.set(3.0).unwrap();
    assert_eq!(registry.snapshot()[0].series, [(labels(&[]), MetricValue::Number(3.0))]);
    drop(metric);
    assert_eq!(names(&registry), [""; 0]);
}

#[test]
fn series_dropped_during_a_snapshot_is_removed() {
    let registry = MetricRegistry::default();
    let family = registry.family(MetricKind::Gauge, "g", "").unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..2000).for_each(|_| drop(registry.snapshot())));
        while !reader.is_finished() {
            drop(family.metric(labels(&[]), None).unwrap());
        }
    });
    assert!(family.is_empty());
    assert_eq!(registry.snapshot()[0].series, []);
}

#[test]
fn histogram_counts_values_in_the_first_matching_bucket() {
    let registry = MetricRegistry::default();
    let family = registry.family(MetricKind::Histogram, "h", "").unwrap();
    let metric = family.metric(labels(&[]), Some(vec![1.0, 2.0])).unwrap();
    [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| metric.observe(value).unwrap());
    let value = HistogramValue { bounds: vec![1.0, 2.0], counts: vec![2, 1, 1], sum: 12.0 };
    assert_eq!(registry.snapshot()[0].series, [(labels(&[]), MetricValue::Histogram(value))]);
}

#[test]
fn each_kind_refuses_unsupported_operations() {
    let registry = MetricRegistry::default();
    let metric = |kind, bounds| registry.family(kind, kind.name(), "").unwrap().metric(labels(&[]), bounds);
    let counter = metric(MetricKind::Counter, None).unwrap();
    let gauge = metric(MetricKind::Gauge, None).unwrap();
    let histogram = metric(MetricKind::Histogram, Some(vec![])).unwrap();
    let code = |outcome: Result<()>| outcome.unwrap_err().code();
    assert_eq!(code(counter.increment(-1.0)), ErrorCode::InvalidArg);
    assert_eq!(code(counter.increment(f64::NAN)), ErrorCode::InvalidArg);
    assert_eq!(code(counter.set(1.0)), ErrorCode::Unsupported);
    assert_eq!(code(counter.observe(1.0)), ErrorCode::Unsupported);
    assert_eq!(code(gauge.observe(1.0)), ErrorCode::Unsupported);
    assert_eq!(code(histogram.increment(1.0)), ErrorCode::Unsupported);
    assert_eq!(code(histogram.set(1.0)), ErrorCode::Unsupported);
    assert_eq!(histogram.value().unwrap_err().code(), ErrorCode::Unsupported);
    gauge.increment(-1.0).unwrap();
    assert_eq!(gauge.value(), Ok(-1.0));
}

#[test]
fn invalid_names_kinds_and_bounds_are_refused() {
    let registry = MetricRegistry::default();
    registry.reserve(["mine"]);
    let family = registry.family(MetricKind::Counter, "c", "").unwrap();
    for name in ["", "1a", "a-b", "é", "a b", "mine"] {
        assert!(registry.family(MetricKind::Counter, name, "").is_err(), "{name}");
    }
    let error = registry.family(MetricKind::Gauge, "c", "").err().unwrap();
    assert!(error.message().contains("is a counter, not a"), "{error}");
    for name in ["", "1a", "a-b", "a:b"] {
        assert!(family.metric(labels(&[(name, "x")]), None).is_err(), "{name}");
    }
    assert!(family.metric(labels(&[]), Some(vec![])).is_err());
    let family = registry.family(MetricKind::Histogram, "h", "").unwrap();
    for bounds in [None, Some(vec![2.0, 1.0]), Some(vec![1.0, 1.0]), Some(vec![f64::NAN])] {
        assert!(family.metric(labels(&[]), bounds.clone()).is_err(), "{bounds:?}");
    }
    assert_eq!(registry.snapshot()[0].series, []);
}

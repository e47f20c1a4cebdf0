//! Metrics of a process that hosts a backend, copied into the server's registry.
//!
//! The process sends the values of all its metrics from time to time. The server adds what counters and histograms have gained since,
//! so that a process that begins at 0 again takes nothing away.

use std::collections::HashMap;

use nereid_backend_api::{
    FamilySnapshot, HistogramValue, Metric, MetricKind, MetricLabels, MetricValue, Peers, Result,
};
use nereid_worker_protocol::{Malformed, Message, Reader};

/// Most series of one process.
const MAX_SERIES: usize = 4096;

/// Appends metrics to a message.
pub(crate) fn write(message: &mut Message<'_>, families: &[FamilySnapshot]) {
    message.count(families.len());
    for FamilySnapshot { name, kind, help, series } in families {
        message.u8(match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        });
        message.text(name);
        message.text(help);
        message.count(series.len());
        for (labels, value) in series {
            message.pairs(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            match value {
                MetricValue::Number(number) => message.f64(*number),
                MetricValue::Histogram(HistogramValue { bounds, counts, sum }) => {
                    message.count(bounds.len());
                    bounds.iter().for_each(|bound| message.f64(*bound));
                    message.count(counts.len());
                    counts.iter().for_each(|count| message.u64(*count));
                    message.f64(*sum);
                }
            }
        }
    }
}

/// Reads metrics from a message.
///
/// # Errors
/// The message is malformed.
fn read(reader: &mut Reader<'_>) -> std::result::Result<Vec<FamilySnapshot>, Malformed> {
    let family = |reader: &mut Reader<'_>| {
        let kind = match reader.u8()? {
            0 => MetricKind::Counter,
            1 => MetricKind::Gauge,
            2 => MetricKind::Histogram,
            _ => return Err(Malformed("unknown kind of metric")),
        };
        let (name, help) = (reader.text()?.to_owned(), reader.text()?.to_owned());
        let series = (0..reader.count(8)?).map(|_| {
            let labels = reader.pairs()?.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels: MetricLabels = labels.collect();
            let value = if kind == MetricKind::Histogram {
                let bounds =
                    (0..reader.count(8)?).map(|_| reader.f64()).collect::<std::result::Result<_, _>>()?;
                let counts =
                    (0..reader.count(8)?).map(|_| reader.u64()).collect::<std::result::Result<_, _>>()?;
                MetricValue::Histogram(HistogramValue { bounds, counts, sum: reader.f64()? })
            } else {
                MetricValue::Number(reader.f64()?)
            };
            Ok((labels, value))
        });
        let series = series.collect::<std::result::Result<_, Malformed>>()?;
        Ok(FamilySnapshot { name, kind, help, series })
    };
    (0..reader.count(8)?).map(|_| family(reader)).collect()
}

/// The copies of a process's metrics. They end with this object.
#[derive(Default)]
pub(crate) struct Mirror(HashMap<(String, MetricLabels), (Metric, MetricValue)>);

impl Mirror {
    /// Takes over the values in a message.
    ///
    /// # Errors
    /// The message is malformed.
    pub(crate) fn update(
        &mut self,
        peers: &dyn Peers,
        reader: &mut Reader<'_>,
    ) -> std::result::Result<(), Malformed> {
        for FamilySnapshot { name, kind, help, series } in read(reader)? {
            for (labels, value) in series {
                let outcome = self.apply(peers, (&name, kind, &help), labels, value);
                if let Err(error) = outcome {
                    tracing::debug!("the metric '{name}' of a process is left out: {error}");
                }
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        peers: &dyn Peers,
        (name, kind, help): (&str, MetricKind, &str),
        labels: MetricLabels,
        value: MetricValue,
    ) -> Result<()> {
        let key = (name.to_owned(), labels);
        if !self.0.contains_key(&key) {
            if self.0.len() == MAX_SERIES {
                return Ok(());
            }
            let (bounds, empty) = match &value {
                MetricValue::Number(_) => (None, MetricValue::Number(0.0)),
                MetricValue::Histogram(value) => {
                    let counts = vec![0; value.counts.len()];
                    let empty = HistogramValue { bounds: value.bounds.clone(), counts, sum: 0.0 };
                    (Some(value.bounds.clone()), MetricValue::Histogram(empty))
                }
            };
            let metric = peers.metrics()?.family(kind, name, help)?.metric(key.1.clone(), bounds)?;
            self.0.insert(key.clone(), (metric, empty));
        }
        let Some((metric, known)) = self.0.get_mut(&key) else { return Ok(()) };
        match (&*known, &value) {
            (MetricValue::Number(_), MetricValue::Number(now)) if kind == MetricKind::Gauge => {
                metric.set(*now)?;
            }
            (MetricValue::Number(before), MetricValue::Number(now)) => {
                metric.increment((now - before).max(0.0))?;
            }
            (MetricValue::Histogram(before), MetricValue::Histogram(now)) => {
                for observed in gained(before, now) {
                    metric.observe(observed)?;
                }
            }
            _ => {}
        }
        *known = value;
        Ok(())
    }
}

/// Makes up the values that a histogram observed between two moments: the right number in each bucket, with the right sum.
fn gained(before: &HistogramValue, now: &HistogramValue) -> Vec<f64> {
    let counts = now.counts.iter().zip(&before.counts).map(|(now, before)| now.saturating_sub(*before));
    let lower = std::iter::once(0.0).chain(now.bounds.iter().copied());
    let upper = now.bounds.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(u64, f64, f64)> =
        counts.zip(lower.zip(upper)).map(|(count, (lower, upper))| (count, lower, upper)).collect();
    let sum = now.sum - before.sum;
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let total = |bound: fn(&(u64, f64, f64)) -> f64| -> f64 {
        buckets.iter().filter(|(_, _, upper)| upper.is_finite()).map(|it| it.0 as f64 * bound(it)).sum()
    };
    let (least, most) = (total(|it| it.1), total(|it| it.2));
    let beyond = buckets.last().map_or(0, |(count, ..)| *count);
    // All values are at the same place within their buckets, but for those beyond the last bound, which take the rest.
    let place = match (beyond, most > least) {
        (0, true) => ((sum - least) / (most - least)).clamp(1e-6, 1.0),
        _ => 0.5,
    };
    let within = least + (most - least) * place;
    let value = |(_, lower, upper): &(u64, f64, f64)| match upper.is_finite() {
        true => lower + (upper - lower) * place,
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        false => ((sum - within) / beyond as f64).max(lower + lower.abs() * 1e-6),
    };
    let repeated = |bucket: &(u64, f64, f64)| {
        std::iter::repeat_n(value(bucket), usize::try_from(bucket.0).unwrap_or(0).min(1 << 16))
    };
    buckets.iter().flat_map(repeated).collect()
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::MetricRegistry;
    use proptest::prelude::*;

    use super::*;

    fn histogram(registry: &MetricRegistry) -> Metric {
        let family = registry.family(MetricKind::Histogram, "h", "").unwrap();
        family.metric(MetricLabels::new(), Some(vec![0.1, 1.0, 10.0])).unwrap()
    }

    fn value(registry: &MetricRegistry) -> HistogramValue {
        match registry.snapshot().pop().unwrap().series.pop().unwrap().1 {
            MetricValue::Histogram(value) => value,
            MetricValue::Number(number) => panic!("{number}"),
        }
    }

    proptest! {
        #[test]
        fn copied_histogram_has_the_same_buckets_and_sum(
            batches in prop::collection::vec(prop::collection::vec(0.0_f64..40.0, 0..5), 1..6),
        ) {
            let (source, copy) = (MetricRegistry::default(), MetricRegistry::default());
            let (original, copied) = (histogram(&source), histogram(&copy));
            let mut before = value(&source);
            for batch in batches {
                batch.into_iter().for_each(|observed| original.observe(observed).unwrap());
                let now = value(&source);
                gained(&before, &now).into_iter().for_each(|observed| copied.observe(observed).unwrap());
                before = now;
            }
            let copied = value(&copy);
            prop_assert_eq!(&copied.counts, &before.counts);
            // Values beyond the last bound are at least there.
            let tolerance = if before.counts[3] == 0 { 1e-3 } else { 40.0 };
            prop_assert!((copied.sum - before.sum).abs() <= tolerance, "{} {}", copied.sum, before.sum);
        }
    }
}

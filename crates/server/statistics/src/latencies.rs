//! Distributions of latencies: time to the first answer, and quantiles of the last minute. Kept only when enabled,
//! because they cost each request something.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nereid_backend_api::{HistogramValue, ModelConfig};
use nereid_model_config::proto::model_metrics::metric_control::MetricOptions;
use sketches_ddsketch::{Config, DDSketch};

use super::{ComputeTimes, nanos};

/// Which distributions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyOptions {
    /// The histogram of times to the first answer.
    pub histograms: bool,
    /// Quantiles of each phase of requests.
    pub summaries: bool,
}

/// The one family whose buckets a configuration may set.
const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";

/// The default buckets, in milliseconds.
const BOUNDS_MS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// The distributions of latencies of a version.
pub struct Latencies {
    first_response: Option<Histogram>,
    summaries: Option<[Summary; Phase::ALL.len()]>,
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latencies").field("first_response", &self.first_response()).finish_non_exhaustive()
    }
}

/// The part of a request that a summary describes. The numbers are indices of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The whole, from arrival to answer.
    Request,
    /// Waiting for an instance.
    Queue,
    /// Gathering of inputs.
    ComputeInput,
    /// Running the model.
    ComputeInfer,
    /// Handing on outputs.
    ComputeOutput,
    /// The lookup in the response cache, where it found the answer.
    CacheHit,
    /// The lookup where it did not, and storing the answer.
    CacheMiss,
}

impl Phase {
    /// Every phase, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Request,
        Self::Queue,
        Self::ComputeInput,
        Self::ComputeInfer,
        Self::ComputeOutput,
        Self::CacheHit,
        Self::CacheMiss,
    ];
}

impl Latencies {
    /// The distributions that `options` enable for a model with this configuration, if any.
    pub fn new(options: LatencyOptions, config: &ModelConfig) -> Option<Self> {
        let first_response = options.histograms.then(|| Histogram::new(bounds_ms(config)));
        let summaries = options.summaries.then(|| Phase::ALL.map(|_| Summary::new(Instant::now())));
        (options != LatencyOptions::default()).then_some(Self { first_response, summaries })
    }

    /// Whether the counts of `other` can continue here.
    pub fn fits(&self, other: &Self) -> bool {
        let bounds = |latencies: &Self| latencies.first_response.as_ref().map(|it| it.bounds_ms.clone());
        bounds(self) == bounds(other) && self.summaries.is_some() == other.summaries.is_some()
    }

    /// Counts the first answer to a request, which came so long after it.
    pub fn answered_first(&self, after: Duration) {
        if let Some(histogram) = &self.first_response {
            histogram.observe(after);
        }
    }

    pub(crate) fn succeeded(&self, total: Duration, queue: Duration) {
        self.observe([(Phase::Request, total), (Phase::Queue, queue)]);
    }

    pub(crate) fn computed(&self, times: ComputeTimes) {
        self.observe([
            (Phase::ComputeInput, times.input),
            (Phase::ComputeInfer, times.infer),
            (Phase::ComputeOutput, times.output),
        ]);
    }

    pub(crate) fn hit(&self, took: Duration) {
        self.observe([(Phase::CacheHit, took)]);
    }

    pub(crate) fn missed(&self, took: Duration) {
        self.observe([(Phase::CacheMiss, took)]);
    }

    fn observe<const N: usize>(&self, durations: [(Phase, Duration); N]) {
        if let Some(summaries) = &self.summaries {
            let now = Instant::now();
            for (phase, duration) in durations {
                summaries[phase as usize].observe(duration, now);
            }
        }
    }

    /// The histogram of times to the first answer, in milliseconds, if it is kept.
    pub fn first_response(&self) -> Option<HistogramValue> {
        self.first_response.as_ref().map(Histogram::snapshot)
    }

    /// The summaries of all phases in their order, if they are kept.
    pub fn summaries(&self) -> Option<[LatencySummary; Phase::ALL.len()]> {
        let now = Instant::now();
        self.summaries.as_ref().map(|summaries| summaries.each_ref().map(|summary| summary.snapshot(now)))
    }
}

/// The bounds of a checked configuration, ascending.
fn bounds_ms(config: &ModelConfig) -> Vec<f64> {
    let mut bounds = BOUNDS_MS.to_vec();
    for control in config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control) {
        let family = control.metric_identifier.as_ref().map_or("", |identifier| &identifier.family);
        match &control.metric_options {
            Some(MetricOptions::HistogramOptions(options)) if family == FIRST_RESPONSE => {
                bounds.clone_from(&options.buckets);
            }
            _ => tracing::warn!(
                "model '{}': model_metrics: '{family}' is not configurable; only '{FIRST_RESPONSE}' is",
                config.name
            ),
        }
    }
    bounds
}

struct Histogram {
    bounds_ms: Vec<f64>,
    /// One more than there are bounds.
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Histogram {
    fn new(bounds_ms: Vec<f64>) -> Self {
        let counts = (0..=bounds_ms.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds_ms, counts, sum_ns: AtomicU64::new(0) }
    }

    fn observe(&self, duration: Duration) {
        let ms = duration.as_secs_f64() * 1000.0;
        let bucket = self.bounds_ms.partition_point(|bound| *bound < ms);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(nanos(duration), Relaxed);
    }

    fn snapshot(&self) -> HistogramValue {
        HistogramValue {
            bounds: self.bounds_ms.clone(),
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum: self.sum_ns.load(Relaxed) as f64 / 1e6,
        }
    }
}

/// Number of parts of the window. The oldest is dropped as a whole.
const PARTS: usize = 5;
/// How long a part lasts. The window is a minute, as the reference's.
const PART: Duration = Duration::from_secs(12);
/// Relative error of a quantile.
const ACCURACY: f64 = 0.01;
/// Enough for times from a microsecond to many days with that accuracy.
const BINS: u32 = 2048;

/// Quantiles of the last minute, and how much there was ever.
struct Summary(Mutex<Window>);

struct Window {
    /// Sketches in microseconds.
    parts: [DDSketch; PARTS],
    current: usize,
    /// When the current part began.
    begin: Instant,
    count: u64,
    sum_ns: u64,
}

/// A summary at one moment, in microseconds.
pub struct LatencySummary {
    /// How many values there were ever.
    pub count: u64,
    /// Their sum.
    pub sum_us: u64,
    recent: DDSketch,
}

impl LatencySummary {
    /// A quantile of the last minute, accurate to 1%; `None` if there were no values, or outside of 0 to 1.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        self.recent.quantile(quantile).ok().flatten()
    }
}

fn sketch() -> DDSketch {
    DDSketch::new(Config::new(ACCURACY, BINS, 1e-3))
}

impl Summary {
    fn new(now: Instant) -> Self {
        let parts = std::array::from_fn(|_| sketch());
        Self(Mutex::new(Window { parts, current: 0, begin: now, count: 0, sum_ns: 0 }))
    }

    fn observe(&self, duration: Duration, now: Instant) {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        window.turn(now);
        let current = window.current;
        window.parts[current].add(duration.as_secs_f64() * 1e6);
        window.count += 1;
        window.sum_ns = window.sum_ns.saturating_add(nanos(duration));
    }

    fn snapshot(&self, now: Instant) -> LatencySummary {
        let (parts, count, sum_ns) = {
            let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            window.turn(now);
            (window.parts.clone(), window.count, window.sum_ns)
        };
        let mut recent = sketch();
        for part in &parts {
            // It fails where sketches are made differently, and these are not.
            let _ = recent.merge(part);
        }
        LatencySummary { count, sum_us: sum_ns / 1000, recent }
    }
}

impl Window {
    /// Drops what has become too old.
    fn turn(&mut self, now: Instant) {
        for _ in 0..PARTS {
            if now.saturating_duration_since(self.begin) < PART {
                return;
            }
            self.current = (self.current + 1) % PARTS;
            self.parts[self.current] = sketch();
            self.begin += PART;
        }
        // All parts are new; how long they were not needed does not matter.
        if now.saturating_duration_since(self.begin) >= PART {
            self.begin = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: LatencyOptions = LatencyOptions { histograms: true, summaries: true };

    fn config(text: &str) -> ModelConfig {
        nereid_model_config::parse_text(text).unwrap()
    }

    #[track_caller]
    fn assert_near(value: Option<f64>, expected: f64) {
        let value = value.unwrap();
        assert!((value - expected).abs() <= expected * ACCURACY * 1.01, "{value} is not near {expected}");
    }

    #[test]
    fn nothing_is_kept_that_nobody_asked_for() {
        assert!(Latencies::new(LatencyOptions::default(), &config("")).is_none());
        let latencies = Latencies::new(LatencyOptions { summaries: true, ..Default::default() }, &config(""));
        assert_eq!(latencies.unwrap().first_response(), None);
        let latencies =
            Latencies::new(LatencyOptions { histograms: true, ..Default::default() }, &config(""));
        assert!(latencies.unwrap().summaries().is_none());
    }

    #[test]
    fn first_answers_fall_into_the_buckets_of_the_configuration() {
        let text = "model_metrics { metric_control { metric_identifier { family: 'other' } histogram_options { \
                    buckets: 9 } } metric_control { metric_identifier { family: \
                    'nv_inference_first_response_histogram_ms' } histogram_options { buckets: [ 1, 2.5 ] } } }";
        let latencies = Latencies::new(ALL, &config(text)).unwrap();
        for micros in [0, 1000, 1001, 2500, 9000] {
            latencies.answered_first(Duration::from_micros(micros));
        }
        let expected = HistogramValue { bounds: vec![1.0, 2.5], counts: vec![2, 2, 1], sum: 13.501 };
        assert_eq!(latencies.first_response(), Some(expected));
        let default = Latencies::new(ALL, &config("")).unwrap();
        assert_eq!(default.first_response().unwrap().bounds, BOUNDS_MS);
        assert!(default.fits(&default) && !default.fits(&latencies));
    }

    #[test]
    fn quantiles_are_those_of_the_last_minute() {
        let begin = Instant::now();
        let summary = Summary::new(begin);
        for number in 1..=1000 {
            summary.observe(Duration::from_micros(number), begin);
        }
        let later = |seconds| begin + Duration::from_secs(seconds);
        let recent = summary.snapshot(later(1));
        assert_eq!((recent.count, recent.sum_us), (1000, 500_500));
        assert_near(recent.quantile(0.5), 500.0);
        assert_near(recent.quantile(0.99), 990.0);
        assert_near(recent.quantile(1.0), 1000.0);
        assert_eq!(recent.quantile(1.5), None);

        summary.observe(Duration::from_secs(7), later(30));
        assert_near(summary.snapshot(later(59)).quantile(0.5), 500.0);
        let recent = summary.snapshot(later(61));
        assert_eq!(recent.count, 1001);
        assert_near(recent.quantile(0.01), 7e6);
        let recent = summary.snapshot(later(91));
        assert_eq!((recent.count, recent.quantile(0.5)), (1001, None));
        summary.observe(Duration::ZERO, later(100_000));
        assert_eq!(summary.snapshot(later(100_001)).quantile(0.5), Some(0.0));
    }
}

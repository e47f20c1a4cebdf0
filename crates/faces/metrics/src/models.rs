//! Metrics of each version of each model.

use std::sync::Arc;

use nereid_core::model_config::EnsembleRules;
use nereid_core::{
    Adaptation, FailureReason, HistogramValue, Latencies, LatencyPhase, LatencySummary, MetricLabels, Model,
    ModelId, Server, Totals, VersionState,
};

use crate::text::{Labels, Number, Text};

/// A version at one moment.
pub(crate) struct Row {
    /// The model's name.
    pub id: ModelId,
    pub version: u64,
    pub labels: Labels,
    /// The labels for each reason of failure that the reference knows.
    reasons: [Labels; REASONS.len()],
    pub totals: Totals,
    /// Whether its configuration enables the response cache; the server may have none.
    pub enables_cache: bool,
    /// Whether fallbacks replace failed steps of the ensemble.
    has_fallbacks: bool,
    pub pending: usize,
    /// The number of instances, if it follows the load.
    instances: Option<usize>,
    /// How its batches follow a latency objective, if it has one.
    adaptation: Option<Adaptation>,
    load_seconds: f64,
    first_response: Option<HistogramValue>,
    summaries: Option<[LatencySummary; LatencyPhase::ALL.len()]>,
}

/// All ready versions.
pub(crate) fn rows(server: &Server) -> Vec<Row> {
    // Copied, so that reading the rest does not delay any unload.
    let models: Vec<_> = server.models().ready().cloned().collect();
    models.into_iter().map(row).collect()
}

fn row(model: Arc<Model>) -> Row {
    let labels = labels(&model);
    let reasons = REASONS.map(|(reason, _)| {
        let mut labels = labels.clone();
        labels.insert("reason".to_owned(), reason.to_owned());
        Labels::new(&labels)
    });
    let statistics = model.statistics();
    Row {
        id: model.id().clone(),
        version: model.version(),
        labels: Labels::new(&labels),
        reasons,
        totals: statistics.totals(),
        enables_cache: model.config().response_cache.is_some_and(|cache| cache.enable),
        has_fallbacks: EnsembleRules::of(model.config())
            .is_ok_and(|rules| rules.is_some_and(|rules| rules.has_fallbacks())),
        pending: model.pending(),
        instances: model.instances_at_load().and_then(|_| model.instances()),
        adaptation: model.adaptation(),
        load_seconds: statistics.load_duration().as_secs_f64(),
        first_response: statistics.latencies().and_then(Latencies::first_response),
        summaries: statistics.latencies().and_then(Latencies::summaries),
    }
}

/// The reasons of failures that the reference knows, and the failures that count under each.
const REASONS: [(&str, &[FailureReason]); 4] = [
    ("BACKEND", &[FailureReason::Backend]),
    ("CANCELED", &[FailureReason::Cancelled]),
    ("OTHER", &[FailureReason::Other]),
    ("REJECTED", &[FailureReason::Rejected, FailureReason::Shed]),
];

fn labels(model: &Model) -> MetricLabels {
    let mut labels = MetricLabels::new();
    for (key, value) in &model.config().metric_tags {
        // One invalid name would make Prometheus refuse the whole text; names with two leading underscores are
        // reserved.
        let name = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        labels.entry(format!("_{}", name.trim_start_matches('_'))).or_insert_with(|| value.clone());
    }
    let id = model.id();
    if !id.namespace.is_empty() {
        labels.insert("namespace".to_owned(), id.namespace.clone());
    }
    labels.insert("model".to_owned(), id.name.clone());
    labels.insert("version".to_owned(), model.version().to_string());
    labels
}

/// A counter of each version.
struct Counter {
    name: &'static str,
    help: &'static str,
    value: fn(&Totals) -> u64,
}

const COUNTS: [Counter; 2] = [
    Counter {
        name: "nv_inference_count",
        help: "Inferences: a request counts once for each item of its batch",
        value: |totals| totals.inferences,
    },
    Counter {
        name: "nv_inference_exec_count",
        help: "Executions of the model: a batch counts once",
        value: |totals| totals.executions,
    },
];

const DURATIONS: [Counter; 5] = [
    Counter {
        name: "nv_inference_request_duration_us",
        help: "Cumulative time from the arrival of requests to their last response, in microseconds",
        value: |totals| totals.request_ns / 1000,
    },
    Counter {
        name: "nv_inference_queue_duration_us",
        help: "Cumulative time that requests waited for an instance, in microseconds",
        value: |totals| totals.queue_ns / 1000,
    },
    Counter {
        name: "nv_inference_compute_input_duration_us",
        help: "Cumulative time spent gathering inputs, in microseconds",
        value: |totals| totals.compute_input_ns / 1000,
    },
    Counter {
        name: "nv_inference_compute_infer_duration_us",
        help: "Cumulative time spent executing the model, in microseconds",
        value: |totals| totals.compute_infer_ns / 1000,
    },
    Counter {
        name: "nv_inference_compute_output_duration_us",
        help: "Cumulative time spent returning outputs, in microseconds",
        value: |totals| totals.compute_output_ns / 1000,
    },
];

const SUCCESS: Counter = Counter {
    name: "nv_inference_request_success",
    help: "Successful requests, regardless of their batch size",
    value: |totals| totals.success,
};
const SHED: Counter = Counter {
    name: "nereid_shed_requests_total",
    help: "Requests that were refused because they would have waited in the queue for longer than they may",
    value: |totals| totals.failures_by(FailureReason::Shed),
};
const FALLBACKS: &str = "nereid_ensemble_fallbacks_total";
const FAILURE: &str = "nv_inference_request_failure";
const PENDING: &str = "nv_inference_pending_request_count";
const LOAD: &str = "nv_model_load_duration_secs";
const LOAD_FAILURES: &str = "nereid_model_load_failures";
const READY: &str = "nereid_model_ready";
const INSTANCES: &str = "nereid_model_instances";

/// A gauge of versions with a latency objective.
struct BatchGauge {
    name: &'static str,
    help: &'static str,
    value: fn(&Adaptation) -> Option<f64>,
}

const BATCHES: [BatchGauge; 4] = [
    BatchGauge {
        name: "nereid_batch_objective_seconds",
        help: "Latency objective of the version, within which 99 of 100 requests should be answered",
        value: |adaptation| Some(adaptation.objective.as_secs_f64()),
    },
    BatchGauge {
        name: "nereid_batch_target_size",
        help: "Size at which a batch of the version is executed at once, by its latency objective",
        value: |adaptation| Some(adaptation.batch_size as f64),
    },
    BatchGauge {
        name: "nereid_batch_delay_seconds",
        help: "Longest time that the last batch of the version was to wait for more requests",
        value: |adaptation| Some(adaptation.delay.as_secs_f64()),
    },
    BatchGauge {
        name: "nereid_batch_execution_seconds",
        help: "Expected time of an execution with the target size, once executions were measured",
        value: |adaptation| Some(adaptation.run_time?.as_secs_f64()),
    },
];

const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";

/// The name and the help of each phase's summary.
const SUMMARIES: [(&str, &str); LatencyPhase::ALL.len()] = [
    (
        "nv_inference_request_summary_us",
        "Time from the arrival of a request to its last response, in microseconds",
    ),
    ("nv_inference_queue_summary_us", "Time that a request waited for an instance, in microseconds"),
    ("nv_inference_compute_input_summary_us", "Time spent gathering inputs, in microseconds"),
    ("nv_inference_compute_infer_summary_us", "Time spent executing the model, in microseconds"),
    ("nv_inference_compute_output_summary_us", "Time spent returning outputs, in microseconds"),
    (
        "nv_cache_hit_summary_per_model",
        "Time spent looking up a request that was found in the response cache, in microseconds",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Time spent looking up a request that was not found in the response cache, and storing its response, in \
         microseconds",
    ),
];

/// The names of all families here.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let counters = [SUCCESS, SHED].into_iter().chain(COUNTS).chain(DURATIONS).map(|counter| counter.name);
    let summaries = SUMMARIES.into_iter().map(|(name, _)| name);
    let batches = BATCHES.into_iter().map(|gauge| gauge.name);
    counters
        .chain(batches)
        .chain([FAILURE, FALLBACKS, PENDING, LOAD, INSTANCES, LOAD_FAILURES, READY, FIRST_RESPONSE])
        .chain(summaries)
}

/// Writes the counters; durations only if requested.
pub(crate) fn write_counters(text: &mut Text, rows: &[Row], durations: bool) {
    if rows.is_empty() {
        return;
    }
    write_counter(text, rows, &SUCCESS);
    text.family(FAILURE, "counter", "Failed requests, by reason");
    for row in rows {
        for (labels, (_, counted)) in row.reasons.iter().zip(REASONS) {
            let count = counted.iter().map(|reason| row.totals.failures_by(*reason)).sum::<u64>();
            text.sample(FAILURE, "", labels, count);
        }
    }
    write_counter(text, rows, &SHED);
    if rows.iter().any(|row| row.has_fallbacks) {
        text.family(FALLBACKS, "counter", "Failed steps of an ensemble that a fallback or a value replaced");
        for row in rows.iter().filter(|row| row.has_fallbacks) {
            text.sample(FALLBACKS, "", &row.labels, row.totals.fallbacks);
        }
    }
    COUNTS.iter().for_each(|counter| write_counter(text, rows, counter));
    if durations {
        DURATIONS.iter().for_each(|counter| write_counter(text, rows, counter));
    }
}

/// Writes how often models failed to load, if any did.
pub(crate) fn write_load_failures(text: &mut Text, server: &Server, is_visible: impl Fn(&ModelId) -> bool) {
    let models = server.models();
    let failed: Vec<_> = models.load_failures().filter(|(id, _)| is_visible(id)).collect();
    if failed.is_empty() {
        return;
    }
    text.family(LOAD_FAILURES, "counter", "Loads of the model that failed");
    for (id, count) in failed {
        let mut labels = MetricLabels::from([("model".to_owned(), id.name)]);
        if !id.namespace.is_empty() {
            labels.insert("namespace".to_owned(), id.namespace);
        }
        text.sample(LOAD_FAILURES, "", &Labels::new(&labels), count);
    }
}

/// Writes whether versions are ready. Versions that were unloaded on purpose, or wait to be loaded on demand, have no line.
pub(crate) fn write_readiness(text: &mut Text, server: &Server, is_visible: impl Fn(&ModelId) -> bool) {
    let models = server.models();
    let mut rows = Vec::new();
    for status in models.index().filter(|status| is_visible(&status.id)) {
        let is_ready = match status.state {
            VersionState::Ready(_) => true,
            VersionState::Loading { .. } | VersionState::Unavailable(_) => false,
            VersionState::Unloading { .. } | VersionState::Unloaded | VersionState::Evicted => continue,
        };
        let mut labels = MetricLabels::from([("model".to_owned(), status.id.name)]);
        if let Some(version) = status.version {
            labels.insert("version".to_owned(), version.to_string());
        }
        if !status.id.namespace.is_empty() {
            labels.insert("namespace".to_owned(), status.id.namespace);
        }
        rows.push((Labels::new(&labels), u8::from(is_ready)));
    }
    if rows.is_empty() {
        return;
    }
    text.family(
        READY,
        "gauge",
        "Whether the version is ready for requests, 1 or 0: it is being loaded, or could not be",
    );
    rows.iter().for_each(|(labels, is_ready)| text.sample(READY, "", labels, *is_ready));
}

fn write_counter(text: &mut Text, rows: &[Row], counter: &Counter) {
    text.family(counter.name, "counter", counter.help);
    for row in rows {
        text.sample(counter.name, "", &row.labels, (counter.value)(&row.totals));
    }
}

/// Writes the gauges; load durations only if requested.
pub(crate) fn write_gauges(text: &mut Text, rows: &[Row], load_durations: bool) {
    if rows.is_empty() {
        return;
    }
    text.family(PENDING, "gauge", "Requests waiting for an instance");
    rows.iter().for_each(|row| text.sample(PENDING, "", &row.labels, row.pending));
    if load_durations {
        text.family(LOAD, "gauge", "Time the version took to load, in seconds");
        rows.iter().for_each(|row| text.sample(LOAD, "", &row.labels, Number(row.load_seconds)));
    }
    let scaled: Vec<_> = rows.iter().filter_map(|row| Some((&row.labels, row.instances?))).collect();
    if !scaled.is_empty() {
        text.family(INSTANCES, "gauge", "Instances of the version, whose number follows the load");
        scaled.iter().for_each(|(labels, instances)| text.sample(INSTANCES, "", labels, instances));
    }
    write_batches(text, rows);
}

fn write_batches(text: &mut Text, rows: &[Row]) {
    let adaptive: Vec<_> = rows.iter().filter_map(|row| Some((&row.labels, row.adaptation?))).collect();
    for gauge in &BATCHES {
        let values = adaptive.iter().filter_map(|(labels, it)| Some((labels, (gauge.value)(it)?)));
        let values: Vec<_> = values.collect();
        if !values.is_empty() {
            text.family(gauge.name, "gauge", gauge.help);
            values.into_iter().for_each(|(labels, value)| text.sample(gauge.name, "", labels, Number(value)));
        }
    }
}

/// Writes the histograms, if enabled.
pub(crate) fn write_histograms(text: &mut Text, rows: &[Row]) {
    let kept: Vec<_> =
        rows.iter().filter_map(|row| Some((&row.labels, row.first_response.as_ref()?))).collect();
    if !kept.is_empty() {
        text.family(
            FIRST_RESPONSE,
            "histogram",
            "Time from the arrival of a request to its first response, in milliseconds",
        );
    }
    for (labels, value) in kept {
        text.histogram(FIRST_RESPONSE, labels, &value.bounds, &value.counts, value.sum);
    }
}

/// Writes the summaries with these quantiles, if enabled.
pub(crate) fn write_summaries(text: &mut Text, rows: &[Row], quantiles: &[f64]) {
    let kept: Vec<_> = rows.iter().filter_map(|row| Some((row, row.summaries.as_ref()?))).collect();
    if kept.is_empty() {
        return;
    }
    for ((name, help), phase) in SUMMARIES.into_iter().zip(LatencyPhase::ALL) {
        let of_cache = matches!(phase, LatencyPhase::CacheHit | LatencyPhase::CacheMiss);
        if of_cache && !kept.iter().any(|(row, _)| row.enables_cache) {
            continue;
        }
        text.family(name, "summary", help);
        for (Row { labels, .. }, summaries) in kept.iter().filter(|(row, _)| row.enables_cache || !of_cache) {
            let summary = &summaries[phase as usize];
            text.sample(name, "_count", labels, summary.count);
            text.sample(name, "_sum", labels, summary.sum_us);
            for quantile in quantiles {
                // Without observations the quantiles are undefined, but collectors expect their lines.
                let value = summary.quantile(*quantile).unwrap_or(f64::NAN);
                text.sample(name, "", &labels.and("quantile", &Number(*quantile)), Number(value.round()));
            }
        }
    }
}

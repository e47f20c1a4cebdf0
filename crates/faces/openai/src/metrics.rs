//! Metrics of language models that report none themselves, by the names that gateways and dashboards know: vLLM's, and OpenTelemetry's
//! conventions for generative models. Only requests of this interface count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nereid_core::Model;
use nereid_core::backend_api::language_metrics::{FIRST_TOKEN_BOUNDS, PER_TOKEN_BOUNDS, REQUEST_BOUNDS};
use nereid_core::backend_api::{Metric, MetricKind, MetricLabels, MetricRegistry, Result};
use quick_cache::sync::Cache;

use crate::contract::Finish;

/// The value of the label `engine`, which is an instance where a backend measures.
const ENGINE: &str = "openai";

/// The backends whose models have these metrics from their instances.
const MEASURED: [&str; 1] = ["llamacpp"];

/// Models whose metrics are kept at once.
const CAPACITY: usize = 1024;

/// An operation by OpenTelemetry's conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Chat,
    TextCompletion,
}

/// The metrics of models by their names. They outlive reloads.
pub(crate) struct LanguageMetrics {
    registry: MetricRegistry,
    models: Cache<String, Arc<ModelMetrics>>,
}

/// The metrics of one model.
struct ModelMetrics {
    in_progress: AtomicUsize,
    running: Metric,
    waiting: Metric,
    prompt_tokens: Metric,
    output_tokens: Metric,
    stopped: Metric,
    cut: Metric,
    first_token: Times,
    per_token: Times,
    request: Times,
}

/// A histogram of times: by vLLM's name, and by the convention for each operation.
struct Times {
    all: Metric,
    chat: Metric,
    text_completion: Metric,
}

impl LanguageMetrics {
    pub(crate) fn new(registry: MetricRegistry) -> Self {
        Self { registry, models: Cache::new(CAPACITY) }
    }

    /// Begins to measure a request to a model. `None` if the model's backend does, or a metric's name is in use for another kind. The
    /// first token of an output that does not arrive in pieces is unknown.
    pub(crate) fn begin(&self, model: &Arc<Model>, operation: Operation, streams: bool) -> Option<Measured> {
        if MEASURED.contains(&model.config().backend.as_str()) {
            return None;
        }
        let metrics = self.models.get(model.name()).or_else(|| {
            let metrics = Arc::new(ModelMetrics::new(&self.registry, model.name()).ok()?);
            self.models.insert(model.name().to_owned(), Arc::clone(&metrics));
            Some(metrics)
        })?;
        metrics.in_progress.fetch_add(1, Ordering::Relaxed);
        let model = Arc::clone(model);
        let begun = Instant::now();
        let measured = Measured { metrics, model, operation, streams, begun, first: None, outcome: None };
        measured.show_load();
        Some(measured)
    }
}

impl ModelMetrics {
    fn new(registry: &MetricRegistry, model: &str) -> Result<Self> {
        let labels = |pairs: &[(&str, &str)]| -> MetricLabels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let of_vllm = |kind, name: &str, help: &str, bounds: Option<&[f64]>, more: &[(&str, &str)]| {
            let labels = labels(&[&[("model_name", model), ("engine", ENGINE)], more].concat());
            registry.family(kind, &format!("vllm:{name}"), help)?.metric(labels, bounds.map(<[f64]>::to_vec))
        };
        let gauge = |name, help| of_vllm(MetricKind::Gauge, name, help, None, &[]);
        let counter = |name, help| of_vllm(MetricKind::Counter, name, help, None, &[]);
        let ended = |reason| {
            let help = "Requests that ended, by the reason";
            of_vllm(MetricKind::Counter, "request_success_total", help, None, &[("finished_reason", reason)])
        };
        let times = |name: &str, general: &str, help: &str, bounds: &[f64]| {
            let general = format!("gen_ai_server_{general}_seconds");
            let by = |operation| {
                let labels = labels(&[
                    ("gen_ai_operation_name", operation),
                    ("gen_ai_provider_name", "nereid"),
                    ("gen_ai_request_model", model),
                ]);
                registry.family(MetricKind::Histogram, &general, help)?.metric(labels, Some(bounds.to_vec()))
            };
            let all = of_vllm(MetricKind::Histogram, name, help, Some(bounds), &[])?;
            Ok::<_, nereid_core::backend_api::Error>(Times {
                all,
                chat: by("chat")?,
                text_completion: by("text_completion")?,
            })
        };
        let metrics = Self {
            in_progress: AtomicUsize::new(0),
            running: gauge("num_requests_running", "Requests that are being executed")?,
            waiting: gauge("num_requests_waiting", "Requests that wait to be executed")?,
            prompt_tokens: counter("prompt_tokens_total", "Tokens of prompts")?,
            output_tokens: counter("generation_tokens_total", "Tokens that were generated")?,
            stopped: ended("stop")?,
            cut: ended("length")?,
            first_token: times(
                "time_to_first_token_seconds",
                "time_to_first_token",
                "Time from the start of a request to its first token",
                FIRST_TOKEN_BOUNDS,
            )?,
            per_token: times(
                "time_per_output_token_seconds",
                "time_per_output_token",
                "Time for each token after the first, on average over a request",
                PER_TOKEN_BOUNDS,
            )?,
            request: times(
                "e2e_request_latency_seconds",
                "request_duration",
                "Time from the start of a request to its end",
                REQUEST_BOUNDS,
            )?,
        };
        Ok(metrics)
    }
}

impl Times {
    fn observe(&self, operation: Operation, time: Duration) {
        let by_operation = match operation {
            Operation::Chat => &self.chat,
            Operation::TextCompletion => &self.text_completion,
        };
        // Histograms accept every value.
        for histogram in [&self.all, by_operation] {
            _ = histogram.observe(time.as_secs_f64());
        }
    }
}

/// Measures one request, until it is dropped.
pub(crate) struct Measured {
    metrics: Arc<ModelMetrics>,
    model: Arc<Model>,
    operation: Operation,
    streams: bool,
    begun: Instant,
    first: Option<Instant>,
    outcome: Option<Outcome>,
}

/// Tokens of a request, and the reason why it ended once it has.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    prompt_tokens: u64,
    output_tokens: u64,
    finish: Option<Finish>,
}

impl Measured {
    /// A piece of the output has arrived. `finish` is set with the last one.
    pub(crate) fn piece(
        &mut self,
        prompt_tokens: Option<u64>,
        output_tokens: Option<u64>,
        finish: Option<Finish>,
    ) {
        if self.first.is_none() {
            self.first = Some(Instant::now());
            self.show_load();
        }
        self.outcome = Some(Outcome {
            prompt_tokens: prompt_tokens.unwrap_or(0),
            output_tokens: output_tokens.unwrap_or(0),
            finish,
        });
    }

    /// Shows how many requests are in progress, and how many of them wait in the model's queue.
    fn show_load(&self) {
        let count = self.metrics.in_progress.load(Ordering::Relaxed);
        let waiting = self.model.pending().min(count);
        // Gauges accept every value.
        _ = self.metrics.waiting.set(number(waiting as u64));
        _ = self.metrics.running.set(number((count - waiting) as u64));
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.metrics.in_progress.fetch_sub(1, Ordering::Relaxed);
        self.show_load();
        let Some(Outcome { prompt_tokens, output_tokens, finish }) = self.outcome else { return };
        // Counters accept everything that is not negative.
        _ = self.metrics.prompt_tokens.increment(number(prompt_tokens));
        _ = self.metrics.output_tokens.increment(number(output_tokens));
        let (Some(finish), Some(first)) = (finish, self.first) else { return };
        let metrics = &self.metrics;
        _ = if finish == Finish::Stop { &metrics.stopped } else { &metrics.cut }.increment(1.0);
        metrics.request.observe(self.operation, self.begun.elapsed());
        if !self.streams {
            return;
        }
        metrics.first_token.observe(self.operation, first - self.begun);
        let further = u32::try_from(output_tokens.saturating_sub(1)).ok();
        if let Some(further) = further.filter(|further| *further > 0) {
            metrics.per_token.observe(self.operation, first.elapsed() / further);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests are small")]
fn number(count: u64) -> f64 {
    count as f64
}

//! Metrics of language models that report none themselves, by the names that gateways and dashboards know: vLLM's, and OpenTelemetry's
//! conventions for generative models. Only requests of this interface count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nereid_core::Model;
use nereid_core::backend_api::MetricRegistry;
use nereid_core::backend_api::language_metrics::{CommonMetrics, Completed, ModelMetrics};
use quick_cache::sync::Cache;

use crate::contract::Finish;

pub(crate) use nereid_core::backend_api::language_metrics::Operation;

/// The value of the label `engine`, which is an instance where a backend measures.
const ENGINE: &str = "openai";

/// The backends whose models have these metrics from their instances.
const MEASURED: [&str; 1] = ["llamacpp"];

/// Models whose metrics are kept at once.
const CAPACITY: usize = 1024;

/// The metrics of models by their names. They outlive reloads.
pub(crate) struct LanguageMetrics {
    registry: MetricRegistry,
    models: Cache<String, Arc<Measurements>>,
}

/// The metrics of one model.
struct Measurements {
    in_progress: AtomicUsize,
    common: CommonMetrics,
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
            let metrics = ModelMetrics { registry: &self.registry, model: model.name(), engine: ENGINE };
            let common = metrics.common(&[Operation::Chat, Operation::TextCompletion]).ok()?;
            let metrics = Arc::new(Measurements { in_progress: AtomicUsize::new(0), common });
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

/// Measures one request, until it is dropped.
pub(crate) struct Measured {
    metrics: Arc<Measurements>,
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
        _ = self.metrics.common.waiting.set(number(waiting));
        _ = self.metrics.common.running.set(number(count - waiting));
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.metrics.in_progress.fetch_sub(1, Ordering::Relaxed);
        self.show_load();
        let Some(Outcome { prompt_tokens, output_tokens, finish }) = self.outcome else { return };
        let common = &self.metrics.common;
        common.add_prompt(prompt_tokens);
        common.add_output(output_tokens);
        let (Some(finish), Some(first)) = (finish, self.first) else { return };
        common.add_completed(Completed {
            operation: self.operation,
            is_cut: finish != Finish::Stop,
            tokens: output_tokens,
            first: self.streams.then(|| first - self.begun),
            whole: self.begun.elapsed(),
        });
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests are small")]
fn number(count: usize) -> f64 {
    count as f64
}

//! Metrics of a language model, by the names that gateways and dashboards know: TensorRT-LLM's in Triton, vLLM's, and OpenTelemetry's
//! conventions for generative models.

use std::time::Duration;

use nereid_backend_api::language_metrics::{CommonMetrics, Completed, ModelMetrics, Operation};
use nereid_backend_api::{Metric, MetricKind, MetricRegistry, Result};

use crate::scheduler::{Finish, Load};

/// The metrics of one instance.
pub(crate) struct Metrics {
    common: CommonMetrics,
    /// The requests that are being executed, by TensorRT-LLM's names.
    executing: Vec<Metric>,
    waiting: Metric,
    used: Metric,
    free: Metric,
    fraction: Vec<Metric>,
    /// Values that do not change, kept so that they stay exposed.
    _constant: Vec<Metric>,
    cached_tokens: Metric,
    prefix_queries: Metric,
    preemptions: Metric,
    guesses: Metric,
    guessed_tokens: Metric,
    accepted_tokens: Metric,
    /// The tokens of the cache.
    cache: usize,
    last: Load,
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests are small")]
fn number(count: usize) -> f64 {
    count as f64
}

impl Metrics {
    /// Registers the metrics of an instance. `cache` is its size in tokens, `sequences` the number of requests that it executes together.
    ///
    /// # Errors
    /// A name is in use for another kind of metric.
    pub(crate) fn new(
        registry: &MetricRegistry,
        (model, version): (&str, u64),
        engine: &str,
        cache: usize,
        sequences: usize,
    ) -> Result<Self> {
        let version = version.to_string();
        let own = |kind, name: &str, help: &str, label: &str, value: &str| {
            let labels = [("model", model), ("version", &version), (label, value)];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            registry.family(kind, name, help)?.metric(labels.into(), None)
        };
        let requests = |kind: &str| {
            own(
                MetricKind::Gauge,
                "nv_trt_llm_request_metrics",
                "TRT LLM request metrics",
                "request_type",
                kind,
            )
        };
        let blocks = |kind: &str| {
            let (name, help) = ("nv_trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics");
            own(MetricKind::Gauge, name, help, "kv_cache_block_type", kind)
        };
        let of_vllm = ModelMetrics { registry, model, engine };
        let counter = |name, help| of_vllm.counter(name, help);
        let constant = vec![blocks("max")?, blocks("tokens_per")?, requests("max")?];
        for (metric, value) in constant.iter().zip([number(cache), 1.0, number(sequences)]) {
            metric.set(value)?;
        }
        let mut metrics = Self {
            common: of_vllm.common(&[Operation::TextCompletion])?,
            executing: vec![requests("active")?, requests("scheduled")?],
            waiting: requests("waiting")?,
            used: blocks("used")?,
            free: blocks("free")?,
            fraction: vec![
                of_vllm.gauge(
                    "kv_cache_usage_perc",
                    "The part of the cache that running requests use, from 0 to 1",
                )?,
                blocks("fraction")?,
            ],
            _constant: constant,
            cached_tokens: counter(
                "prefix_cache_hits_total",
                "Tokens of prompts that were found in the cache",
            )?,
            prefix_queries: counter(
                "prefix_cache_queries_total",
                "Tokens of prompts that were looked up in the cache",
            )?,
            preemptions: counter(
                "num_preemptions_total",
                "Pauses of requests for want of room in the cache",
            )?,
            guesses: counter("spec_decode_num_drafts_total", "Guesses of the next tokens of requests")?,
            guessed_tokens: counter("spec_decode_num_draft_tokens_total", "Tokens that were guessed")?,
            accepted_tokens: counter(
                "spec_decode_num_accepted_tokens_total",
                "Guessed tokens that the model chose",
            )?,
            cache,
            last: Load { waiting: usize::MAX, ..Load::default() },
        };
        metrics.set_load(Load::default());
        Ok(metrics)
    }

    /// Sets the current load.
    pub(crate) fn set_load(&mut self, load: Load) {
        if load == self.last {
            return;
        }
        let Load { running, waiting, used, preemptions, guesses } = load;
        let used = used.min(self.cache);
        set(self.executing.iter().chain([&self.common.running]), number(running));
        set([&self.waiting, &self.common.waiting], number(waiting));
        set([&self.used], number(used));
        set([&self.free], number(self.cache - used));
        set(&self.fraction, if self.cache == 0 { 0.0 } else { number(used) / number(self.cache) });
        add(&self.preemptions, preemptions.saturating_sub(self.last.preemptions));
        let last = self.last.guesses;
        add(&self.guesses, guesses.count.saturating_sub(last.count));
        add(&self.guessed_tokens, guesses.tokens.saturating_sub(last.tokens));
        add(&self.accepted_tokens, guesses.accepted.saturating_sub(last.accepted));
        self.last = load;
    }

    /// Counts the tokens of a prompt, and the cached ones among them.
    pub(crate) fn add_prompt(&self, tokens: usize, cached: usize) {
        self.common.add_prompt(tokens as u64);
        add(&self.prefix_queries, tokens);
        add(&self.cached_tokens, cached);
    }

    /// Counts a request that has ended. `first` is the time until its first token.
    pub(crate) fn add_output(&self, tokens: usize, first: Duration, whole: Duration, finish: Finish) {
        let tokens = tokens as u64;
        self.common.add_output(tokens);
        let is_cut = finish != Finish::Stop;
        let operation = Operation::TextCompletion;
        self.common.add_completed(Completed { operation, is_cut, tokens, first: Some(first), whole });
    }
}

fn set<'a>(metrics: impl IntoIterator<Item = &'a Metric>, value: f64) {
    // Gauges accept every value.
    metrics.into_iter().for_each(|metric| _ = metric.set(value));
}

fn add(counter: &Metric, count: usize) {
    // Counters accept everything that is not negative.
    _ = counter.increment(number(count));
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::MetricValue;

    use super::*;
    use crate::scheduler::Guesses;

    /// The value of a series, or the number of its values.
    fn value(registry: &MetricRegistry, name: &str, label: &str) -> f64 {
        let family = registry.snapshot().into_iter().find(|family| family.name == name).unwrap();
        let series =
            family.series.into_iter().find(|(labels, _)| labels.values().any(|value| value == label));
        match series.unwrap().1 {
            MetricValue::Number(value) => value,
            MetricValue::Histogram(value) => value.counts.iter().map(|count| *count as f64).sum(),
        }
    }

    #[test]
    fn load_and_requests_have_the_names_of_gateways() {
        let registry = MetricRegistry::default();
        let mut metrics = Metrics::new(&registry, ("m", 3), "m_0", 200, 8).unwrap();
        let guesses = |count, tokens, accepted| Guesses { count, tokens, accepted };
        let load = |running, waiting, preemptions, guesses| Load {
            running,
            waiting,
            used: 50,
            preemptions,
            guesses,
        };
        metrics.set_load(load(2, 1, 1, guesses(1, 4, 0)));
        metrics.set_load(load(1, 0, 3, guesses(3, 9, 5)));
        metrics.add_prompt(30, 20);
        let time = Duration::from_millis;
        metrics.add_output(11, time(100), time(600), Finish::Stop);
        metrics.add_output(1, time(100), time(100), Finish::Length);
        for (name, label, expected) in [
            ("nv_trt_llm_request_metrics", "scheduled", 1.0),
            ("nv_trt_llm_request_metrics", "waiting", 0.0),
            ("nv_trt_llm_request_metrics", "max", 8.0),
            ("nv_trt_llm_kv_cache_block_metrics", "used", 50.0),
            ("nv_trt_llm_kv_cache_block_metrics", "free", 150.0),
            ("nv_trt_llm_kv_cache_block_metrics", "max", 200.0),
            ("nv_trt_llm_kv_cache_block_metrics", "tokens_per", 1.0),
            ("nv_trt_llm_kv_cache_block_metrics", "fraction", 0.25),
            ("vllm:num_requests_running", "m", 1.0),
            ("vllm:kv_cache_usage_perc", "m", 0.25),
            ("vllm:num_preemptions_total", "m", 3.0),
            ("vllm:spec_decode_num_drafts_total", "m", 3.0),
            ("vllm:spec_decode_num_draft_tokens_total", "m", 9.0),
            ("vllm:spec_decode_num_accepted_tokens_total", "m", 5.0),
            ("vllm:prompt_tokens_total", "m", 30.0),
            ("vllm:prefix_cache_hits_total", "m", 20.0),
            ("vllm:generation_tokens_total", "m", 12.0),
            ("vllm:request_success_total", "stop", 1.0),
            ("vllm:request_success_total", "length", 1.0),
            ("vllm:time_to_first_token_seconds", "m", 2.0),
            ("vllm:time_per_output_token_seconds", "m", 1.0),
            ("gen_ai_server_request_duration_seconds", "m", 2.0),
        ] {
            assert_eq!(value(&registry, name, label), expected, "{name} {label}");
        }
    }
}

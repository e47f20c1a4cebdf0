//! Metrics of a language model, by the names that gateways and dashboards know: TensorRT-LLM's in Triton, vLLM's, and OpenTelemetry's
//! conventions for generative models.

use std::time::Duration;

use nereid_backend_api::language_metrics::{FIRST_TOKEN_BOUNDS, PER_TOKEN_BOUNDS, REQUEST_BOUNDS};
use nereid_backend_api::{Metric, MetricKind, MetricLabels, MetricRegistry, Result};

use crate::scheduler::{Finish, Load};

/// The metrics of one instance.
pub(crate) struct Metrics {
    running: Vec<Metric>,
    waiting: Vec<Metric>,
    used: Metric,
    free: Metric,
    fraction: Vec<Metric>,
    /// Values that do not change, kept so that they stay exposed.
    _constant: Vec<Metric>,
    prompt_tokens: Metric,
    cached_tokens: Metric,
    prefix_queries: Metric,
    output_tokens: Metric,
    preemptions: Metric,
    guesses: Metric,
    guessed_tokens: Metric,
    accepted_tokens: Metric,
    stopped: Metric,
    cut: Metric,
    first_token: Vec<Metric>,
    per_token: Vec<Metric>,
    request: Vec<Metric>,
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
        let labels = |pairs: &[(&str, &str)]| -> MetricLabels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let version = version.to_string();
        let own = |kind, name: &str, help: &str, label: &str, value: &str| {
            let labels = labels(&[("model", model), ("version", &version), (label, value)]);
            registry.family(kind, name, help)?.metric(labels, None)
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
        let of_vllm = |kind, name: &str, help: &str, bounds: Option<&[f64]>, more: &[(&str, &str)]| {
            let labels = labels(&[&[("model_name", model), ("engine", engine)], more].concat());
            registry.family(kind, &format!("vllm:{name}"), help)?.metric(labels, bounds.map(<[f64]>::to_vec))
        };
        let gauge = |name, help| of_vllm(MetricKind::Gauge, name, help, None, &[]);
        let counter = |name, help| of_vllm(MetricKind::Counter, name, help, None, &[]);
        let ended = |reason| {
            let help = "Requests that ended, by the reason";
            of_vllm(MetricKind::Counter, "request_success_total", help, None, &[("finished_reason", reason)])
        };
        let histograms = |name: &str, general: &str, help: &str, bounds: &[f64]| {
            let labels = labels(&[
                ("gen_ai_operation_name", "text_completion"),
                ("gen_ai_provider_name", "nereid"),
                ("gen_ai_request_model", model),
            ]);
            let family =
                registry.family(MetricKind::Histogram, &format!("gen_ai_server_{general}_seconds"), help)?;
            Ok::<_, nereid_backend_api::Error>(vec![
                of_vllm(MetricKind::Histogram, name, help, Some(bounds), &[])?,
                family.metric(labels, Some(bounds.to_vec()))?,
            ])
        };
        let constant = vec![blocks("max")?, blocks("tokens_per")?, requests("max")?];
        for (metric, value) in constant.iter().zip([number(cache), 1.0, number(sequences)]) {
            metric.set(value)?;
        }
        let mut metrics = Self {
            running: vec![
                gauge("num_requests_running", "Requests that are being executed")?,
                requests("active")?,
                requests("scheduled")?,
            ],
            waiting: vec![
                gauge("num_requests_waiting", "Requests that wait to be executed")?,
                requests("waiting")?,
            ],
            used: blocks("used")?,
            free: blocks("free")?,
            fraction: vec![
                gauge("kv_cache_usage_perc", "The part of the cache that running requests use, from 0 to 1")?,
                blocks("fraction")?,
            ],
            _constant: constant,
            prompt_tokens: counter("prompt_tokens_total", "Tokens of prompts")?,
            cached_tokens: counter(
                "prefix_cache_hits_total",
                "Tokens of prompts that were found in the cache",
            )?,
            prefix_queries: counter(
                "prefix_cache_queries_total",
                "Tokens of prompts that were looked up in the cache",
            )?,
            output_tokens: counter("generation_tokens_total", "Tokens that were generated")?,
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
            stopped: ended("stop")?,
            cut: ended("length")?,
            first_token: histograms(
                "time_to_first_token_seconds",
                "time_to_first_token",
                "Time from the start of a request to its first token",
                FIRST_TOKEN_BOUNDS,
            )?,
            per_token: histograms(
                "time_per_output_token_seconds",
                "time_per_output_token",
                "Time for each token after the first, on average over a request",
                PER_TOKEN_BOUNDS,
            )?,
            request: histograms(
                "e2e_request_latency_seconds",
                "request_duration",
                "Time from the start of a request to its end",
                REQUEST_BOUNDS,
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
        set(&self.running, number(running));
        set(&self.waiting, number(waiting));
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
        add(&self.prompt_tokens, tokens);
        add(&self.prefix_queries, tokens);
        add(&self.cached_tokens, cached);
    }

    /// Counts a request that has ended. `first` is the time until its first token.
    pub(crate) fn add_output(&self, tokens: usize, first: Duration, whole: Duration, finish: Finish) {
        add(&self.output_tokens, tokens);
        add(if finish == Finish::Stop { &self.stopped } else { &self.cut }, 1);
        observe(&self.first_token, first);
        observe(&self.request, whole);
        if let Some(further) = u32::try_from(tokens.saturating_sub(1)).ok().filter(|further| *further > 0) {
            observe(&self.per_token, whole.saturating_sub(first) / further);
        }
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

fn observe(histograms: &[Metric], time: Duration) {
    // Histograms accept every value.
    histograms.iter().for_each(|histogram| _ = histogram.observe(time.as_secs_f64()));
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

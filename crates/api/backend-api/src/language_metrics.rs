//! Metrics of language models, by the names that gateways and dashboards know: vLLM's, and OpenTelemetry's conventions for generative models.

use std::time::Duration;

use crate::{Metric, MetricKind, MetricLabels, MetricRegistry, Result};

/// Buckets of the time to the first token, in seconds, as vLLM has them.
const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
];

/// Buckets of the time for each further token.
const PER_TOKEN_BOUNDS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0];

/// Buckets of the time of a request.
const REQUEST_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0,
];

/// An operation by OpenTelemetry's conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A conversation is answered.
    Chat,
    /// A text is continued.
    TextCompletion,
}

impl Operation {
    /// The value of the label.
    fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::TextCompletion => "text_completion",
        }
    }
}

/// Registers metrics of a model by vLLM's names.
#[derive(Clone, Copy, Debug)]
pub struct ModelMetrics<'a> {
    /// Where they are registered.
    pub registry: &'a MetricRegistry,
    /// The model's name.
    pub model: &'a str,
    /// The value of the label `engine`: what measures, such as an instance.
    pub engine: &'a str,
}

impl ModelMetrics<'_> {
    /// A gauge. vLLM's prefix is put in front of the name.
    ///
    /// # Errors
    /// The name is in use for another kind of metric.
    pub fn gauge(&self, name: &str, help: &str) -> Result<Metric> {
        self.metric(MetricKind::Gauge, name, help, None, &[])
    }

    /// A counter. vLLM's prefix is put in front of the name.
    ///
    /// # Errors
    /// As for [`gauge`](Self::gauge).
    pub fn counter(&self, name: &str, help: &str) -> Result<Metric> {
        self.metric(MetricKind::Counter, name, help, None, &[])
    }

    /// The metrics that every model has, with times by these operations.
    ///
    /// # Errors
    /// As for [`gauge`](Self::gauge).
    pub fn common(&self, operations: &[Operation]) -> Result<CommonMetrics> {
        let ended = |reason| {
            let (name, help) = ("request_success_total", "Requests that ended, by the reason");
            self.metric(MetricKind::Counter, name, help, None, &[("finished_reason", reason)])
        };
        Ok(CommonMetrics {
            running: self.gauge("num_requests_running", "Requests that are being executed")?,
            waiting: self.gauge("num_requests_waiting", "Requests that wait to be executed")?,
            prompt_tokens: self.counter("prompt_tokens_total", "Tokens of prompts")?,
            output_tokens: self.counter("generation_tokens_total", "Tokens that were generated")?,
            stopped: ended("stop")?,
            cut: ended("length")?,
            first_token: self.times(
                "time_to_first_token_seconds",
                "time_to_first_token",
                "Time from the start of a request to its first token",
                FIRST_TOKEN_BOUNDS,
                operations,
            )?,
            per_token: self.times(
                "time_per_output_token_seconds",
                "time_per_output_token",
                "Time for each token after the first, on average over a request",
                PER_TOKEN_BOUNDS,
                operations,
            )?,
            request: self.times(
                "e2e_request_latency_seconds",
                "request_duration",
                "Time from the start of a request to its end",
                REQUEST_BOUNDS,
                operations,
            )?,
        })
    }

    fn metric(
        &self,
        kind: MetricKind,
        name: &str,
        help: &str,
        bounds: Option<&[f64]>,
        more: &[(&str, &str)],
    ) -> Result<Metric> {
        let labels = labels(&[&[("model_name", self.model), ("engine", self.engine)], more].concat());
        let family = self.registry.family(kind, &format!("vllm:{name}"), help)?;
        family.metric(labels, bounds.map(<[f64]>::to_vec))
    }

    /// Histograms by vLLM's name, and by the convention's for each operation.
    fn times(
        &self,
        name: &str,
        general: &str,
        help: &str,
        bounds: &[f64],
        operations: &[Operation],
    ) -> Result<Times> {
        let all = self.metric(MetricKind::Histogram, name, help, Some(bounds), &[])?;
        let general = format!("gen_ai_server_{general}_seconds");
        let by = |operation: &Operation| {
            let labels = labels(&[
                ("gen_ai_operation_name", operation.name()),
                ("gen_ai_provider_name", "nereid"),
                ("gen_ai_request_model", self.model),
            ]);
            let family = self.registry.family(MetricKind::Histogram, &general, help)?;
            Ok((*operation, family.metric(labels, Some(bounds.to_vec()))?))
        };
        Ok(Times { all, by_operation: operations.iter().map(by).collect::<Result<_>>()? })
    }
}

fn labels(pairs: &[(&str, &str)]) -> MetricLabels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The metrics that every language model has.
pub struct CommonMetrics {
    /// The number of requests that are being executed.
    pub running: Metric,
    /// The number of requests that wait.
    pub waiting: Metric,
    prompt_tokens: Metric,
    output_tokens: Metric,
    stopped: Metric,
    cut: Metric,
    first_token: Times,
    per_token: Times,
    request: Times,
}

/// Histograms of times.
struct Times {
    all: Metric,
    by_operation: Vec<(Operation, Metric)>,
}

/// A request whose output is complete.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// The kind of request.
    pub operation: Operation,
    /// Whether the output ended because it was long enough.
    pub is_cut: bool,
    /// The number of its tokens.
    pub tokens: u64,
    /// The time until its first token, if that is known.
    pub first: Option<Duration>,
    /// The time until its end.
    pub whole: Duration,
}

impl CommonMetrics {
    /// Counts tokens of a prompt.
    pub fn add_prompt(&self, tokens: u64) {
        add(&self.prompt_tokens, tokens);
    }

    /// Counts tokens of an output.
    pub fn add_output(&self, tokens: u64) {
        add(&self.output_tokens, tokens);
    }

    /// Counts a request whose output is complete, but not its tokens.
    pub fn add_completed(&self, completed: Completed) {
        let Completed { operation, is_cut, tokens, first, whole } = completed;
        add(if is_cut { &self.cut } else { &self.stopped }, 1);
        self.request.observe(operation, whole);
        let Some(first) = first else { return };
        self.first_token.observe(operation, first);
        let further = u32::try_from(tokens.saturating_sub(1)).ok();
        if let Some(further) = further.filter(|further| *further > 0) {
            self.per_token.observe(operation, whole.saturating_sub(first) / further);
        }
    }
}

impl Times {
    fn observe(&self, operation: Operation, time: Duration) {
        let by_operation = self.by_operation.iter().filter(|(known, _)| *known == operation);
        for histogram in by_operation.map(|(_, metric)| metric).chain([&self.all]) {
            // Histograms accept every value.
            _ = histogram.observe(time.as_secs_f64());
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests are small")]
fn add(counter: &Metric, count: u64) {
    // Counters accept everything that is not negative.
    _ = counter.increment(count as f64);
}

//! The latency objective of a model: a parameter of its configuration, checked by [`validate`](crate::validate).

use std::time::Duration;

use crate::proto::ModelConfig;

/// Parameter with the time in microseconds within which 99 of 100 requests should be answered, from their arrival in the queue.
pub const LATENCY_OBJECTIVE: &str = "latency_objective_microseconds";

/// The longest objective, in microseconds: an hour.
pub(crate) const MAX_OBJECTIVE: u64 = 3_600_000_000;

/// The parameter's text, if the configuration has it.
pub(crate) fn objective_text(config: &ModelConfig) -> Option<&str> {
    config.parameters.get(LATENCY_OBJECTIVE).map(|parameter| parameter.string_value.trim())
}

/// The objective of a valid configuration, if it has one.
pub fn latency_objective(config: &ModelConfig) -> Option<Duration> {
    let micros = objective_text(config)?.parse().ok()?;
    (1..=MAX_OBJECTIVE).contains(&micros).then(|| Duration::from_micros(micros))
}

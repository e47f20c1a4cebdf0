//! The rules for the latency objective, by which the dynamic batcher chooses sizes and delays itself.

use super::Stage;
use super::report::Report;
use crate::objective::{LATENCY_OBJECTIVE, MAX_OBJECTIVE, objective_text};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;

pub(super) fn check(config: &ModelConfig, stage: Stage, report: &mut Report) {
    let Some(text) = objective_text(config) else { return };
    let field = format!("parameters[{LATENCY_OBJECTIVE:?}]");
    if text.parse::<u64>().ok().is_none_or(|micros| micros == 0 || micros > MAX_OBJECTIVE) {
        let reason = format!(
            "is '{text}', but must be a whole number of microseconds from 1 to {MAX_OBJECTIVE} (an hour)"
        );
        report.add(field, reason);
        return;
    }
    match &config.scheduling_choice {
        // Without sizes of its own, a configuration prefers the greatest batch.
        Some(SchedulingChoice::DynamicBatching(batching))
            if batching.preferred_batch_size.iter().any(|&size| size != config.max_batch_size) =>
        {
            let reason = format!(
                "must be omitted beside the parameter '{LATENCY_OBJECTIVE}', by which the batcher chooses sizes up to \
                 max_batch_size"
            );
            report.add("dynamic_batching.preferred_batch_size", reason);
        }
        Some(SchedulingChoice::DynamicBatching(_)) => {}
        Some(SchedulingChoice::SequenceBatching(_)) => {
            report.add(field, "is not supported with sequence_batching, only with dynamic_batching");
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) => {
            report.add(field, "is not supported for ensembles; set it for their members");
        }
        // A backend may add dynamic batching and the batch size when it completes the configuration.
        None if stage == Stage::Final => report.add(field, "needs dynamic_batching"),
        None => {}
    }
    if stage == Stage::Final && config.max_batch_size < 2 {
        let reason = format!(
            "is {}, but must be at least 2 with the parameter '{LATENCY_OBJECTIVE}'",
            config.max_batch_size
        );
        report.add("max_batch_size", reason);
    }
}

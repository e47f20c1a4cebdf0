//! The rules for the batchers' settings.

use super::report::Report;
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_sequence_batching::StrategyChoice;

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            check_sizes(config, "dynamic_batching", &batching.preferred_batch_size, report);
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if let Some(StrategyChoice::Oldest(oldest)) = &batching.strategy_choice {
                check_sizes(config, "sequence_batching.oldest", &oldest.preferred_batch_size, report);
            }
        }
        _ => {}
    }
}

/// Preferred batch sizes lie within what the model can take.
fn check_sizes(config: &ModelConfig, path: &str, sizes: &[i32], report: &mut Report) {
    for (index, &size) in sizes.iter().enumerate() {
        let field = format!("{path}.preferred_batch_size[{index}]");
        if size < 1 {
            report.add(field, format!("{size} is not a batch size, must be at least 1"));
        } else if size > config.max_batch_size {
            report.add(
                field,
                format!("{size} is more than max_batch_size, which is {}", config.max_batch_size),
            );
        }
    }
}

//! The rules for the dynamic batcher's settings.

use super::report::Report;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

pub(super) fn check(config: &ModelConfig, batching: &ModelDynamicBatching, report: &mut Report) {
    check_sizes(config, "dynamic_batching", &batching.preferred_batch_size, report);
    let levels = batching.priority_levels;
    if levels > 0 {
        let default = batching.default_priority_level;
        if default == 0 || default > levels {
            let reason = format!("is {default}, but must be between 1 and priority_levels ({levels})");
            report.add("dynamic_batching.default_priority_level", reason);
        }
        for &level in batching.priority_queue_policy.keys().filter(|&&level| level == 0 || level > levels) {
            let reason =
                format!("level {level} does not exist: must be between 1 and priority_levels ({levels})");
            report.add(format!("dynamic_batching.priority_queue_policy[{level}]"), reason);
        }
    }
    if batching.preserve_ordering {
        check_order(batching, report);
    }
}

/// Checks that preserved ordering is not contradicted by priorities or delays.
fn check_order(batching: &ModelDynamicBatching, report: &mut Report) {
    if batching.priority_levels > 1 {
        let reason = "must be at most 1 if preserve_ordering is true: levels would change the order";
        report.add("dynamic_batching.priority_levels", reason);
    }
    let delays = |policy: &ModelQueuePolicy| {
        policy.timeout_action == TimeoutAction::Delay as i32 && policy.default_timeout_microseconds > 0
    };
    let reason = "must be REJECT if preserve_ordering is true: a delay would change the order";
    if batching.default_queue_policy.as_ref().is_some_and(delays) {
        report.add("dynamic_batching.default_queue_policy.timeout_action", reason);
    }
    for (level, _) in batching.priority_queue_policy.iter().filter(|(_, policy)| delays(policy)) {
        report.add(format!("dynamic_batching.priority_queue_policy[{level}].timeout_action"), reason);
    }
}

/// Checks that preferred batch sizes are at most the model's maximum.
pub(super) fn check_sizes(config: &ModelConfig, path: &str, sizes: &[i32], report: &mut Report) {
    for (index, &size) in sizes.iter().enumerate() {
        let field = format!("{path}.preferred_batch_size[{index}]");
        if size < 1 {
            report.add(field, format!("{size} is not a batch size, must be at least 1"));
        } else if size > config.max_batch_size {
            report.add(field, format!("{size} exceeds max_batch_size ({})", config.max_batch_size));
        }
    }
}

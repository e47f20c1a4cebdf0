//! The rules for the sequence batcher: its strategy, and the controls that mark a model's position in a sequence.

use std::collections::{HashMap, HashSet};

use super::report::Report;
use super::{batching, state};
use crate::proto::model_sequence_batching::control::Kind;
use crate::proto::model_sequence_batching::{Control, StrategyChoice};
use crate::proto::{DataType, ModelConfig, ModelSequenceBatching};
use crate::shorten::shorten;

/// The parameter that names a batching library of the dynamic batcher.
const STRATEGY_LIBRARY: &str = "TRITON_BATCH_STRATEGY_PATH";

const CORRELATION_TYPES: [DataType; 5] = [
    DataType::TypeUint64,
    DataType::TypeInt64,
    DataType::TypeUint32,
    DataType::TypeInt32,
    DataType::TypeString,
];

pub(super) fn check(config: &ModelConfig, batching: &ModelSequenceBatching, report: &mut Report) {
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            let path = "sequence_batching.oldest";
            batching::check_sizes(config, path, &oldest.preferred_batch_size, report);
        }
        Some(StrategyChoice::Direct(direct)) => {
            let share = direct.minimum_slot_utilization;
            if !(0.0..=1.0).contains(&share) {
                let field = "sequence_batching.direct.minimum_slot_utilization";
                report.add(field, format!("is {share}, must be between 0 and 1"));
            }
        }
        None => {}
    }
    check_controls(batching, report);
    state::check(batching, report);
    if config.response_cache.is_some_and(|cache| cache.enable) {
        let reason = "the answers of a sequence depend on its state and are not cached; must be false";
        report.add("response_cache.enable", reason);
    }
    if config.parameters.contains_key(STRATEGY_LIBRARY) {
        let reason = "belongs to dynamic batching; must be omitted if sequence_batching is set";
        report.add(format!("parameters[{STRATEGY_LIBRARY:?}]"), reason);
    }
}

fn check_controls(batching: &ModelSequenceBatching, report: &mut Report) {
    let mut names = HashSet::new();
    let mut kinds = HashMap::new();
    for (index, input) in batching.control_input.iter().enumerate() {
        let path = format!("sequence_batching.control_input[{index}]");
        if input.name.is_empty() {
            report.add(format!("{path}.name"), "is required");
        } else if !names.insert(input.name.as_str()) {
            let reason = format!("'{}' is set twice; put all its controls into one", input.name);
            report.add(format!("{path}.name"), reason);
        }
        for (position, control) in input.control.iter().enumerate() {
            let path = format!("{path}.control[{position}]");
            let Ok(kind) = Kind::try_from(control.kind) else { continue };
            if let Some(first) = kinds.insert(kind, input.name.as_str()) {
                let first = shorten(first, 60);
                let reason = format!("{} is set twice, first to '{first}'", kind.as_str_name());
                report.add(format!("{path}.kind"), reason);
            }
            match kind {
                Kind::ControlSequenceCorrid => check_correlation_id(&path, control, report),
                Kind::ControlSequenceStart | Kind::ControlSequenceReady | Kind::ControlSequenceEnd => {
                    check_boolean(&path, kind, control, report);
                }
            }
        }
    }
}

/// The lists of a control's values for false and true, with their names and lengths.
fn values(control: &Control) -> [(&'static str, usize); 3] {
    [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ]
}

fn check_boolean(path: &str, kind: Kind, control: &Control, report: &mut Report) {
    let given: Vec<_> = values(control).into_iter().filter(|&(_, length)| length > 0).collect();
    match given[..] {
        [] => {
            let reason = format!(
                "{} needs one of int32_false_true, fp32_false_true and bool_false_true",
                kind.as_str_name()
            );
            report.add(path, reason);
        }
        [(name, length)] => {
            if length != 2 {
                let reason = format!("has {length} values, must have 2: one for false, one for true");
                report.add(format!("{path}.{name}"), reason);
            }
        }
        [(first, _), ..] => {
            for (name, _) in &given[1..] {
                report.add(format!("{path}.{name}"), format!("conflicts with {first}: set only one"));
            }
        }
    }
}

fn check_correlation_id(path: &str, control: &Control, report: &mut Report) {
    for (name, _) in values(control).into_iter().filter(|&(_, length)| length > 0) {
        let reason = "must be empty for CONTROL_SEQUENCE_CORRID, which is not a boolean";
        report.add(format!("{path}.{name}"), reason);
    }
    let right = DataType::try_from(control.data_type).is_ok_and(|given| CORRELATION_TYPES.contains(&given));
    if !right {
        let names = CORRELATION_TYPES.map(|data_type| data_type.as_str_name()).join(", ");
        report
            .add(format!("{path}.data_type"), format!("must be one of {names} for CONTROL_SEQUENCE_CORRID"));
    }
}

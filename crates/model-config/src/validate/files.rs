//! The rules for names of files: none leads out of the model's folder. Whether the files are there is not checked.

use std::path::{Component, Path};

use super::report::Report;
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_sequence_batching::initial_state::StateData;
use crate::proto::model_warmup::input::InputDataType;

/// Whether a path names something below the folder that it is joined to: it is relative, without `..`, and not empty.
pub fn stays_in_folder(path: &Path) -> bool {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
    path.components().any(|part| is_name(&part))
        && path.components().all(|part| is_name(&part) || part == Component::CurDir)
}

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    check_name("default_model_filename", &config.default_model_filename, report);
    let mut by_capability: Vec<_> = config.cc_model_filenames.iter().collect();
    by_capability.sort();
    for (capability, name) in by_capability {
        check_name(&format!("cc_model_filenames[{capability:?}]"), name, report);
    }
    for (index, output) in config.output.iter().enumerate() {
        // A slash at its beginning is the folder's, as in the reference.
        let name = output.label_filename.trim_start_matches('/');
        check_name(&format!("output[{index}].label_filename"), name, report);
    }
    for (index, warmup) in config.model_warmup.iter().enumerate() {
        let mut inputs: Vec<_> = warmup.inputs.iter().collect();
        inputs.sort_by_key(|(name, _)| *name);
        for (name, input) in inputs {
            if let Some(InputDataType::InputDataFile(file)) = &input.input_data_type {
                check_name(&format!("model_warmup[{index}].inputs[{name:?}].input_data_file"), file, report);
            }
        }
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice {
        for (index, state) in batching.state.iter().enumerate() {
            for (initial, value) in state.initial_state.iter().enumerate() {
                if let Some(StateData::DataFile(file)) = &value.state_data {
                    let field =
                        format!("sequence_batching.state[{index}].initial_state[{initial}].data_file");
                    check_name(&field, file, report);
                }
            }
        }
    }
}

fn check_name(field: &str, name: &str, report: &mut Report) {
    if !name.is_empty() && !stays_in_folder(Path::new(name)) {
        report.add(
            field,
            format!("'{name}' must stay within the model's folder: a relative path without '..'"),
        );
    }
}

//! Data files that a configuration names: warm-up inputs and initial states.

use std::path::{Path, PathBuf};

use nereid_model_config::ModelConfig;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_sequence_batching::initial_state::StateData;
use nereid_model_config::proto::model_warmup::input::InputDataType;

/// The folders they are in, beside the versions, as in the reference.
pub(crate) const WARMUP: &str = "warmup";
pub(crate) const INITIAL_STATE: &str = "initial_state";

/// A file that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataFile {
    /// The path of the field that names it.
    pub field: String,
    /// The file, relative to the model's folder.
    pub path: PathBuf,
}

/// All of them, by field. A warm-up of no request reads none.
pub fn data_files(config: &ModelConfig) -> Vec<DataFile> {
    let mut files = Vec::new();
    let warmups = config.model_warmup.iter().enumerate().filter(|(_, warmup)| warmup.batch_size > 0);
    for (index, warmup) in warmups {
        for (name, input) in &warmup.inputs {
            if let Some(InputDataType::InputDataFile(file)) = &input.input_data_type {
                let field = format!("model_warmup[{index}].inputs[{name:?}].input_data_file");
                files.push(DataFile { field, path: Path::new(WARMUP).join(file) });
            }
        }
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice {
        for (index, state) in batching.state.iter().enumerate() {
            for (initial, value) in state.initial_state.iter().enumerate() {
                if let Some(StateData::DataFile(file)) = &value.state_data {
                    let field =
                        format!("sequence_batching.state[{index}].initial_state[{initial}].data_file");
                    files.push(DataFile { field, path: Path::new(INITIAL_STATE).join(file) });
                }
            }
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_warmups_and_states_stand_in_their_folders() {
        let config = nereid_model_config::parse_text(
            r#"model_warmup { batch_size: 1 inputs { key: "B" value { input_data_file: "b" } }
                 inputs { key: "A" value { input_data_file: "a" } } inputs { key: "C" value { zero_data: true } } }
               model_warmup { inputs { key: "D" value { input_data_file: "of no request" } } }
               sequence_batching { state { initial_state { zero_data: true } initial_state { data_file: "s" } } }"#,
        );
        let files = data_files(&config.unwrap());
        let files: Vec<_> = files.iter().map(|file| (&*file.field, file.path.to_str().unwrap())).collect();
        assert_eq!(
            files,
            [
                (r#"model_warmup[0].inputs["A"].input_data_file"#, "warmup/a"),
                (r#"model_warmup[0].inputs["B"].input_data_file"#, "warmup/b"),
                ("sequence_batching.state[0].initial_state[1].data_file", "initial_state/s"),
            ]
        );
    }
}

//! Data files named in a configuration: warm-up inputs and initial states.

use std::path::{Path, PathBuf};

use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_sequence_batching::initial_state::StateData;
use crate::proto::model_warmup::input::InputDataType;

/// The purpose of a data file. Each kind has its own folder next to the version folders, as in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataFileKind {
    /// The initial value of a sequence's state.
    InitialState,
    /// An input of a warm-up request.
    WarmUp,
}

impl DataFileKind {
    /// The folder, relative to the model's.
    pub fn folder(self) -> &'static str {
        match self {
            Self::InitialState => "initial_state",
            Self::WarmUp => "warmup",
        }
    }
}

/// A file named in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataFile {
    /// The path of the field with the name.
    pub field: String,
    /// The purpose of the file.
    pub kind: DataFileKind,
    /// The name as written, relative to the folder of its kind.
    pub name: String,
    /// Whether the file is read. A warm-up without requests reads none.
    pub used: bool,
}

impl DataFile {
    /// The file, relative to the model's folder.
    pub fn path(&self) -> PathBuf {
        Path::new(self.kind.folder()).join(&self.name)
    }
}

/// All data files named in a configuration, in the order of their fields.
pub fn data_files(config: &ModelConfig) -> Vec<DataFile> {
    let mut files = Vec::new();
    for (index, warmup) in config.model_warmup.iter().enumerate() {
        for (name, input) in &warmup.inputs {
            if let Some(InputDataType::InputDataFile(file)) = &input.input_data_type {
                files.push(DataFile {
                    field: format!("model_warmup[{index}].inputs[{name:?}].input_data_file"),
                    kind: DataFileKind::WarmUp,
                    name: file.clone(),
                    used: warmup.batch_size > 0,
                });
            }
        }
    }
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice {
        for (index, state) in batching.state.iter().enumerate() {
            for (initial, value) in state.initial_state.iter().enumerate() {
                if let Some(StateData::DataFile(file)) = &value.state_data {
                    files.push(DataFile {
                        field: format!("sequence_batching.state[{index}].initial_state[{initial}].data_file"),
                        kind: DataFileKind::InitialState,
                        name: file.clone(),
                        used: true,
                    });
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
    fn warmup_and_state_files_are_found_in_their_folders() {
        let config = crate::parse_text(
            r#"model_warmup { batch_size: 1 inputs { key: "B" value { input_data_file: "b" } }
                 inputs { key: "A" value { input_data_file: "a" } } inputs { key: "C" value { zero_data: true } } }
               model_warmup { inputs { key: "D" value { input_data_file: "of no request" } } }
               sequence_batching { state { initial_state { zero_data: true } initial_state { data_file: "s" } } }"#,
        );
        let files = data_files(&config.unwrap());
        let files: Vec<_> = files
            .iter()
            .map(|file| (&*file.field, file.path().to_str().unwrap().to_owned(), file.used))
            .collect();
        assert_eq!(
            files,
            [
                (r#"model_warmup[0].inputs["A"].input_data_file"#, "warmup/a".to_owned(), true),
                (r#"model_warmup[0].inputs["B"].input_data_file"#, "warmup/b".to_owned(), true),
                (r#"model_warmup[1].inputs["D"].input_data_file"#, "warmup/of no request".to_owned(), false),
                ("sequence_batching.state[0].initial_state[1].data_file", "initial_state/s".to_owned(), true),
            ]
        );
    }
}

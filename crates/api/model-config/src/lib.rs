//! The model configuration: its schema, its text format (`config.pbtxt`), its completion, and its rules.
//!
//! Pure data. This crate opens no file and knows no backend library, no device and no server: callers pass text,
//! versions and tensors, and receive values and errors.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod backend;
mod complete;
mod data_files;
mod data_type;
mod ensemble_rules;
mod foreign_formats;
mod json;
mod normalise;
mod objective;
mod parameters;
pub mod proto;
mod shorten;
mod text;
mod validate;
mod version;

pub use backend::{ENSEMBLE_PLATFORM, backend_name, default_model_filename, platform_name};
pub use complete::{
    CompletionError, FolderEntry, ModelTensor, ModelTensors, adopt_completed, adopt_parameters,
    complete_backend, complete_tensors, hint_at_backend, model_file_names, scheduler_name,
};
pub use data_files::{DataFile, DataFileKind, data_files};
pub use ensemble_rules::{Constant, EnsembleRules, Filler, InvalidParameter, StepInput, StepRules};
pub use foreign_formats::hint_at_other_format;
pub use json::{JsonError, from_json, to_json};
pub use normalise::{ModelGpus, normalise, normalise_for, prefer_groups};
pub use objective::{LATENCY_OBJECTIVE, latency_objective};
pub use parameters::{ParameterError, ParameterReader, ParameterSet};
pub use proto::ModelConfig;
pub use tensor_types::DataType;
pub use text::{
    ParseError, Place, Places, Reading, TextProblem, nearest_name, parse_text, read_text, to_text,
};
pub use validate::{
    EnsembleConstants, Stage, ValidationError, ValidationErrors, ensemble_constants, stays_in_folder,
    validate, validate_ensemble,
};
pub use version::{ServedVersions, served_versions};

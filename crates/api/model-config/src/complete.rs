//! Completes a configuration from a model's files, as Triton does.
//!
//! Opens no file: callers pass file names and the model's tensors. Values that follow from the configuration alone
//! are left to [`normalise`](crate::normalise).

use crate::DataType;
use crate::foreign_formats;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelOutput, ModelSequenceBatching, ModelTensorReshape,
    ModelTransactionPolicy,
};

/// A dimension of any size.
const ANY_SIZE: i64 = -1;

/// The only backend that needs a platform even if the configuration names the backend.
const TENSORFLOW: &str = "tensorflow";

/// The backend of forests of trees.
const FOREST: &str = "fil";

/// Configuration of a language model, beside its weights in the layout of Hugging Face's hub.
const TRANSFORMERS: &str = "config.json";

/// Endings of many formats.
const GENERIC_ENDINGS: [&str; 4] = ["json", "model", "safetensors", "txt"];

/// Files in a version's folder that identify the backend, most significant first.
const MODEL_FILES: &[ModelFile] = &[
    ModelFile::file("model.graphdef", TENSORFLOW, "tensorflow_graphdef"),
    ModelFile {
        form: Form::Folder,
        ..ModelFile::file("model.savedmodel", TENSORFLOW, "tensorflow_savedmodel")
    },
    ModelFile::file("model.plan", "tensorrt", "tensorrt_plan"),
    ModelFile { form: Form::Either, ..ModelFile::file("model.onnx", "onnxruntime", "onnxruntime_onnx") },
    ModelFile { form: Form::Either, ..ModelFile::file("model.xml", "openvino", "") },
    ModelFile::file("model.pt", "pytorch", "pytorch_libtorch"),
    ModelFile::file("model.pt2", "pytorch", "torch_aoti"),
    ModelFile::file("model.netdef", "caffe2", "caffe2_netdef"),
    ModelFile::file("model.gguf", "llamacpp", "gguf"),
    ModelFile::file("xgboost.json", FOREST, ""),
    ModelFile::file("xgboost.ubj", FOREST, ""),
    ModelFile::file("xgboost.model", FOREST, ""),
    ModelFile::file("lightgbm.txt", FOREST, ""),
    ModelFile::file("checkpoint.tl", FOREST, ""),
    ModelFile { form: Form::Either, ..ModelFile::file("model.py", "python", "") },
    ModelFile { beside: TRANSFORMERS, ..ModelFile::file("model.safetensors", "transformers", "") },
    ModelFile { beside: TRANSFORMERS, ..ModelFile::file("model.safetensors.index.json", "transformers", "") },
];

struct ModelFile {
    name: &'static str,
    form: Form,
    backend: &'static str,
    /// Empty if the backend has no platforms.
    platform: &'static str,
    /// Another file that must be in the same folder; empty for none.
    beside: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    File,
    Folder,
    Either,
}

impl ModelFile {
    const fn file(name: &'static str, backend: &'static str, platform: &'static str) -> Self {
        Self { name, form: Form::File, backend, platform, beside: "" }
    }

    fn is_in(&self, entries: &[FolderEntry]) -> bool {
        let fits = |entry: &FolderEntry| match self.form {
            Form::File => !entry.is_folder,
            Form::Folder => entry.is_folder,
            Form::Either => true,
        };
        let has_other = self.beside.is_empty() || entries.iter().any(|entry| entry.name == self.beside);
        has_other && entries.iter().any(|entry| fits(entry) && entry.name == self.name)
    }

    /// Whether an entry has the file's extension but another name.
    fn is_like(&self, entry: &FolderEntry) -> bool {
        let ending = |name: &str| name.rsplit_once('.').map(|(_, ending)| ending.to_owned());
        let own = ending(self.name).filter(|own| !GENERIC_ENDINGS.contains(&own.as_str()));
        entry.is_folder == (self.form == Form::Folder) && own.is_some() && ending(&entry.name) == own
    }

    /// The setting that replaces the file's name.
    fn setting(&self) -> String {
        match self.platform {
            "" => format!("backend: \"{}\"", self.backend),
            platform => format!("platform: \"{platform}\""),
        }
    }
}

/// An entry of a version's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// The entry's name.
    pub name: String,
    /// Whether the entry is a folder.
    pub is_folder: bool,
}

/// One input or output, as the model's file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTensor {
    /// The tensor's name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// All dimensions, including a batch dimension; -1 for any size. `None` if the file does not declare the rank.
    pub dims: Option<Vec<i64>>,
}

/// The inputs and outputs declared by a model's file. Constants in the file are not inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTensors {
    /// The inputs, in the order of the configuration.
    pub inputs: Vec<ModelTensor>,
    /// The outputs, in the order of the configuration.
    pub outputs: Vec<ModelTensor>,
}

/// The reason why a configuration cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The configuration enables batching, which the model does not support.
    #[error(
        "max_batch_size is {max_batch_size}, but {tensor} of the model has the dimensions {dims:?}: the first \
         dimension of all inputs and outputs must be variable, or max_batch_size 0"
    )]
    NotBatching {
        /// The configured `max_batch_size`.
        max_batch_size: i32,
        /// The first tensor that does not support batching, such as `input 'X'`.
        tensor: String,
        /// The tensor's dimensions.
        dims: Vec<i64>,
    },
    /// The file does not declare the rank of a missing tensor.
    #[error("the model does not declare the rank of {tensor}: list all {role}s in the configuration")]
    UnknownDimensions {
        /// The tensor, such as `output 'Y'`.
        tensor: String,
        /// `input` or `output`.
        role: &'static str,
    },
    /// A backend replaced the configured scheduler.
    #[error("the configuration chooses {configured}, but its backend completes it with {completed}")]
    AnotherScheduler {
        /// The field of the configured scheduler.
        configured: &'static str,
        /// The field of the completed scheduler.
        completed: &'static str,
    },
}

/// Completes the backend of a configuration without backend, platform and file from the contents of the version
/// folders, in the order of the versions: the first recognizable one wins. Runs before
/// [`normalise`](crate::normalise), which falls back to the model's name.
pub fn complete_backend(config: &mut ModelConfig, versions: impl IntoIterator<Item = Vec<FolderEntry>>) {
    let open = config.backend.is_empty() || config.backend == TENSORFLOW;
    if !open || !config.platform.is_empty() || !config.default_model_filename.is_empty() {
        return;
    }
    let may_be = |file: &&ModelFile| config.backend.is_empty() || file.backend == config.backend;
    let matching =
        |entries: Vec<FolderEntry>| MODEL_FILES.iter().filter(may_be).find(|file| file.is_in(&entries));
    if let Some(file) = versions.into_iter().find_map(matching) {
        file.backend.clone_into(&mut config.backend);
        file.platform.clone_into(&mut config.platform);
    }
}

/// Files and folders by which [`complete_backend`] recognizes a backend, for messages.
pub fn model_file_names() -> impl Iterator<Item = &'static str> {
    MODEL_FILES.iter().map(|file| file.name)
}

/// A hint for the user if [`complete_backend`] found nothing: the only file that could be the model's but has another
/// name, or is outside the version folders; or how to serve a file of another format; otherwise the known names.
/// `versions` has the contents of the version folders.
pub fn hint_at_backend(
    versions: impl IntoIterator<Item = (i64, Vec<FolderEntry>)>,
    beside: &[FolderEntry],
) -> String {
    // The only entry that could be a model's file, with the file that it resembles.
    let only = |entries: &[FolderEntry]| {
        let mut like = entries.iter().filter_map(|entry| {
            MODEL_FILES.iter().find(|file| file.is_like(entry)).map(|file| (entry.name.clone(), file))
        });
        like.next().filter(|_| like.next().is_none())
    };
    let versions: Vec<_> = versions.into_iter().collect();
    if let Some((version, (name, file))) =
        versions.iter().find_map(|(version, entries)| Some((version, only(entries)?)))
    {
        let (known, setting) = (file.name, file.setting());
        return format!(
            "; the folder of version {version} has '{name}': rename it to '{known}', or set {setting} and \
             default_model_filename: \"{name}\""
        );
    }
    if let Some((name, file)) = only(beside) {
        let version = versions.first().map_or(1, |(version, _)| *version);
        return format!("; '{name}' must be in the folder of a version, as '{version}/{}'", file.name);
    }
    let advice = |entries: &[FolderEntry]| {
        let (name, advice) = foreign_formats::advice(entries.iter().map(|entry| entry.name.as_str()))?;
        Some((name.to_owned(), advice))
    };
    if let Some((version, (name, advice))) =
        versions.iter().find_map(|(version, entries)| Some((version, advice(entries)?)))
    {
        return format!("; the folder of version {version} has '{name}', {advice}");
    }
    if let Some((name, advice)) = advice(beside) {
        return format!("; '{name}' is {advice}");
    }
    let files: Vec<_> = model_file_names().collect();
    format!("; no version folder contains a file that implies one ({})", files.join(", "))
}

/// Completes inputs, outputs, `max_batch_size` and the scheduler from a model's tensors, like the reference's ONNX
/// Runtime backend.
///
/// Configured inputs or outputs are kept; if both are configured, so is everything else. A model whose inputs and
/// outputs all begin with a variable dimension supports batching: with `default_max_batch_size` if the configuration
/// sets none (0 or less: no batching), and with the dynamic batcher if batches may exceed one item and no scheduler
/// is chosen.
///
/// # Errors
/// The configuration enables batching, which the model does not support, or the model does not declare a missing
/// tensor.
pub fn complete_tensors(
    config: &mut ModelConfig,
    model: &ModelTensors,
    default_max_batch_size: i32,
) -> Result<(), CompletionError> {
    let has_inputs = !config.input.is_empty() || !config.batch_input.is_empty();
    let has_outputs = !config.output.is_empty();
    if has_inputs && has_outputs {
        return Ok(());
    }
    complete_batching(config, model, default_max_batch_size)?;
    let batching = config.max_batch_size > 0;
    let given = BatcherTensors::by(config);
    if !has_inputs {
        let missing = model.inputs.iter().filter(|tensor| !given.inputs.contains(&tensor.name));
        config.input = missing
            .map(|tensor| {
                let (dims, reshape) = shape("input", tensor, batching)?;
                let data_type = i32::from(tensor.data_type.number());
                Ok(ModelInput {
                    name: tensor.name.clone(),
                    data_type,
                    dims,
                    reshape,
                    ..ModelInput::default()
                })
            })
            .collect::<Result<_, _>>()?;
    }
    if !has_outputs {
        let missing = model.outputs.iter().filter(|tensor| !given.outputs.contains(&tensor.name));
        config.output = missing
            .map(|tensor| {
                let (dims, reshape) = shape("output", tensor, batching)?;
                let data_type = i32::from(tensor.data_type.number());
                Ok(ModelOutput {
                    name: tensor.name.clone(),
                    data_type,
                    dims,
                    reshape,
                    ..ModelOutput::default()
                })
            })
            .collect::<Result<_, _>>()?;
    }
    Ok(())
}

fn complete_batching(
    config: &mut ModelConfig,
    model: &ModelTensors,
    default_max_batch_size: i32,
) -> Result<(), CompletionError> {
    let inputs = model.inputs.iter().map(|tensor| ("input", tensor));
    let outputs = model.outputs.iter().map(|tensor| ("output", tensor));
    let goes_in_batches =
        |tensor: &ModelTensor| tensor.dims.as_ref().is_some_and(|dims| dims.first() == Some(&ANY_SIZE));
    if let Some((role, tensor)) = inputs.chain(outputs).find(|(_, tensor)| !goes_in_batches(tensor)) {
        return match config.max_batch_size {
            0 => Ok(()),
            max_batch_size => Err(CompletionError::NotBatching {
                max_batch_size,
                tensor: format!("{role} '{}'", tensor.name),
                dims: tensor.dims.clone().unwrap_or_default(),
            }),
        };
    }
    if config.max_batch_size == 0 {
        config.max_batch_size = default_max_batch_size.max(0);
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    }
    Ok(())
}

/// `dims` and `reshape` of a tensor.
fn shape(
    role: &'static str,
    tensor: &ModelTensor,
    batching: bool,
) -> Result<(Vec<i64>, Option<ModelTensorReshape>), CompletionError> {
    let Some(dims) = &tensor.dims else {
        let tensor = format!("{role} '{}'", tensor.name);
        return Err(CompletionError::UnknownDimensions { tensor, role });
    };
    let dims = dims.iter().skip(usize::from(batching)).copied().collect::<Vec<_>>();
    if !dims.is_empty() {
        return Ok((dims, None));
    }
    // In a configuration, an empty shape is possible only by reshaping, and only if the model batches.
    Ok((vec![1], batching.then(ModelTensorReshape::default)))
}

/// Tensors of the model that belong to the sequence batcher instead of requests and responses.
#[derive(Default)]
struct BatcherTensors {
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl BatcherTensors {
    fn by(config: &ModelConfig) -> Self {
        let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else {
            return Self::default();
        };
        let ModelSequenceBatching { control_input, state, .. } = batching;
        let controls = control_input.iter().map(|control| control.name.clone());
        Self {
            inputs: controls.chain(state.iter().map(|state| state.input_name.clone())).collect(),
            outputs: state.iter().map(|state| state.output_name.clone()).collect(),
        }
    }
}

/// Takes over the fields of `completed` that a backend may complete: `max_batch_size`, inputs, outputs, the scheduler
/// if none is chosen, whether the model is decoupled, and the runtime if none is set. The other fields of `config`
/// are kept.
///
/// # Errors
/// The backend changed the choice of the scheduler.
pub fn adopt_completed(config: &mut ModelConfig, completed: ModelConfig) -> Result<(), CompletionError> {
    match (&config.scheduling_choice, completed.scheduling_choice) {
        (None, choice) => config.scheduling_choice = choice,
        (Some(own), Some(other)) if scheduler_name(own) != scheduler_name(&other) => {
            let (configured, completed) = (scheduler_name(own), scheduler_name(&other));
            return Err(CompletionError::AnotherScheduler { configured, completed });
        }
        (Some(own), None) => {
            let (configured, completed) = (scheduler_name(own), "no scheduler");
            return Err(CompletionError::AnotherScheduler { configured, completed });
        }
        (Some(_), Some(_)) => {}
    }
    config.max_batch_size = completed.max_batch_size;
    config.input = completed.input;
    config.output = completed.output;
    if config.runtime.is_empty() {
        config.runtime = completed.runtime;
    }
    if let Some(ModelTransactionPolicy { decoupled }) = completed.model_transaction_policy {
        config.model_transaction_policy.get_or_insert_default().decoupled = decoupled;
    }
    Ok(())
}

/// Adds the parameters of `completed` that a configuration lacks.
pub fn adopt_parameters(config: &mut ModelConfig, completed: &ModelConfig) {
    for (key, value) in &completed.parameters {
        config.parameters.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// The field that chooses a scheduler, such as `dynamic_batching`.
pub fn scheduler_name(choice: &SchedulingChoice) -> &'static str {
    match choice {
        SchedulingChoice::DynamicBatching(_) => "dynamic_batching",
        SchedulingChoice::SequenceBatching(_) => "sequence_batching",
        SchedulingChoice::EnsembleScheduling(_) => "ensemble_scheduling",
    }
}

#[cfg(test)]
mod tests;

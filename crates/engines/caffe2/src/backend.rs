//! Serves Caffe2's NetDef models: converts them to ONNX in memory, and loads the result with an ONNX engine.
//!
//! A model is two files in its version's folder: `model.netdef`, or the file that `default_model_filename` names, and
//! the net that initialises the weights, whose name has the prefix `init_`. A NetDef declares neither types nor
//! dimensions of its inputs, so the configuration lists them. The graph completes the configuration: with the outputs,
//! and with inputs that a convolution or a fully connected layer reads.
//!
//! The rest of the crate converts. This file depends on no engine: the caller passes one as a function.

use std::path::{Path, PathBuf};

use nereid_backend_api::{
    Backend, BackendCapabilities, DataType, Error, Model, ModelConfig, ModelContext, Result,
};
use nereid_model_config::default_model_filename;
use nereid_model_config::proto::ModelInput;
use nereid_model_files::{self as model_files, PROTOBUF_LIMIT};

use crate::{Element, Input, NetDefError, Nets};

const DEFAULT_FILENAME: &str = "model.netdef";
const INIT_PREFIX: &str = "init_";

/// Loads an ONNX model from memory. The path is its source file's, for messages.
pub type LoadOnnx = Box<dyn Fn(ModelContext, Vec<u8>, PathBuf) -> Result<Box<dyn Model>> + Send + Sync>;

/// The backend over an engine for ONNX.
pub struct NetDefBackend {
    load: LoadOnnx,
    runs_on_gpus: bool,
}

impl NetDefBackend {
    /// The backend over an engine, and whether the engine runs on GPUs.
    pub fn new(load: LoadOnnx, runs_on_gpus: bool) -> Self {
        Self { load, runs_on_gpus }
    }
}

impl Backend for NetDefBackend {
    fn capabilities(&self) -> BackendCapabilities {
        BackendCapabilities {
            completes_config: true,
            runs_on_gpus: self.runs_on_gpus,
            ..BackendCapabilities::default()
        }
    }

    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        let (onnx, path) =
            convert(&context).map_err(|error| error.context(format_args!("model '{}'", context.name)))?;
        (self.load)(context, onnx, path)
    }
}

/// The model's nets as ONNX, and the path of the net that computes.
fn convert(context: &ModelContext) -> Result<(Vec<u8>, PathBuf)> {
    let filename = default_model_filename(&context.config).unwrap_or(DEFAULT_FILENAME);
    let version = context.version_directory();
    let path = model_files::inside(&version, filename)
        .map_err(|error| Error::cannot_read(&version.join(filename), &error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let init = path.with_file_name(format!("{INIT_PREFIX}{name}"));
    let read = |path: &Path| {
        model_files::read(path, PROTOBUF_LIMIT).map_err(|error| Error::cannot_read(path, &error))
    };
    let nets = Nets::read(&read(&init)?, &read(&path)?);
    let onnx = nets.and_then(|nets| nets.to_onnx(&inputs(&context.config)));
    let onnx = onnx.map_err(|error| {
        let message = format!("cannot load {}: {error}", path.display());
        match error {
            NetDefError::Unknown(_) | NetDefError::Refused { .. } => Error::unsupported(message),
            _ => Error::invalid_arg(message),
        }
    })?;
    Ok((onnx, path))
}

/// The inputs that the configuration lists.
fn inputs(config: &ModelConfig) -> Vec<Input> {
    let batch = (config.max_batch_size > 0).then_some(None);
    let input = |input: &ModelInput| {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        let dims = dims.iter().map(|&dim| (dim >= 0).then_some(dim));
        let element = element(input.data_type().element_type()?);
        Some(Input { name: input.name.clone(), element, dims: Some(batch.into_iter().chain(dims).collect()) })
    };
    config.input.iter().filter_map(input).collect()
}

fn element(data_type: DataType) -> Element {
    match data_type {
        DataType::Bool => Element::Bool,
        DataType::Uint8 => Element::Uint8,
        DataType::Uint16 => Element::Uint16,
        DataType::Uint32 => Element::Uint32,
        DataType::Uint64 => Element::Uint64,
        DataType::Int8 => Element::Int8,
        DataType::Int16 => Element::Int16,
        DataType::Int32 => Element::Int32,
        DataType::Int64 => Element::Int64,
        DataType::Fp16 => Element::Float16,
        DataType::Bf16 => Element::Bfloat16,
        DataType::Fp32 => Element::Float,
        DataType::Fp64 => Element::Double,
        DataType::Bytes => Element::String,
    }
}

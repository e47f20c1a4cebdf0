//! Messages from and to the types of this crate.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::proto::infer_parameter::ParameterChoice;
use super::proto::model_config::SchedulingChoice;
use super::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use super::proto::model_infer_response::InferOutputTensor;
use super::proto::model_metadata_response;
use super::proto::model_repository_parameter::ParameterChoice as RepositoryChoice;
use super::proto::{
    InferParameter, InferStatistics, ModelInferRequest, ModelInferResponse, ModelMetadataResponse,
    ModelRepositoryParameter, RepositoryModelLoadRequest, RepositoryModelUnloadRequest, StatisticDuration,
    repository_index_response,
};
use super::{contents, proto};
use crate::request::placement;
use crate::tensor::{Contents, Region};
use crate::{
    BatchStatistics, ConfiguredTensor, DataType, Error, IndexEntry, InferRequest, InferResponse,
    LoadOverrides, ModelConfig, ModelMetadata, ModelState, ModelStatistics, Parameter, Parameters,
    RequestedOutput, Scheduling, Tensor, TensorMetadata, Times,
};

/// Parameters of messages.
type Wire = BTreeMap<String, InferParameter>;

/// # Errors
/// A size is past the protocol's range.
pub(super) fn infer_request(request: InferRequest) -> Result<ModelInferRequest, Error> {
    let raw_input_contents =
        request.inputs.iter().filter_map(|tensor| tensor.bytes().ok().cloned()).collect();
    Ok(ModelInferRequest {
        model_name: request.model,
        model_version: request.version,
        id: request.id,
        parameters: request.parameters.into_iter().map(|(name, value)| (name, parameter(value))).collect(),
        inputs: request.inputs.iter().map(input).collect::<Result<_, _>>()?,
        outputs: request.outputs.into_iter().map(output).collect(),
        raw_input_contents,
    })
}

fn input(tensor: &Tensor) -> Result<InferInputTensor, Error> {
    let shape = tensor.shape().iter().map(|size| i64::try_from(*size)).collect::<Result<_, _>>();
    let shape =
        shape.map_err(|_| Error::invalid(format!("tensor '{}': a size is too large", tensor.name())))?;
    let parameters = match tensor.contents() {
        Contents::Bytes(_) => Wire::new(),
        Contents::Region(region) => in_region(region),
    };
    let datatype = tensor.data_type().protocol_name().to_owned();
    Ok(InferInputTensor { name: tensor.name().to_owned(), datatype, shape, parameters, contents: None })
}

fn output(output: RequestedOutput) -> InferRequestedOutputTensor {
    let mut parameters = output.region.as_ref().map(in_region).unwrap_or_default();
    if let Some(count) = output.classes {
        parameters.insert("classification".into(), parameter(Parameter::Int(count.into())));
    }
    InferRequestedOutputTensor { name: output.name, parameters }
}

fn in_region(region: &Region) -> Wire {
    let size = |size: usize| parameter(Parameter::Int(i64::try_from(size).unwrap_or(i64::MAX)));
    let mut parameters = Wire::new();
    parameters.insert("shared_memory_region".into(), parameter(region.name.as_str().into()));
    parameters.insert("shared_memory_byte_size".into(), size(region.size));
    if region.offset != 0 {
        parameters.insert("shared_memory_offset".into(), size(region.offset));
    }
    parameters
}

fn parameter(value: Parameter) -> InferParameter {
    let choice = match value {
        Parameter::Bool(value) => ParameterChoice::BoolParam(value),
        Parameter::Int(value) => ParameterChoice::Int64Param(value),
        Parameter::Double(value) => ParameterChoice::DoubleParam(value),
        Parameter::Text(value) => ParameterChoice::StringParam(value),
    };
    InferParameter { parameter_choice: Some(choice) }
}

/// Reads a response. `requested` are the outputs of the request.
///
/// # Errors
/// The response is not of KServe v2.
pub(super) fn infer_response(
    message: ModelInferResponse,
    requested: &[RequestedOutput],
) -> Result<InferResponse, Error> {
    let mut raw = message.raw_output_contents.into_iter();
    let outputs = message
        .outputs
        .into_iter()
        .map(|output| tensor(output, &mut raw, requested))
        .collect::<Result<_, _>>()?;
    Ok(InferResponse {
        model: message.model_name,
        version: message.model_version,
        id: message.id,
        parameters: parameters(message.parameters),
        outputs,
    })
}

/// Reads an output, whose raw contents are the next ones if it has any. Servers use either form.
fn tensor(
    output: InferOutputTensor,
    raw: &mut impl Iterator<Item = Bytes>,
    requested: &[RequestedOutput],
) -> Result<Tensor, Error> {
    let name = output.name;
    let wrong = |reason: String| Error::response(format!("output '{name}' {reason}"));
    let data_type = DataType::from_protocol_name(&output.datatype)
        .ok_or_else(|| wrong(format!("has the unknown datatype '{}'", output.datatype)))?;
    let shape = output.shape.iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| wrong("has an invalid shape".into()))?;
    let parameters = parameters(output.parameters);
    let number = |name: &str| match parameters.get(name) {
        Some(Parameter::Int(value)) => usize::try_from(*value).ok(),
        _ => None,
    };
    let region = match (placement(requested, &name), parameters.get("shared_memory_region")) {
        (Some(region), _) => Some(region.clone()),
        // A stream does not keep its requests, but servers may report the region.
        (None, Some(Parameter::Text(region))) => {
            let offset = number("shared_memory_offset").unwrap_or_default();
            Some(Region { name: region.clone(), offset, size: 0 })
        }
        _ => None,
    };
    if let Some(region) = region {
        let region = region.of_output(number("shared_memory_byte_size"), data_type, &shape);
        // Servers list raw contents for every output, empty ones too, or for none.
        raw.next();
        return Ok(Tensor::in_region(name, data_type, shape, region));
    }
    let read = match output.contents {
        Some(contents) => contents::tensor(&name, data_type, shape, contents),
        None => {
            let bytes = raw.next().ok_or_else(|| wrong("has no contents".into()))?;
            Tensor::from_bytes(name.clone(), data_type, shape, bytes)
        }
    };
    read.map_err(|error| wrong(format!("is damaged: {error}")))
}

fn parameters(parameters: Wire) -> Parameters {
    let read = |parameter: InferParameter| {
        Some(match parameter.parameter_choice? {
            ParameterChoice::BoolParam(value) => Parameter::Bool(value),
            ParameterChoice::Int64Param(value) => Parameter::Int(value),
            ParameterChoice::Uint64Param(value) => Parameter::Int(value.try_into().ok()?),
            ParameterChoice::DoubleParam(value) => Parameter::Double(value),
            ParameterChoice::StringParam(value) => Parameter::Text(value),
        })
    };
    parameters.into_iter().filter_map(|(name, value)| Some((name, read(value)?))).collect()
}

pub(super) fn model_metadata(message: ModelMetadataResponse) -> Result<ModelMetadata, Error> {
    let tensor = |tensor: model_metadata_response::TensorMetadata| {
        let data_type = DataType::from_protocol_name(&tensor.datatype);
        let data_type = data_type.ok_or_else(|| unknown(&tensor.name, &tensor.datatype))?;
        Ok(TensorMetadata { name: tensor.name, data_type, shape: tensor.shape })
    };
    Ok(ModelMetadata {
        name: message.name,
        versions: message.versions,
        platform: message.platform,
        inputs: message.inputs.into_iter().map(tensor).collect::<Result<_, _>>()?,
        outputs: message.outputs.into_iter().map(tensor).collect::<Result<_, _>>()?,
    })
}

fn unknown(tensor: &str, data_type: &str) -> Error {
    Error::response(format!("tensor '{tensor}' has the unknown datatype '{data_type}'"))
}

pub(super) fn model_config(message: proto::ModelConfig) -> Result<ModelConfig, Error> {
    let data_type = |name: &str, number: i32| {
        let data_type = u8::try_from(number).ok().and_then(DataType::from_number);
        data_type.ok_or_else(|| unknown(name, &number.to_string()))
    };
    let input = |input: proto::ModelInput| {
        let data_type = data_type(&input.name, input.data_type)?;
        Ok(ConfiguredTensor { name: input.name, data_type, dims: input.dims, is_optional: input.optional })
    };
    let output = |output: proto::ModelOutput| {
        let data_type = data_type(&output.name, output.data_type)?;
        Ok(ConfiguredTensor { name: output.name, data_type, dims: output.dims, is_optional: false })
    };
    Ok(ModelConfig {
        name: message.name,
        platform: message.platform,
        backend: message.backend,
        max_batch_size: message.max_batch_size.try_into().unwrap_or_default(),
        inputs: message.input.into_iter().map(input).collect::<Result<_, _>>()?,
        outputs: message.output.into_iter().map(output).collect::<Result<_, _>>()?,
        scheduling: scheduling(message.scheduling_choice),
        is_decoupled: message.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        parameters: message.parameters.into_iter().map(|(name, value)| (name, value.string_value)).collect(),
    })
}

fn scheduling(choice: Option<SchedulingChoice>) -> Scheduling {
    match choice {
        None => Scheduling::Default,
        Some(SchedulingChoice::DynamicBatching(batching)) => Scheduling::DynamicBatching {
            preferred_batch_sizes: batching
                .preferred_batch_size
                .iter()
                .filter_map(|size| u32::try_from(*size).ok())
                .collect(),
            max_queue_delay: Duration::from_micros(batching.max_queue_delay_microseconds),
        },
        Some(SchedulingChoice::SequenceBatching(batching)) => Scheduling::SequenceBatching {
            max_idle: Duration::from_micros(batching.max_sequence_idle_microseconds),
        },
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            Scheduling::Ensemble { models: ensemble.step.into_iter().map(|step| step.model_name).collect() }
        }
    }
}

pub(super) fn statistics(message: proto::ModelStatistics) -> ModelStatistics {
    let all: InferStatistics = message.inference_stats.unwrap_or_default();
    let batch = |batch: proto::InferBatchStatistics| BatchStatistics {
        batch_size: batch.batch_size,
        compute_input: times(batch.compute_input),
        compute_infer: times(batch.compute_infer),
        compute_output: times(batch.compute_output),
    };
    ModelStatistics {
        name: message.name,
        version: message.version,
        last_inference: message.last_inference,
        inference_count: message.inference_count,
        execution_count: message.execution_count,
        success: times(all.success),
        fail: times(all.fail),
        queue: times(all.queue),
        compute_input: times(all.compute_input),
        compute_infer: times(all.compute_infer),
        compute_output: times(all.compute_output),
        cache_hit: times(all.cache_hit),
        cache_miss: times(all.cache_miss),
        batches: message.batch_stats.into_iter().map(batch).collect(),
    }
}

fn times(duration: Option<StatisticDuration>) -> Times {
    let StatisticDuration { count, ns } = duration.unwrap_or_default();
    Times { count, total: Duration::from_nanos(ns) }
}

pub(super) fn index_entry(message: repository_index_response::ModelIndex) -> IndexEntry {
    // The memory comes on request only.
    let repository_index_response::ModelIndex { name, version, state, reason, memory: _ } = message;
    IndexEntry { name, version, state: ModelState::from(state.as_str()), reason }
}

pub(super) fn load(model: &str, overrides: &LoadOverrides) -> RepositoryModelLoadRequest {
    let value = |choice| ModelRepositoryParameter { parameter_choice: Some(choice) };
    let mut parameters = BTreeMap::new();
    if let Some(config) = &overrides.config {
        parameters.insert("config".into(), value(RepositoryChoice::StringParam(config.clone())));
    }
    for (path, content) in &overrides.files {
        parameters.insert(format!("file:{path}"), value(RepositoryChoice::BytesParam(content.clone())));
    }
    RepositoryModelLoadRequest { repository_name: String::new(), model_name: model.to_owned(), parameters }
}

pub(super) fn unload(model: &str, with_dependents: bool) -> RepositoryModelUnloadRequest {
    let choice = RepositoryChoice::BoolParam(with_dependents);
    let parameter = ModelRepositoryParameter { parameter_choice: Some(choice) };
    let parameters = BTreeMap::from([("unload_dependents".to_owned(), parameter)]);
    RepositoryModelUnloadRequest { repository_name: String::new(), model_name: model.to_owned(), parameters }
}

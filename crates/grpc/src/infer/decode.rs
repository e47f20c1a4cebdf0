//! A message to an [`InferRequest`].

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use nereid_core::backend_api::{
    Buffer, Buffers, CorrelationId, DataType, Error, InferRequest, RequestedOutput, Result, Shape, Tensor,
};
use nereid_shared_memory::{Regions, RequestMemory};

use super::contents;
use super::parameters::{self, Choice, choice};
use super::region::RegionPart;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::{InferParameter, ModelInferRequest};

/// Asks for an answer of its own that says that a decoupled model gives no further one.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// A request, and what else its message says.
pub(super) struct Decoded {
    pub request: InferRequest,
    /// The shared memory that it reads and writes.
    pub memory: RequestMemory,
    /// Whether the end of its answers is to be told in a message of its own, if the last answer did not tell it.
    pub empty_final: bool,
}

/// Decodes a message. Contents given raw are not copied.
///
/// # Errors
/// What is wrong with the request.
pub(super) fn decode(message: ModelInferRequest, regions: &Regions) -> Result<Decoded> {
    let mut decoded = Decoded {
        request: InferRequest { id: message.id, ..InferRequest::default() },
        memory: RequestMemory::default(),
        empty_final: false,
    };
    decoded.read_parameters(message.parameters)?;
    decoded.read_inputs(message.inputs, message.raw_input_contents, regions)?;
    decoded.read_outputs(message.outputs, regions)?;
    decoded.request.allocator = decoded.memory.allocator();
    Ok(decoded)
}

impl Decoded {
    fn read_parameters(&mut self, given: BTreeMap<String, InferParameter>) -> Result<()> {
        let request = &mut self.request;
        for (name, value) in given {
            let value = choice(&name, value)?;
            match name.as_str() {
                "sequence_id" => request.correlation_id = sequence_id(value)?,
                "sequence_start" => request.sequence.start = parameters::boolean(&name, &value)?,
                "sequence_end" => request.sequence.end = parameters::boolean(&name, &value)?,
                "priority" => request.priority = parameters::count(&name, &value)?,
                "timeout" => request.timeout = timeout(&value)?,
                EMPTY_FINAL => self.empty_final = parameters::boolean(&name, &value)?,
                _ if name.starts_with("triton_") => {
                    return Err(Error::invalid_arg(format!(
                        "parameter '{name}' cannot be given: of the names that begin with 'triton_' there is only \
                         '{EMPTY_FINAL}'"
                    )));
                }
                _ => {
                    let value = parameters::value(&name, value)?;
                    request.parameters.set(name, value);
                }
            }
        }
        Ok(())
    }

    fn read_inputs(
        &mut self,
        inputs: Vec<InferInputTensor>,
        raw: Vec<Bytes>,
        regions: &Regions,
    ) -> Result<()> {
        let (given, is_raw) = (raw.len(), !raw.is_empty());
        let mut raw = raw.into_iter();
        self.request.inputs.reserve_exact(inputs.len());
        for input in inputs {
            let name = input.name;
            let data_type = DataType::from_protocol_name(&input.datatype).ok_or_else(|| {
                Error::invalid_arg(format!(
                    "input '{name}' has datatype '{}', which there is not",
                    input.datatype
                ))
            })?;
            let region = RegionPart::read(&name, &input.parameters)?;
            let buffer = match (region, input.contents) {
                (Some(_), Some(_)) => {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has contents, though it lies in shared memory; it takes one of the two"
                    )));
                }
                (Some(region), None) => self.memory.input(region.find(regions)?, data_type),
                (None, Some(_)) if is_raw => {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has contents, though the request has raw_input_contents; inputs take one of \
                         the two"
                    )));
                }
                (None, Some(contents)) => Buffer::host(contents::joined(contents, data_type, &name)?),
                (None, None) => Buffer::host(raw.next().ok_or_else(|| {
                    Error::invalid_arg(format!(
                        "there are no contents for input '{name}': the request has {given} raw_input_contents"
                    ))
                })?),
            };
            let shape = Shape::from(input.shape.as_slice());
            self.request.inputs.push(Tensor { name, data_type, shape, buffers: Buffers::from_buf([buffer]) });
        }
        // What is left over means nothing, as with the reference.
        Ok(())
    }

    fn read_outputs(&mut self, outputs: Vec<InferRequestedOutputTensor>, regions: &Regions) -> Result<()> {
        self.request.outputs.reserve_exact(outputs.len());
        for InferRequestedOutputTensor { name, parameters } in outputs {
            let region = RegionPart::read(&name, &parameters)?;
            let classification = classification(&name, &parameters)?;
            if let Some(region) = region {
                if classification > 0 {
                    return Err(Error::invalid_arg(format!(
                        "output '{name}' is wanted in shared memory, which does not go with 'classification'"
                    )));
                }
                self.memory.output(name.clone(), region.find(regions)?);
            }
            self.request.outputs.push(RequestedOutput { name, classification });
        }
        Ok(())
    }
}

fn sequence_id(value: Choice) -> Result<CorrelationId> {
    match value {
        Choice::Int64Param(0) => Ok(CorrelationId::None),
        // The bits are the number: clients give the upper half of 64 bits as negative ones.
        Choice::Int64Param(number) => Ok(CorrelationId::Number(number.cast_unsigned())),
        Choice::StringParam(text) if text.is_empty() => Ok(CorrelationId::None),
        Choice::StringParam(text) => Ok(CorrelationId::Text(text)),
        _ => Err(parameters::wrong_type("sequence_id", "int64_param or string_param")),
    }
}

/// In microseconds. None, for 0 and for negative numbers, which in the reference come to hundreds of thousands of years.
fn timeout(value: &Choice) -> Result<Option<Duration>> {
    match value {
        Choice::Int64Param(micros) => {
            let micros = u64::try_from(*micros).ok().filter(|micros| *micros > 0);
            Ok(micros.map(Duration::from_micros))
        }
        _ => Err(parameters::wrong_type("timeout", "int64_param")),
    }
}

/// So many highest values of an output are wanted; 0 for the output itself.
fn classification(output: &str, given: &BTreeMap<String, InferParameter>) -> Result<u32> {
    const NAME: &str = "classification";
    let Some(value) = given.get(NAME) else { return Ok(0) };
    match value.parameter_choice {
        Some(Choice::Int64Param(count)) if count > 0 => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
        Some(Choice::Int64Param(count)) => Err(Error::invalid_arg(format!(
            "parameter '{NAME}' of output '{output}' is {count}, but takes a number from 1 on"
        ))),
        _ => Err(parameters::wrong_type(NAME, "int64_param").context(format_args!("output '{output}'"))),
    }
}

#[cfg(test)]
mod tests;

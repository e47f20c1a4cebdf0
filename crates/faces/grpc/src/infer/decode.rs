//! A message to an [`InferRequest`].

use std::collections::BTreeMap;

use bytes::Bytes;
use nereid_core::backend_api::{
    Buffer, Buffers, DataType, Error, InferRequest, RequestedOutput, Result, Shape, Tensor,
};
use nereid_protocol::parameters::{
    CLASSIFICATION, WireValue, check_requested, set_parameter, unknown_data_type,
};
use nereid_shared_memory::{Regions, RequestMemory};

use super::contents;
use super::parameters::{self, Choice, choice};
use super::region::RegionPart;
use crate::codec::InferMessage;
use crate::proto::InferParameter;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};

/// Requests an empty final response of decoupled models.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// A request with the other fields of its message.
pub(super) struct DecodedRequest {
    pub request: InferRequest,
    /// The shared memory that it reads and writes.
    pub memory: RequestMemory,
    /// Whether the end of its answers needs a separate message, if the last answer did not mark it.
    pub empty_final: bool,
}

/// Decodes a message. Raw contents are not copied.
///
/// # Errors
/// The request is invalid.
pub(super) fn decode(message: InferMessage, regions: &Regions) -> Result<DecodedRequest> {
    let InferMessage { message, raw, joined, .. } = message;
    let mut decoded = DecodedRequest {
        request: InferRequest { id: message.id, ..InferRequest::default() },
        memory: RequestMemory::default(),
        empty_final: false,
    };
    decoded.read_parameters(message.parameters)?;
    decoded.read_inputs(message.inputs, (raw, joined), regions)?;
    decoded.read_outputs(message.outputs, regions)?;
    decoded.request.allocator = decoded.memory.allocator();
    Ok(decoded)
}

impl DecodedRequest {
    fn read_parameters(&mut self, given: BTreeMap<String, InferParameter>) -> Result<()> {
        for (name, value) in given {
            let value = choice(&name, value)?;
            if name == EMPTY_FINAL {
                self.empty_final = value.boolean(&name)?;
            } else {
                set_parameter(&mut self.request, name, value)?;
            }
        }
        Ok(())
    }

    fn read_inputs(
        &mut self,
        inputs: Vec<InferInputTensor>,
        (raw, joined): (Vec<Buffers>, Vec<Option<Result<Bytes>>>),
        regions: &Regions,
    ) -> Result<()> {
        let mut joined = joined.into_iter();
        let (given, is_raw) = (raw.len(), !raw.is_empty());
        let mut raw = raw.into_iter();
        self.request.inputs.reserve_exact(inputs.len());
        for input in inputs {
            let (name, joined) = (input.name, joined.next().flatten());
            let data_type = DataType::from_protocol_name(&input.datatype)
                .ok_or_else(|| unknown_data_type(&name, &input.datatype))?;
            let region = RegionPart::read(&name, &input.parameters)?;
            let one = |buffer: Buffer| Buffers::from_buf([buffer]);
            let buffers = match (region, input.contents) {
                (Some(_), Some(_)) => {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has both contents and shared memory; expected one of them"
                    )));
                }
                (Some(region), None) => one(self.memory.input(region.find(regions)?, data_type)),
                (None, Some(_)) if is_raw => {
                    return Err(Error::invalid_arg(format!(
                        "input '{name}' has contents, though the request has raw_input_contents; inputs take one of \
                         the two"
                    )));
                }
                (None, Some(contents)) => {
                    let joined = joined.unwrap_or_else(|| contents::joined(contents, data_type, &name));
                    one(Buffer::host(joined?))
                }
                (None, None) => raw.next().ok_or_else(|| {
                    Error::invalid_arg(format!(
                        "input '{name}' has no contents: the request has {given} raw_input_contents"
                    ))
                })?,
            };
            let shape = Shape::from(input.shape.as_slice());
            self.request.inputs.push(Tensor { name, data_type, shape, buffers });
        }
        // Surplus contents are ignored, as in the reference.
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
                        "output '{name}': 'classification' cannot be combined with shared memory"
                    )));
                }
                self.memory.output(name.clone(), region.find(regions)?);
            }
            self.request.outputs.push(RequestedOutput { name, classification });
        }
        check_requested(&self.request.outputs)
    }
}

/// Number of top classes requested of an output; 0 for the raw output.
fn classification(output: &str, given: &BTreeMap<String, InferParameter>) -> Result<u32> {
    let Some(value) = given.get(CLASSIFICATION) else { return Ok(0) };
    match value.parameter_choice {
        Some(Choice::Int64Param(count)) if count > 0 => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
        Some(Choice::Int64Param(count)) => Err(Error::invalid_arg(format!(
            "output '{output}': parameter '{CLASSIFICATION}' is {count}; expected at least 1"
        ))),
        _ => {
            Err(parameters::wrong_type(CLASSIFICATION, "int64_param")
                .context(format_args!("output '{output}'")))
        }
    }
}

#[cfg(test)]
mod tests;

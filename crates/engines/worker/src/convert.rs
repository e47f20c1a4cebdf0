//! The backend API's types as the protocol has them, and back.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, CorrelationId, DataType, Error, ErrorCode, Flow, InferRequest, ParameterValue, Parameters,
    Request, RequestedOutput, Response, Result, SequenceFlags, SequenceStates, Tensor,
};
use nereid_worker_protocol::Message;
use nereid_worker_protocol::tensor::{
    self as wire, Contents, Correlation, DeviceContents, Failure, MAX_DIMENSIONS, SEQUENCE_END,
    SEQUENCE_START, Value,
};
use smallvec::SmallVec;

/// An error in the protocol's form.
pub(crate) fn failure(error: &Error) -> Failure<'_> {
    Failure { code: error.code() as u8, message: error.message() }
}

/// An error as a process reports it.
pub(crate) fn error(failure: Failure<'_>) -> Error {
    let code = match failure.code {
        0 => ErrorCode::Unknown,
        2 => ErrorCode::NotFound,
        3 => ErrorCode::InvalidArg,
        4 => ErrorCode::Unavailable,
        5 => ErrorCode::Unsupported,
        6 => ErrorCode::AlreadyExists,
        7 => ErrorCode::Cancelled,
        _ => ErrorCode::Internal,
    };
    Error::new(code, failure.message.to_owned())
}

fn value(value: &ParameterValue) -> Value<'_> {
    match value {
        ParameterValue::Bool(value) => Value::Bool(*value),
        ParameterValue::Int(value) => Value::Int(*value),
        ParameterValue::Double(value) => Value::Double(*value),
        ParameterValue::String(value) => Value::Text(value),
    }
}

/// Parameters as the protocol has them.
pub(crate) fn values(parameters: &Parameters) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
    parameters.iter().map(|(name, it)| (name, value(it)))
}

fn parameters(values: Vec<(&str, Value<'_>)>) -> Parameters {
    let mut parameters = Parameters::default();
    for (name, value) in values {
        let value = match value {
            Value::Bool(value) => ParameterValue::Bool(value),
            Value::Int(value) => ParameterValue::Int(value),
            Value::Double(value) => ParameterValue::Double(value),
            Value::Text(value) => ParameterValue::String(value.to_owned().into()),
        };
        parameters.set(name.to_owned(), value);
    }
    parameters
}

/// Whether a request of a model with these outputs requests one of them.
pub(crate) fn wants(request: &Request, outputs: &[String], output: &str) -> bool {
    request.wants(output) && (!request.outputs.is_empty() || outputs.iter().any(|known| known == output))
}

/// Appends a request of a model with these outputs, without its inputs. With `takes_states`, the outputs that replace the
/// states of its sequence are requested as well.
pub(crate) fn put_request(
    message: &mut Message<'_>,
    handle: u64,
    request: &Request,
    outputs: &[String],
    takes_states: bool,
) {
    let states = request.states().filter(|_| takes_states).map(SequenceStates::all).unwrap_or_default();
    let mut requested: Vec<&str> = match request.outputs.as_slice() {
        [] => outputs.iter().map(String::as_str).collect(),
        requested => requested.iter().map(|output| output.name.as_str()).collect(),
    };
    for state in &states {
        if !requested.contains(&state.output.as_str()) {
            requested.push(&state.output);
        }
    }
    let correlation = match &request.correlation_id {
        CorrelationId::None => Correlation::None,
        CorrelationId::Number(number) => Correlation::Number(*number),
        CorrelationId::Text(text) => Correlation::Text(text),
    };
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let context = request.trace.as_ref().map(|trace| trace.trace().context());
    message.request(&wire::Request {
        handle,
        id: &request.id,
        correlation,
        flags: flag(request.sequence.start, SEQUENCE_START) | flag(request.sequence.end, SEQUENCE_END),
        priority: request.priority,
        timeout: request.timeout.map_or(0, |timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)),
        flow: request.flow.id,
        trace: context.as_deref(),
        outputs: requested,
        parameters: values(&request.parameters).collect(),
    });
    message.count(request.inputs.len());
}

/// Appends an input. To a process that reads the memory of devices, what another process shares there is only named. All
/// else is copied.
///
/// # Errors
/// As for [`put_tensor`], or what was copied from a device does not fit its type and shape.
pub(crate) fn put_input(message: &mut Message<'_>, input: &Tensor, reads_device_memory: bool) -> Result<()> {
    if !input.is_on_device() {
        return put_tensor(message, input);
    }
    if reads_device_memory && let Some(contents) = device_contents(input) {
        message.device_tensor(&input.name, input.data_type.number(), &input.shape, &contents);
        return Ok(());
    }
    let mut copied = input.clone();
    copied.copy_to_host()?;
    copied.check_contents()?;
    put_tensor(message, &copied)
}

/// How another process opens the contents; `None` if it cannot, or if they are read element by element.
fn device_contents(tensor: &Tensor) -> Option<DeviceContents> {
    let [buffer] = tensor.buffers.as_slice() else { return None };
    let memory = buffer.as_device().filter(|memory| memory.len > 0 && tensor.data_type != DataType::Bytes)?;
    Some(DeviceContents {
        device: buffer.memory().device.try_into().ok()?,
        handle: *memory.owner.ipc_handle()?,
        offset: memory.address.checked_sub(memory.owner.ipc_base()?)?,
        length: memory.len as u64,
    })
}

/// Appends a tensor.
///
/// # Errors
/// The system is out of shared memory, or a device's driver failed.
pub(crate) fn put_tensor(message: &mut Message<'_>, tensor: &Tensor) -> Result<()> {
    let name = &tensor.name;
    let on_host: SmallVec<[Bytes; 2]> = tensor.buffers.iter().map(Buffer::to_host).collect::<Result<_>>()?;
    let fill = |mut target: &mut [u8]| {
        for bytes in &on_host {
            let (here, rest) = target.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            target = rest;
        }
    };
    let length = on_host.iter().map(Bytes::len).sum();
    message
        .tensor(name, tensor.data_type.number(), &tensor.shape, length, fill)
        .map_err(|error| no_memory(name, length, &error))
}

fn no_memory(tensor: &str, length: usize, error: &io::Error) -> Error {
    Error::unavailable(format!("tensor '{tensor}': cannot take {length} bytes of shared memory: {error}"))
}

/// A tensor as a process sent it. Its contents stay where they are, but for BYTES: their structure is relied upon once it was
/// checked, and the process could change it.
fn tensor(tensor: wire::Tensor<'_>) -> Result<Tensor> {
    let data_type = DataType::from_number(tensor.data_type).ok_or_else(|| {
        Error::internal(format!("tensor '{}': unknown datatype {}", tensor.name, tensor.data_type))
    })?;
    let wrong = |what: String| Error::internal(format!("tensor '{}': {what}", tensor.name));
    if tensor.shape.len() > MAX_DIMENSIONS {
        return Err(wrong(format!(
            "has {} dimensions, but may have {MAX_DIMENSIONS} at most",
            tensor.shape.len()
        )));
    }
    let contents = match tensor.contents {
        Contents::Inline(bytes) => Buffer::host(Bytes::copy_from_slice(bytes)),
        Contents::Region(region) if data_type == DataType::Bytes => Buffer::own(region.as_ref().to_vec()),
        Contents::Region(region) => Buffer::shared_with_model(Bytes::from_owner(region)),
        Contents::Device(_) => return Err(wrong("processes share no device memory".to_owned())),
        Contents::Unmapped(error) => {
            return Err(Error::unavailable(format!(
                "tensor '{}': cannot map its shared memory: {error}",
                tensor.name
            )));
        }
    };
    Ok(Tensor {
        name: tensor.name.into(),
        data_type,
        shape: tensor.shape.as_slice().into(),
        buffers: [contents].into_iter().collect(),
    })
}

/// The response to a request, with the outputs that it requests.
///
/// # Errors
/// An output's contents do not fit its type and shape.
pub(crate) fn response(response: wire::Response<'_>, wants: impl Fn(&str) -> bool) -> Result<Response> {
    let mut outputs = Vec::with_capacity(response.outputs.len());
    for output in response.outputs {
        if wants(output.name) {
            let output = tensor(output)?;
            output.check_contents()?;
            outputs.push(output);
        }
    }
    Ok(Response { outputs, parameters: parameters(response.parameters) })
}

/// As [`response`]; outputs that replace a state do so.
///
/// # Errors
/// As there.
pub(crate) fn response_with_states(
    response: wire::Response<'_>,
    wants: impl Fn(&str) -> bool,
    states: Option<&SequenceStates>,
) -> Result<Response> {
    let Some(states) = states else { return self::response(response, wants) };
    let mut response = self::response(response, |output| wants(output) || states.has(output))?;
    for output in response.outputs.iter().filter(|output| states.has(&output.name)) {
        // A copy, lest the state keep the shared memory that it came in.
        let kept = Buffer::host(output.contiguous()?.into_owned());
        states.update(&output.name, output.data_type, output.shape.clone(), SmallVec::from_buf([kept]))?;
    }
    response.outputs.retain(|output| wants(&output.name));
    Ok(response)
}

/// A request that the process makes, or that it is to execute. Its inputs are not checked.
///
/// # Errors
/// An input is of no known type.
pub(crate) fn inner_request(
    request: wire::Request<'_>,
    inputs: Vec<wire::Tensor<'_>>,
) -> Result<InferRequest> {
    Ok(InferRequest {
        id: request.id.to_owned(),
        inputs: inputs.into_iter().map(tensor).collect::<Result<_>>()?,
        outputs: request.outputs.into_iter().map(RequestedOutput::new).collect(),
        parameters: parameters(request.parameters),
        correlation_id: match request.correlation {
            Correlation::None | Correlation::Number(0) | Correlation::Text("") => CorrelationId::None,
            Correlation::Number(number) => CorrelationId::Number(number),
            Correlation::Text(text) => CorrelationId::Text(text.to_owned()),
        },
        sequence: SequenceFlags {
            start: request.flags & SEQUENCE_START != 0,
            end: request.flags & SEQUENCE_END != 0,
        },
        priority: request.priority,
        timeout: (request.timeout > 0).then(|| Duration::from_micros(request.timeout)),
        flow: Flow { id: request.flow, ..Flow::default() },
        ..InferRequest::default()
    })
}

#[cfg(test)]
mod tests;

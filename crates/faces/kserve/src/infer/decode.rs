//! Decodes a request's body into an [`InferRequest`].
//!
//! The JSON part is read once, front to back, and a tensor's `data` is decoded directly into its bytes. Binary tensors
//! are slices of the body. Bodies that the reference's parser rejects with status 500 are `Internal` errors here, too;
//! bodies that parse but are invalid are `InvalidArg`.

mod repeated;

use std::ops::ControlFlow;

use nereid_core::Signature;
use nereid_core::backend_api::{
    Buffer, Buffers, DataType, Error, InferRequest, RequestedOutput, Result, Shape, Tensor,
};
use nereid_http::{Limit, RequestBody};
use nereid_protocol::parameters::{
    BINARY_DATA, BINARY_DATA_OUTPUT, BINARY_DATA_SIZE, CLASSIFICATION, check_count, check_requested,
    set_parameter, unknown_data_type,
};
use nereid_shared_memory::{Regions, RequestMemory, Slice};

use super::encode::{Form, Format};
use super::json_members::{JsonValue, array, boolean, count, object, skip, text};
use super::json_reader::JsonReader;
use super::json_tensor::{self, Elements, integer};
use super::region::{RegionParameter, RegionPart};
use super::take;
use crate::json::{self, syntax};

/// A request and the form of its reply.
pub(super) struct DecodedRequest {
    pub request: InferRequest,
    pub format: Format,
    /// The shared memory it reads and writes.
    pub memory: RequestMemory,
}

/// Decodes a body whose first `length` bytes are JSON.
///
/// # Errors
/// The request is invalid.
pub(super) fn json(
    body: &mut RequestBody,
    length: usize,
    model: &str,
    signature: &Signature,
    max_input: Limit,
    regions: &Regions,
) -> Result<DecodedRequest> {
    if length > max_input.bytes {
        return Err(too_large("the request's JSON", length, max_input));
    }
    let header = body.take_joined(length).map_err(|missing| {
        Error::invalid_arg(format!("the body ends {missing} bytes before the end of its JSON part"))
    })?;
    let is_repeated = match repeated::find(&header, body, model) {
        ControlFlow::Break(decoded) => return all_of(decoded?, body, model),
        ControlFlow::Continue(is_repeated) => is_repeated,
    };
    let mut header = json::text(&header);
    let respelled;
    let mut parsed = RequestParts::new(signature, regions);
    if parsed.read(&mut JsonReader::new(header)).is_err() {
        // Again for the error, with its position.
        parsed = RequestParts::new(signature, regions);
        if let Err(error) = parsed.read(&mut JsonReader::exact(header)) {
            respelled = json::respelled(header).ok_or(error)?;
            header = &respelled;
            parsed = RequestParts::new(signature, regions);
            parsed.read(&mut JsonReader::exact(header))?;
        }
    }
    if is_repeated {
        repeated::keep(header, &parsed);
    }
    let Some(inputs) = parsed.inputs else {
        return Err(Error::internal("the request lacks 'inputs'"));
    };
    let mut memory = parsed.memory;
    let inputs = inputs
        .into_iter()
        .map(|mut input| {
            let declared = input.declared()?;
            match std::mem::take(&mut input.region).find(regions)? {
                Some(slice) => Ok(declared.in_memory(slice, &mut memory)),
                None => input.into_tensor(declared, header, body, model, max_input),
            }
        })
        .collect::<Result<_>>()?;
    let mut request = parsed.request;
    request.inputs = inputs;
    request.allocator = memory.allocator();
    let decoded = all_of(DecodedRequest { request, format: parsed.format, memory }, body, model)?;
    check_requested(&decoded.request.outputs)?;
    Ok(decoded)
}

/// The request, if it has taken all of its body.
fn all_of(decoded: DecodedRequest, body: &RequestBody, model: &str) -> Result<DecodedRequest> {
    match body.len() {
        0 => Ok(decoded),
        left => Err(Error::invalid_arg(format!(
            "model '{model}': {left} bytes of binary data belong to no input"
        ))),
    }
}

/// Decodes a body that consists of a single input's contents (Triton's raw binary request).
///
/// # Errors
/// The model does not accept raw requests.
pub(super) fn raw(body: &mut RequestBody, signature: &Signature, max_input: Limit) -> Result<DecodedRequest> {
    let length = body.len();
    if length > max_input.bytes {
        return Err(too_large("the raw input", length, max_input));
    }
    let contents = take(body, length).unwrap_or_default();
    let request = InferRequest { inputs: vec![signature.raw_input(contents)?], ..InferRequest::default() };
    let format = Format { default: Form::Binary, ..Format::default() };
    Ok(DecodedRequest { request, format, memory: RequestMemory::default() })
}

/// The error for `what` that exceeds the limit.
pub(super) fn too_large(what: &str, length: usize, limit: Limit) -> Error {
    Error::invalid_arg(limit.exceeded(&format!("{what} of {length} bytes")))
}

/// A member of the request, or of an input or output.
#[derive(Clone, Copy)]
enum Key {
    Id,
    Inputs,
    Outputs,
    Parameters,
    Name,
    DataType,
    Shape,
    Data,
    Other,
}

impl Key {
    fn of(key: &str) -> Self {
        match key {
            "id" => Self::Id,
            "inputs" => Self::Inputs,
            "outputs" => Self::Outputs,
            "parameters" => Self::Parameters,
            "name" => Self::Name,
            "datatype" => Self::DataType,
            "shape" => Self::Shape,
            "data" => Self::Data,
            _ => Self::Other,
        }
    }
}

/// A parameter of an input or an output.
#[derive(Clone, Copy)]
enum Parameter {
    BinaryData,
    BinaryDataSize,
    Classification,
    Region(RegionParameter),
    Other,
}

impl Parameter {
    fn of(name: &str) -> Self {
        match name {
            BINARY_DATA => Self::BinaryData,
            BINARY_DATA_SIZE => Self::BinaryDataSize,
            CLASSIFICATION => Self::Classification,
            _ => RegionParameter::named(name).map_or(Self::Other, Self::Region),
        }
    }
}

/// The JSON part while it is read.
struct RequestParts<'r> {
    signature: &'r Signature,
    regions: &'r Regions,
    memory: RequestMemory,
    request: InferRequest,
    inputs: Option<Vec<Input>>,
    outputs_seen: bool,
    parameters_seen: bool,
    id_seen: bool,
    format: Format,
}

/// One element of `inputs`.
#[derive(Default)]
struct Input {
    name: Option<String>,
    /// `Err` with the name of an unknown type.
    data_type: Option<Result<DataType, String>>,
    shape: Option<Shape>,
    data: Option<Data>,
    binary_size: Option<u64>,
    region: RegionPart,
}

enum Data {
    Decoded(Elements),
    /// The range of the data in the JSON part; its type is not known yet, or JSON cannot represent it.
    Undecoded(usize, usize),
}

/// The declared fields of an input.
struct InputHeader {
    name: String,
    data_type: DataType,
    shape: Shape,
}

impl InputHeader {
    /// The input with contents in shared memory.
    fn in_memory(self, slice: Slice, memory: &mut RequestMemory) -> Tensor {
        let buffer = memory.input(slice, self.data_type);
        let buffers = Buffers::from_iter([buffer]);
        Tensor { name: self.name, data_type: self.data_type, shape: self.shape, buffers }
    }
}

impl<'r> RequestParts<'r> {
    fn new(signature: &'r Signature, regions: &'r Regions) -> Self {
        Self {
            signature,
            regions,
            memory: RequestMemory::default(),
            request: InferRequest::default(),
            inputs: None,
            outputs_seen: false,
            parameters_seen: false,
            id_seen: false,
            format: Format::default(),
        }
    }

    /// The first of duplicate keys wins, as in the reference.
    ///
    /// # Errors
    /// The text is invalid.
    fn read(&mut self, json: &mut JsonReader<'_>) -> Result<()> {
        object(json, Key::of, |json, key| match key {
            Key::Id if !self.id_seen => {
                self.id_seen = true;
                self.request.id = text(json, "id")?;
                Ok(())
            }
            Key::Inputs if self.inputs.is_none() => {
                let mut inputs = Vec::new();
                let known = self.signature.inputs.len();
                array(json, "inputs", |json, _| {
                    check_count("inputs", inputs.len(), known)?;
                    inputs.push(Input::read(json)?);
                    Ok(())
                })?;
                self.inputs = Some(inputs);
                Ok(())
            }
            Key::Outputs if !self.outputs_seen => {
                self.outputs_seen = true;
                array(json, "outputs", |json, _| {
                    check_count("outputs", self.request.outputs.len(), self.signature.outputs.len())?;
                    self.read_output(json)
                })
            }
            Key::Parameters if !self.parameters_seen => {
                self.parameters_seen = true;
                match object(json, str::to_owned, |json, key| self.read_parameter(json, key))? {
                    true => Ok(()),
                    false => Err(Error::internal("'parameters' is not an object")),
                }
            }
            _ => skip(json),
        })?;
        json.finish().map_err(syntax)
    }

    fn read_output(&mut self, json: &mut JsonReader<'_>) -> Result<()> {
        let mut name = None;
        let mut output = RequestedOutput::default();
        let mut binary = false;
        let mut classification = None;
        let mut region = RegionPart::default();
        object(json, Key::of, |json, key| match key {
            Key::Name if name.is_none() => {
                name = Some(text(json, "name")?);
                Ok(())
            }
            Key::Parameters => object(json, Parameter::of, |json, parameter| match parameter {
                Parameter::BinaryData => {
                    binary = boolean(json, BINARY_DATA)?;
                    Ok(())
                }
                Parameter::Classification => {
                    let peek = json.peek().map_err(syntax)?;
                    classification = Some(integer(json, peek)?);
                    Ok(())
                }
                Parameter::Region(parameter) => region.read(json, parameter),
                _ => skip(json),
            })
            .map(|_| ()),
            _ => skip(json),
        })?;
        output.name = name.ok_or_else(|| Error::internal("an output lacks 'name'"))?;
        if region.is_set() && (classification.is_some() || binary) {
            return Err(Error::invalid_arg(format!(
                "output '{}': a shared memory region excludes 'classification' and 'binary_data'",
                output.name
            )));
        }
        if let Some(classes) = classification {
            let classes = classes.ok_or_else(|| {
                Error::internal(format!("'{CLASSIFICATION}' is not a non-negative integer"))
            })?;
            output.classification = u32::try_from(classes).unwrap_or(u32::MAX);
        }
        let form = match region.find(self.regions)? {
            Some(memory) => {
                self.memory.output(output.name.clone(), memory);
                Form::Region
            }
            None if binary => Form::Binary,
            None => Form::Json,
        };
        // A named output defaults to JSON regardless of the request's default.
        self.format.named.push((output.name.clone(), form));
        self.request.outputs.push(output);
        Ok(())
    }

    fn read_parameter(&mut self, json: &mut JsonReader<'_>, key: String) -> Result<()> {
        if key == BINARY_DATA_OUTPUT {
            self.format.default = if boolean(json, &key)? { Form::Binary } else { Form::Json };
            return Ok(());
        }
        set_parameter(&mut self.request, key, JsonValue(json))
    }
}

impl Input {
    fn read(json: &mut JsonReader<'_>) -> Result<Self> {
        let mut input = Self::default();
        object(json, Key::of, |json, key| match key {
            Key::Name if input.name.is_none() => {
                input.name = Some(text(json, "name")?);
                Ok(())
            }
            Key::DataType if input.data_type.is_none() => {
                let name = text(json, "datatype")?;
                input.data_type = Some(DataType::from_protocol_name(&name).ok_or(name));
                Ok(())
            }
            Key::Shape if input.shape.is_none() => {
                let mut shape = Shape::scalar();
                array(json, "shape", |json, peek| {
                    let dim = integer(json, peek)?.and_then(|dim| i64::try_from(dim).ok());
                    shape.push(dim.ok_or_else(|| {
                        Error::internal("an element of 'shape' is not a non-negative integer")
                    })?);
                    Ok(())
                })?;
                input.shape = Some(shape);
                Ok(())
            }
            Key::Data if input.data.is_none() => {
                let data = Self::read_data(json, &input.data_type).map_err(|error| match &input.name {
                    Some(name) => error.context(format_args!("input '{name}'")),
                    None => error,
                })?;
                input.data = Some(data);
                Ok(())
            }
            Key::Parameters => object(json, Parameter::of, |json, parameter| match parameter {
                Parameter::BinaryDataSize => {
                    input.binary_size = Some(count(json, BINARY_DATA_SIZE)?);
                    Ok(())
                }
                Parameter::Region(parameter) => input.region.read(json, parameter),
                _ => skip(json),
            })
            .map(|_| ()),
            _ => skip(json),
        })?;
        Ok(input)
    }

    fn read_data(json: &mut JsonReader<'_>, data_type: &Option<Result<DataType, String>>) -> Result<Data> {
        match data_type {
            Some(Ok(data_type)) if json_tensor::is_representable(*data_type) => {
                return json_tensor::decode(json, *data_type).map(Data::Decoded);
            }
            _ => {}
        }
        json.peek().map_err(syntax)?;
        let start = json.position();
        skip(json)?;
        Ok(Data::Undecoded(start, json.position()))
    }

    /// The input's name, type and shape.
    fn declared(&mut self) -> Result<InputHeader> {
        let given = [self.data.is_some(), self.binary_size.is_some(), self.region.is_set()];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(Error::invalid_arg(
                "an input takes exactly one of 'data', parameter 'binary_data_size' and parameter \
                 'shared_memory_region'",
            ));
        }
        let missing = |field| Error::internal(format!("an input lacks '{field}'"));
        let name = self.name.take().ok_or_else(|| missing("name"))?;
        let data_type = self
            .data_type
            .take()
            .ok_or_else(|| missing("datatype"))?
            .map_err(|unknown| unknown_data_type(&name, &unknown))?;
        let shape = self.shape.take().ok_or_else(|| missing("shape"))?;
        Ok(InputHeader { name, data_type, shape })
    }

    fn into_tensor(
        self,
        InputHeader { name, data_type, shape }: InputHeader,
        header: &[u8],
        body: &mut RequestBody,
        model: &str,
        max_input: Limit,
    ) -> Result<Tensor> {
        let buffers = match (self.binary_size, self.data) {
            (Some(size), _) => binary(body, size, &name, model)?,
            (None, Some(data)) => data.into_buffers(&name, data_type, &shape, header, max_input)?,
            (None, None) => Buffers::new(),
        };
        Ok(Tensor { name, data_type, shape, buffers })
    }
}

fn binary(body: &mut RequestBody, size: u64, name: &str, model: &str) -> Result<Buffers> {
    let left = body.len();
    usize::try_from(size).ok().and_then(|size| take(body, size).ok()).ok_or_else(|| {
        Error::invalid_arg(format!(
            "model '{model}', input '{name}': binary_data_size is {size}, but only {left} bytes are left in the body"
        ))
    })
}

impl Data {
    fn into_buffers(
        self,
        name: &str,
        data_type: DataType,
        shape: &Shape,
        header: &[u8],
        max_input: Limit,
    ) -> Result<Buffers> {
        let count = shape
            .element_count()
            .ok_or_else(|| Error::invalid_arg(format!("input '{name}': invalid shape {shape}")))?;
        if !json_tensor::is_representable(data_type) {
            return Err(Error::invalid_arg(format!(
                "input '{name}': JSON cannot represent {data_type}; send binary data"
            )));
        }
        // 'data' is ignored then, as in the reference. Inputs without dimensions are refused when shapes are checked.
        if count == 0 || shape.is_empty() {
            return Ok(Buffers::new());
        }
        let elements = match self {
            Self::Decoded(elements) => elements,
            Self::Undecoded(start, end) => {
                let text = header.get(start..end).unwrap_or_default();
                json_tensor::decode(&mut JsonReader::new(text), data_type)?
            }
        };
        if elements.count != count {
            let message = format!(
                "input '{name}': 'data' has {} elements, but shape {shape} needs {count}",
                elements.count
            );
            // The reference's codes.
            return Err(match data_type {
                DataType::Bytes => Error::invalid_arg(message),
                _ => Error::internal(message),
            });
        }
        if elements.contents.len() > max_input.bytes {
            return Err(too_large(&format!("input '{name}'"), elements.contents.len(), max_input));
        }
        Ok(Buffers::from_iter([Buffer::host(elements.contents)]))
    }
}

//! Inference requests and their responses.

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::SharedMemory;
use crate::tensor::Region;
use crate::{Error, Tensor};

/// Parameters of requests, responses and loads.
pub type Parameters = BTreeMap<String, Parameter>;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    Text(String),
}

impl From<bool> for Parameter {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Parameter {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Parameter {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

impl From<&str> for Parameter {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Parameter {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

/// A request to a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) id: String,
    pub(crate) parameters: Parameters,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<RequestedOutput>,
    pub(crate) deadline: Option<Duration>,
}

impl InferRequest {
    /// A request to a model, which returns all of its outputs.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// Requests a version. Default: the server chooses.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Names the request; its responses have the same id.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Adds an input.
    #[must_use]
    pub fn input(mut self, tensor: Tensor) -> Self {
        self.inputs.push(tensor);
        self
    }

    /// Adds an output to those that are requested.
    #[must_use]
    pub fn output(mut self, output: impl Into<RequestedOutput>) -> Self {
        self.outputs.push(output.into());
        self
    }

    /// Sets a parameter.
    #[must_use]
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<Parameter>) -> Self {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Makes the request a part of a sequence, whose name is a number other than 0 or a text.
    #[must_use]
    pub fn sequence(self, id: impl Into<SequenceId>, is_first: bool, is_last: bool) -> Self {
        self.parameter("sequence_id", id.into().0)
            .parameter("sequence_start", is_first)
            .parameter("sequence_end", is_last)
    }

    /// Limits the time until the response, further attempts included, in place of the client's deadline. A server learns of it
    /// over gRPC.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// The name of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceId(Parameter);

impl From<u32> for SequenceId {
    fn from(id: u32) -> Self {
        Self(Parameter::Int(id.into()))
    }
}

impl From<i64> for SequenceId {
    fn from(id: i64) -> Self {
        Self(Parameter::Int(id))
    }
}

impl From<&str> for SequenceId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

/// An output to be returned.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    pub(crate) name: String,
    pub(crate) classes: Option<u32>,
    pub(crate) region: Option<Region>,
}

impl RequestedOutput {
    /// An output as it is.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), classes: None, region: None }
    }

    /// The `count` best classes in place of the values, as texts `VALUE:INDEX:LABEL`.
    #[must_use]
    pub fn classes(mut self, count: u32) -> Self {
        self.classes = Some(count);
        self
    }

    /// Places the output in a registered region of shared memory, at `offset`, where it may take `size` bytes.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn in_region(mut self, memory: &SharedMemory, offset: usize, size: usize) -> Self {
        self.region = Some(Region { name: memory.name().to_owned(), offset, size });
        self
    }
}

/// The region that a request names for an output. Servers need not repeat it in the response.
pub(crate) fn placement<'a>(requested: &'a [RequestedOutput], output: &str) -> Option<&'a Region> {
    requested.iter().find(|requested| requested.name == output)?.region.as_ref()
}

impl From<&str> for RequestedOutput {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// A response of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// The model.
    pub model: String,
    /// The version that executed the request.
    pub version: String,
    /// The id of the request.
    pub id: String,
    /// Parameters of the response.
    pub parameters: Parameters,
    /// The outputs.
    pub outputs: Vec<Tensor>,
}

impl InferResponse {
    /// The output with this name.
    ///
    /// # Errors
    /// The response has no such output.
    pub fn output(&self, name: &str) -> Result<&Tensor, Error> {
        self.outputs.iter().find(|output| output.name() == name).ok_or_else(|| {
            let names = self.outputs.iter().map(Tensor::name).collect::<Vec<_>>().join(", ");
            Error::invalid(format!("model '{}' returned no output '{name}' (outputs: {names})", self.model))
        })
    }

    /// Whether this is the last response to its request. Servers mark it in streams if the request has the parameter
    /// `triton_enable_empty_final_response`.
    pub fn is_final(&self) -> bool {
        self.parameters.get("triton_final_response") == Some(&Parameter::Bool(true))
    }
}

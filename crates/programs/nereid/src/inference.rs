//! Requests and responses of a server within a program.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use nereid_core::ResponseStream;
use nereid_core::backend_api::{
    CorrelationId, InferRequest, ParameterValue, RequestedOutput, Response, Result, SequenceFlags, Tensor,
};

/// A request to a model.
#[derive(Default)]
#[must_use]
pub struct Request {
    pub(crate) model: String,
    pub(crate) version: Option<u64>,
    pub(crate) inner: InferRequest,
}

impl Request {
    /// A request to the version of a model that its version policy serves by default.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// Asks this version of the model.
    pub fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// The request's id, which comes back with traces and in the log.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.inner.id = id.into();
        self
    }

    /// Adds an input.
    pub fn input(mut self, input: Tensor) -> Self {
        self.inner.inputs.push(input);
        self
    }

    /// Requests an output by its name. Without any, all are returned.
    pub fn output(mut self, name: impl Into<String>) -> Self {
        self.inner.outputs.push(RequestedOutput::new(name));
        self
    }

    /// Sets a parameter for the backend.
    pub fn parameter(mut self, name: impl Into<String>, value: ParameterValue) -> Self {
        self.inner.parameters.set(name.into(), value);
        self
    }

    /// Makes the request part of the sequence `id`, which must not be 0. `start` and `end` mark its first and last
    /// request.
    pub fn sequence(mut self, id: u64, start: bool, end: bool) -> Self {
        self.inner.correlation_id = CorrelationId::Number(id);
        self.inner.sequence = SequenceFlags { start, end };
        self
    }

    /// Sets the priority, 1 being the highest; 0 for the model's default.
    pub fn priority(mut self, priority: u64) -> Self {
        self.inner.priority = priority;
        self
    }

    /// Sets the maximum time in the queue, if the model's queue policy lets requests override it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.timeout = Some(timeout);
        self
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Request");
        debug.field("model", &self.model).field("version", &self.version).field("id", &self.inner.id);
        debug.field("inputs", &self.inner.inputs).finish_non_exhaustive()
    }
}

/// The responses to a request, as they arrive. Dropping it cancels the request.
pub struct Responses(pub(crate) ResponseStream);

impl Responses {
    /// The next response, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Response>> {
        self.0.next().await
    }

    /// The name of the model that answers.
    pub fn model_name(&self) -> &str {
        self.0.model_name()
    }

    /// The version that answers.
    pub fn model_version(&self) -> u64 {
        self.0.model_version()
    }
}

impl Stream for Responses {
    type Item = Result<Response>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("model", &self.model_name()).finish_non_exhaustive()
    }
}

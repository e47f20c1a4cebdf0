//! An inference request: as built by every protocol face, and as owned by a backend.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{
    Buffers, Cancellation, Error, ModelCapabilities, OutputAllocator, Parameters, RequestTrace, Responder,
    Response, ResponseSink, Result, SequenceStates, Tensor, Turn,
};

/// A client's request to a model. Every face builds this and passes it to the server together with the model.
#[derive(Default)]
pub struct InferRequest {
    /// The client's request id; may be empty.
    pub id: String,
    /// The inputs, in the client's order.
    pub inputs: Vec<Tensor>,
    /// Contents of inputs for instances under one host policy only.
    pub policy_contents: Vec<PolicyContents>,
    /// The requested outputs; empty for all.
    pub outputs: Vec<RequestedOutput>,
    /// Parameters for the backend.
    pub parameters: Parameters,
    /// The sequence the request belongs to.
    pub correlation_id: CorrelationId,
    /// The request's place in its sequence.
    pub sequence: SequenceFlags,
    /// 0 for the model's default level; 1 is the highest.
    pub priority: u64,
    /// The longest wait in the queue, if the model's queue policy allows an override.
    pub timeout: Option<Duration>,
    /// The client's deadline, if its protocol has one.
    pub deadline: Option<Instant>,
    /// The sender, which shares the model's queue with others.
    pub flow: Flow,
    /// Provides memory for the outputs; `None` leaves that to the backend.
    pub allocator: Option<Arc<dyn OutputAllocator>>,
    /// The trace, if the request is traced.
    pub trace: Option<RequestTrace>,
}

/// The requests of one sender. Flows that wait in the same queue share it by their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Distinguishes senders; 0 for unknown ones.
    pub id: u64,
    /// The flow's share of the queue, relative to the weights of other flows.
    pub weight: NonZeroU32,
}

impl Default for Flow {
    fn default() -> Self {
        Self { id: 0, weight: NonZeroU32::MIN }
    }
}

/// Contents of an input for instances under one host policy: the same values as for all instances, in memory nearer
/// to these. They may be ignored.
#[derive(Clone)]
pub struct PolicyContents {
    /// Name of the input.
    pub input: String,
    /// Name of the host policy.
    pub policy: String,
    /// The contents; as long as the common contents.
    pub buffers: Buffers,
}

/// An output that the client requests by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Name of the output.
    pub name: String,
    /// If not 0, the answer contains this many of the highest values, with their labels, instead of the tensor.
    pub classification: u32,
}

impl RequestedOutput {
    /// The output as the model returns it.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), classification: 0 }
    }
}

/// The sequence a request belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// No sequence.
    #[default]
    None,
    /// A number, not 0.
    Number(u64),
    /// Text, not empty.
    Text(String),
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("without an id"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "'{text}'"),
        }
    }
}

/// A request's place in its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceFlags {
    /// First request of the sequence.
    pub start: bool,
    /// Last request of the sequence.
    pub end: bool,
}

/// A request that a backend owns.
///
/// The backend may keep it after `execute` returns. Dropping it releases the inputs; if it is unanswered, the client
/// gets an error, so no request is lost.
pub struct Request {
    // Dropped before the request: the trace records the answer before the end.
    responder: Responder,
    request: InferRequest,
    batch_size: usize,
    // Dropped after the responder: the request is answered before its turn ends.
    turn: Option<Turn>,
    repeated: bool,
}

impl Request {
    /// A request of `batch_size` items that is answered through `responder`. For the server.
    pub fn new(request: InferRequest, batch_size: usize, responder: Responder) -> Self {
        Self { request, batch_size, responder, turn: None, repeated: false }
    }

    /// The name of the executing model; empty if the server does not take the answers.
    pub fn model_name(&self) -> &str {
        self.responder.sink().model_name()
    }

    /// Number of items in the batch dimension; 1 for a model without batching.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The input of that name.
    ///
    /// # Errors
    /// `InvalidArg` if the request lacks it.
    pub fn input(&self, name: &str) -> Result<&Tensor> {
        self.request
            .inputs
            .iter()
            .find(|input| input.name == name)
            .ok_or_else(|| Error::invalid_arg(format!("the request lacks input '{name}'")))
    }

    /// Whether an input is in device memory.
    pub fn has_inputs_on_device(&self) -> bool {
        self.request.inputs.iter().any(Tensor::is_on_device)
    }

    /// Whether executing it involves copies from or to a device.
    pub fn touches_device(&self) -> bool {
        self.has_inputs_on_device()
            || self.request.allocator.as_ref().is_some_and(|allocator| allocator.places_on_device())
    }

    /// Whether a model with these capabilities does not take an input where it is.
    pub(crate) fn has_inputs_to_copy(&self, capabilities: &ModelCapabilities) -> bool {
        self.request.inputs.iter().any(|input| input.is_to_be_copied(capabilities))
    }

    /// Copies inputs that a model with these capabilities does not take where they are, and checks what could not be checked
    /// before.
    pub(crate) fn copy_inputs_for(&mut self, capabilities: &ModelCapabilities) -> Result<()> {
        for input in self.request.inputs.iter_mut().filter(|input| input.is_to_be_copied(capabilities)) {
            input.copy_to_host()?;
            input.copy_shared();
            input.check_contents()?;
        }
        Ok(())
    }

    /// Whether the client requests this output.
    pub fn wants(&self, output: &str) -> bool {
        if self.is_filler() {
            return false;
        }
        self.request.outputs.is_empty() || self.request.outputs.iter().any(|wanted| wanted.name == output)
    }

    /// Answers the request. To answer after the request itself is released, use
    /// [`into_responder`](Self::into_responder).
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// A handle to wait for the cancellation of the request. It may outlive the request.
    pub fn cancellation(&self) -> Cancellation {
        self.responder.cancellation()
    }

    /// Replaces the sink of the answers, and returns the new one. For the server.
    pub fn redirect_answers<S: ResponseSink>(
        &mut self,
        redirect: impl FnOnce(Arc<dyn ResponseSink>) -> Arc<S>,
    ) -> Arc<S> {
        self.responder.redirect(redirect)
    }

    /// Releases the request and keeps its responder.
    pub fn into_responder(self) -> Responder {
        self.responder
    }

    /// Splits the request into the client's part, the responder, and its turn in a sequence.
    pub fn into_parts(self) -> (InferRequest, Responder, Option<Turn>) {
        (self.request, self.responder, self.turn)
    }

    /// Assembles a request from its parts.
    pub fn from_parts(
        request: InferRequest,
        batch_size: usize,
        responder: Responder,
        turn: Option<Turn>,
    ) -> Self {
        Self { request, batch_size, responder, turn, repeated: false }
    }

    /// The states of the request's sequence, if its model has any.
    pub fn states(&self) -> Option<&SequenceStates> {
        self.turn.as_ref()?.states().map(|states| &**states)
    }

    /// Whether this request only pads a batch whose other slots must stay in place. No client waits for it.
    pub fn is_filler(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::is_filler)
    }

    /// Returns the request to the scheduler, to be executed again later. If its model does not iterate (see
    /// `iterative_sequence`), it is released.
    pub fn reschedule(mut self) {
        self.repeated = true;
        match self.turn.take() {
            Some(turn) => turn.reschedule(self),
            None => drop(self),
        }
    }

    /// Whether the request was executed before and rescheduled.
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Begins the request's turn in a sequence. For the server.
    pub fn begin_turn(&mut self, turn: Turn) {
        self.turn = Some(turn);
    }

    /// Takes the request's turn in a sequence. The next request of the sequence may execute once the turn is dropped.
    pub fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }

    /// Sets the request's sequence and its place in it. For the server.
    pub fn set_sequence(&mut self, sequence: CorrelationId, flags: SequenceFlags) {
        self.request.correlation_id = sequence;
        self.request.sequence = flags;
    }

    /// Adds or replaces an input that the client did not send. For the server.
    pub fn set_input(&mut self, tensor: Tensor) {
        match self.request.inputs.iter_mut().find(|input| input.name == tensor.name) {
            Some(input) => *input = tensor,
            None => self.request.inputs.push(tensor),
        }
    }

    /// Sends the only answer and releases the request.
    pub fn answer(self, outcome: Result<Response>) {
        self.responder.finish_with(outcome);
    }
}

impl Deref for Request {
    type Target = InferRequest;

    fn deref(&self) -> &InferRequest {
        &self.request
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("model", &self.model_name())
            .field("id", &self.request.id)
            .field("batch_size", &self.batch_size)
            .field("inputs", &self.request.inputs)
            .finish_non_exhaustive()
    }
}

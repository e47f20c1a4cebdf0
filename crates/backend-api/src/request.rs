//! An inference request: what every face builds, and the form in which a backend owns it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Buffers, Cancellation, Error, OutputAllocator, Parameters, RequestTrace, Responder, Response,
    ResponseSink, Result, SequenceStates, Tensor, Turn,
};

/// What a client asks of a model. Every face builds this and hands it to the server together with the model.
#[derive(Default)]
pub struct InferRequest {
    /// The client's id for the request; empty if it gave none.
    pub id: String,
    /// The inputs, in the client's order.
    pub inputs: Vec<Tensor>,
    /// Contents of inputs for instances under some host policies alone.
    pub policy_contents: Vec<PolicyContents>,
    /// The outputs wanted; empty for all of them.
    pub outputs: Vec<RequestedOutput>,
    /// Values for the backend that are not tensors.
    pub parameters: Parameters,
    /// The sequence the request belongs to.
    pub correlation_id: CorrelationId,
    /// Where in its sequence the request stands.
    pub sequence: SequenceFlags,
    /// 0 for the model's default level; 1 is the most urgent.
    pub priority: u64,
    /// How long the request may wait in the queue, if the model's queue policy lets the request say so.
    pub timeout: Option<Duration>,
    /// Places the outputs; `None` leaves that to the backend.
    pub allocator: Option<Arc<dyn OutputAllocator>>,
    /// Its trace, if it is traced.
    pub trace: Option<RequestTrace>,
}

/// Contents of an input for instances under one host policy, beside those for all. They are the same values, where such
/// an instance has them nearer: whoever looks at the contents for all need not know of them.
#[derive(Clone)]
pub struct PolicyContents {
    /// Name of the input.
    pub input: String,
    /// Name of the host policy.
    pub policy: String,
    /// The contents; as long as those for all.
    pub buffers: Buffers,
}

/// An output the client names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Name of the output.
    pub name: String,
    /// If not 0, the output is answered as its this many highest values with their labels.
    pub classification: u32,
}

impl RequestedOutput {
    /// The output as the model gives it.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), classification: 0 }
    }
}

/// Which sequence a request belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// To none.
    #[default]
    None,
    /// A number other than 0.
    Number(u64),
    /// Text that is not empty.
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

/// Where in its sequence a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceFlags {
    /// It is the first.
    pub start: bool,
    /// It is the last.
    pub end: bool,
}

/// A request in a backend's hands.
///
/// The backend owns it and may keep it after `execute` returns. Dropping it releases the inputs; dropping it before
/// its final answer answers with an error, so that no request is lost.
pub struct Request {
    // Before the request: its trace hears of the answer before it hears of the end.
    responder: Responder,
    request: InferRequest,
    batch_size: usize,
    // After the way to answer: who waits for the turn to be over finds the request answered.
    turn: Option<Turn>,
    repeated: bool,
}

impl Request {
    /// A request of `batch_size` items that is answered through `responder`. Made by the server.
    pub fn new(request: InferRequest, batch_size: usize, responder: Responder) -> Self {
        Self { request, batch_size, responder, turn: None, repeated: false }
    }

    /// The name of the model that executes it; empty where its answers are not the server's to take.
    pub fn model_name(&self) -> &str {
        self.responder.sink().model_name()
    }

    /// How many items of the batch dimension it holds; 1 for a model without batching.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The input of that name.
    ///
    /// # Errors
    /// `InvalidArg` if the request has none.
    pub fn input(&self, name: &str) -> Result<&Tensor> {
        self.request
            .inputs
            .iter()
            .find(|input| input.name == name)
            .ok_or_else(|| Error::invalid_arg(format!("the request lacks input '{name}'")))
    }

    /// Whether an input lies in a device's memory.
    pub fn has_inputs_on_device(&self) -> bool {
        self.request.inputs.iter().any(Tensor::is_on_device)
    }

    /// Whether it takes copies from or to a device to execute it.
    pub fn touches_device(&self) -> bool {
        self.has_inputs_on_device()
            || self.request.allocator.as_ref().is_some_and(|allocator| allocator.places_on_device())
    }

    /// Brings the inputs where the processor can read them, and checks what could not be checked before.
    pub(crate) fn bring_inputs_to_host(&mut self) -> Result<()> {
        for input in self.request.inputs.iter_mut().filter(|input| input.is_on_device()) {
            input.bring_to_host()?;
            input.check_contents()?;
        }
        Ok(())
    }

    /// Whether the client wants the output of that name.
    pub fn wants(&self, output: &str) -> bool {
        if self.is_filler() {
            return false;
        }
        self.request.outputs.is_empty() || self.request.outputs.iter().any(|wanted| wanted.name == output)
    }

    /// Where answers go. To answer after the request itself is released, take it with
    /// [`into_responder`](Self::into_responder).
    pub fn responder(&self) -> &Responder {
        &self.responder
    }

    /// Its cancellation, to be waited for. It may outlive the request.
    pub fn cancellation(&self) -> Cancellation {
        self.responder.cancellation()
    }

    /// Puts another receiving end of answers in the place of the one it has. Made for the server.
    pub fn redirect_answers(
        &mut self,
        redirect: impl FnOnce(Arc<dyn ResponseSink>) -> Arc<dyn ResponseSink>,
    ) {
        self.responder.redirect(redirect);
    }

    /// Releases the request and keeps the way to answer it.
    pub fn into_responder(self) -> Responder {
        self.responder
    }

    /// What the client asked for, the way to answer it and its turn in a sequence, apart.
    pub fn into_parts(self) -> (InferRequest, Responder, Option<Turn>) {
        (self.request, self.responder, self.turn)
    }

    /// A request put together again from its parts.
    pub fn from_parts(
        request: InferRequest,
        batch_size: usize,
        responder: Responder,
        turn: Option<Turn>,
    ) -> Self {
        Self { request, batch_size, responder, turn, repeated: false }
    }

    /// The states of its sequence, if its model has any.
    pub fn states(&self) -> Option<&SequenceStates> {
        self.turn.as_ref()?.states().map(|states| &**states)
    }

    /// Whether nobody made it: it fills a place in a batch whose other places have to stay what they are. Nobody wants
    /// an answer to it.
    pub fn is_filler(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::is_filler)
    }

    /// Hands it back without releasing it: it comes again later. Where its model does not iterate (see
    /// `iterative_sequence`) it is released.
    pub fn hand_back(mut self) {
        self.repeated = true;
        match self.turn.take() {
            Some(turn) => turn.hand_back(self),
            None => drop(self),
        }
    }

    /// Whether it was executed before, and handed back.
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Its turn in a sequence begins. Made for the server.
    pub fn begin_turn(&mut self, turn: Turn) {
        self.turn = Some(turn);
    }

    /// Puts it into a sequence, or another place of its sequence. Made for the server.
    pub fn enrol(&mut self, sequence: CorrelationId, flags: SequenceFlags) {
        self.request.correlation_id = sequence;
        self.request.sequence = flags;
    }

    /// Gives it an input that the client did not give, in the place of one of that name. Made for the server.
    pub fn give_input(&mut self, tensor: Tensor) {
        match self.request.inputs.iter_mut().find(|input| input.name == tensor.name) {
            Some(input) => *input = tensor,
            None => self.request.inputs.push(tensor),
        }
    }

    /// Gives the one and final answer, and releases the request.
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

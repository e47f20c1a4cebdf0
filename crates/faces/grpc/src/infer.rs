//! Inference over gRPC: from a message to a request, and from a response to a reply.

mod contents;
mod decode;
mod encode;
mod parameters;
mod region;

use std::time::Instant;

pub(crate) use contents::joined_contents;
use http::Extensions;
use nereid_core::backend_api::{InferRequest, Response, Result, Tensor};
use nereid_core::{Caller, ResolvedModel, ResponseStream, Scope, ScopedName};
use nereid_protocol::{Action, Identity, resolve_single};
use nereid_shared_memory::{Regions, RequestMemory};
use tonic::metadata::MetadataMap;

use crate::codec::{InferMessage, Reply};
use crate::infer::decode::DecodedRequest;
use crate::metadata::version;
use crate::proto::ModelInferRequest;
use crate::tracing::{ArrivalTime, CallTrace};
use crate::{Face, deadline, forward};

/// Converts a message to a request.
///
/// # Errors
/// The message is not a valid request.
pub(crate) fn decoded(message: InferMessage, regions: &Regions) -> Result<InferRequest> {
    decode::decode(message, regions).map(|decoded| decoded.request)
}

/// A request that the server has.
pub(crate) struct SubmittedRequest {
    pub answers: ResponseStream,
    /// Whether the end of its answers needs a separate message, if the last answer did not mark it.
    pub empty_final: bool,
    /// Length of its inputs in bytes.
    pub byte_size: usize,
    /// The call's trace, if sampled.
    pub trace: Option<CallTrace>,
    memory: RequestMemory,
}

impl SubmittedRequest {
    /// Encodes one of its responses as a message.
    ///
    /// # Errors
    /// The response cannot be encoded.
    pub(crate) fn encode(&self, response: Response) -> Result<Reply> {
        let reply = encode::encode(&self.answers, response)?;
        self.memory.check()?;
        Ok(reply)
    }
}

/// The context of a call, without its messages.
pub(crate) struct CallContext {
    pub metadata: MetadataMap,
    /// Arrival time, if tracing is on.
    pub arrived: Option<ArrivalTime>,
    /// The sender.
    pub caller: Identity,
    /// The models that the sender may run.
    pub scope: Scope,
}

impl CallContext {
    pub(crate) fn new(face: &Face, metadata: MetadataMap, extensions: &Extensions) -> Self {
        let caller = extensions.get().cloned().unwrap_or_default();
        let scope = face.options.access.scope(&caller, Action::Infer);
        Self { metadata, arrived: extensions.get().copied(), caller, scope }
    }
}

/// Hands a request to a model, after `prepare` added the call's parameters and deadline.
///
/// # Errors
/// The request is invalid.
pub(crate) fn submit(
    face: &Face,
    model: &ResolvedModel,
    mut message: InferMessage,
    caller: &Identity,
    trace: Option<&CallTrace>,
    prepare: impl FnOnce(&mut InferRequest) -> Result<()>,
) -> Result<SubmittedRequest> {
    let regions = match face.options.access.permits(caller, Action::UseRegions, None) {
        true => &face.options.regions,
        false => &face.no_regions,
    };
    let caller = Caller::default().with_principal(caller.principal.clone());
    let caller = caller.with_body(std::mem::take(&mut message.share));
    let caller = caller.with_admission(message.admission.take());
    let DecodedRequest { mut request, memory, empty_final } = decode::decode(message, regions)?;
    prepare(&mut request)?;
    let byte_size = request.inputs.iter().map(Tensor::byte_size).sum();
    request.trace = trace.map(CallTrace::request);
    let answers = face.server.infer(model, request, caller)?;
    Ok(SubmittedRequest { answers, empty_final, byte_size, trace: trace.cloned(), memory })
}

/// Executes a request with one response. Returns the answer with its trace, if sampled. The message is moved out of its
/// slot: it is large, and each async function that held it would reserve space for it.
///
/// # Errors
/// The request is invalid, or its execution failed.
pub(crate) async fn answer(
    face: &Face,
    call: &CallContext,
    message: &mut InferMessage,
) -> (Result<Reply>, Option<CallTrace>) {
    // Resolved first: a request to an unknown model is not decoded.
    let model = match resolve(face, call, message).await {
        Ok(model) => model,
        Err(error) => return (Err(error), None),
    };
    let trace = call.arrived.and_then(|arrived| CallTrace::draw(face, message, &call.metadata, arrived));
    let outcome = answer_with(face, &model, call, message, trace.as_ref()).await;
    if let Some(trace) = &trace {
        trace.begin();
    }
    (outcome, trace)
}

async fn resolve(face: &Face, call: &CallContext, message: &ModelInferRequest) -> Result<ResolvedModel> {
    let version = version(&message.model_version, &message.model_name)?;
    let head = || forward::head_of(&face.options, &call.metadata, message);
    let name = ScopedName::new(&message.model_name, &call.scope);
    resolve_single(&face.server, name, version, head, "ModelStreamInfer").await
}

async fn answer_with(
    face: &Face,
    model: &ResolvedModel,
    call: &CallContext,
    message: &mut InferMessage,
    trace: Option<&CallTrace>,
) -> Result<Reply> {
    let prepare = |request: &mut InferRequest| {
        request.deadline =
            deadline::of(call.metadata.as_ref()).and_then(|limit| Instant::now().checked_add(limit));
        forward::headers(&face.options, &call.metadata, &mut request.parameters)
    };
    let message = std::mem::take(message);
    let mut submitted = submit(face, model, message, &call.caller, trace, prepare)?;
    let response = submitted.answers.single().await;
    if let Some(trace) = trace {
        trace.answered();
    }
    submitted.encode(response?)
}

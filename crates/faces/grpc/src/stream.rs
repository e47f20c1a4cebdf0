//! A stream of inference requests and the stream of their answers.
//!
//! Several requests may be in flight. Ordinary models answer in the order of the requests, decoupled models as soon as
//! a response is ready. An error is a message like any other and does not end the stream, unless the client opts in to
//! that.
//!
//! The stream has no task of its own: it reads requests while its answers are polled, which happens while the client
//! reads. So flow control holds back a client that floods the stream or does not read. Dropping the stream cancels its
//! requests.

mod answers;
mod load;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::stream::{SelectAll, Stream, StreamExt};
use nereid_core::backend_api::{Error, Parameters, Result};
use nereid_core::{ResolveFuture, ResolvedModel, Scope, ScopedName};
use nereid_protocol::{Action, Identity};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;
use tonic::metadata::MetadataMap;

use self::answers::{Decoupled, Outcome, RefusedRequest, Single};
use self::load::Load;
use crate::codec::{InferMessage, StreamReply};
use crate::infer::{self, CallContext, SubmittedRequest};
use crate::metadata::version;
use crate::proto::ModelInferRequest;
use crate::tracing::{ArrivalTime, CallTrace};
use crate::{Face, deadline, forward, status};

/// Header by which a client opts in to ending the stream at the first execution error, with the error's status.
/// Requests refused before execution are still answered in the stream, as in Triton.
pub(crate) const END_AT_ERROR: &str = "triton_grpc_error";

/// A message of the stream, or the status it ends with.
type Item = std::result::Result<StreamReply, Status>;

/// The answers to a stream of requests.
pub(crate) struct InferStream<R> {
    face: Arc<Face>,
    requests: R,
    /// The request that was read last, while its model is resolved.
    resolving: Option<(InferMessage, ResolveFuture)>,
    /// Whether further requests may come.
    reading: bool,
    /// Whether the requests ended because the server shuts down.
    cut_off: bool,
    /// The stream's headers that are forwarded to models with each request.
    forwarded: Result<Parameters>,
    ends_at_error: bool,
    load: Load,
    /// Refused requests to decoupled models.
    refused: VecDeque<RefusedRequest>,
    /// Answers of non-decoupled models in the order of the requests, refused ones included.
    single: VecDeque<QueuedAnswer>,
    /// Responses of decoupled models.
    decoupled: SelectAll<Decoupled>,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Ends when the client waits no longer.
    limit: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// The stream's headers, for the traces of its requests.
    metadata: MetadataMap,
    /// The sender of the requests.
    caller: Identity,
    /// When the stream began to wait for its next request, if tracing was on then.
    awaited: Option<ArrivalTime>,
    /// Trace of the message being sent.
    sending: Option<CallTrace>,
}

enum QueuedAnswer {
    Refused(RefusedRequest),
    Waiting(Single),
}

impl<R> InferStream<R>
where
    R: Stream<Item = std::result::Result<InferMessage, Status>> + Unpin,
{
    /// Serves `requests` of a call until the server shuts down. Tracing counts the wait for the first one from the
    /// call's arrival.
    pub(crate) fn new(face: Arc<Face>, call: CallContext, requests: R) -> Self {
        let CallContext { metadata, arrived, caller, .. } = call;
        let mut parameters = Parameters::default();
        let forwarded = forward::headers(&face.options, &metadata, &mut parameters);
        let ends_at_error =
            metadata.get(END_AT_ERROR).is_some_and(|value| value.as_encoded_bytes() == b"true");
        let limit = deadline::of(metadata.as_ref());
        Self {
            requests,
            resolving: None,
            reading: true,
            cut_off: false,
            forwarded: forwarded.map(|()| parameters),
            ends_at_error,
            load: Load::default(),
            refused: VecDeque::new(),
            single: VecDeque::new(),
            decoupled: SelectAll::new(),
            shutdown: Box::pin(face.shutdown.clone().cancelled_owned()),
            limit: limit.map(|limit| Box::pin(sleep(limit))),
            ended: false,
            metadata,
            caller,
            awaited: arrived,
            sending: None,
            face,
        }
    }

    /// Polls for the next answer.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(refused) = self.refused.pop_front() {
            return Poll::Ready(refused.outcome);
        }
        if let Some(QueuedAnswer::Waiting(first)) = self.single.front_mut() {
            if let Poll::Ready(outcome) = first.poll(context) {
                self.single.pop_front();
                return Poll::Ready(outcome);
            }
        } else if let Some(QueuedAnswer::Refused(refused)) = self.single.pop_front() {
            return Poll::Ready(refused.outcome);
        }
        match self.decoupled.poll_next_unpin(context) {
            Poll::Ready(Some(outcome)) => Poll::Ready(outcome),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Accepts the next request if the load permits. Ready when one was accepted or the requests ended.
    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        if !self.reading || self.load.is_full() {
            return Poll::Pending;
        }
        // The budget is nearly exhausted: wait for an answer, which frees some, instead of failing the stream.
        if self.face.server.bodies().is_scarce() && !self.load.is_empty() {
            return Poll::Pending;
        }
        if self.shutdown.as_mut().poll(context).is_ready() {
            (self.reading, self.cut_off) = (false, true);
            return Poll::Ready(Ok(()));
        }
        if self.resolving.is_none() {
            match ready!(self.requests.poll_next_unpin(context)) {
                Some(Ok(mut message)) => match self.admit(&mut message) {
                    Ok((version, scope)) => {
                        let head = || forward::head_of(&self.face.options, &self.metadata, &message);
                        let name = ScopedName::new(&message.model_name, &scope);
                        let resolving = self.face.server.resolve_with(name, version, head);
                        self.resolving = Some((message, resolving));
                    }
                    Err(error) => self.take(message, Err(error)),
                },
                Some(Err(status)) => return Poll::Ready(Err(status)),
                None => self.reading = false,
            }
        }
        if let Some((message, mut resolving)) = self.resolving.take() {
            match Pin::new(&mut resolving).poll(context) {
                Poll::Ready(model) => self.take(message, model),
                Poll::Pending => {
                    self.resolving = Some((message, resolving));
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The version that a request means, and the models that its sender may run, if it may run the model. A refusal answers the
    /// request alone.
    fn admit(&self, message: &mut InferMessage) -> Result<(Option<u64>, Scope)> {
        let model = &message.model_name;
        // The rules may change while the stream is open.
        let permitted = self.face.options.access.check(&self.caller, Action::Infer, Some(model));
        let scope = self.face.options.access.scope(&self.caller, Action::Infer);
        let admitted = permitted.and_then(|()| self.face.admit(&self.caller, message, &scope));
        message.admission =
            admitted.map_err(|denied| Error::unavailable(status::denied(&denied).message().to_owned()))?;
        Ok((version(&message.model_version, &message.model_name)?, scope))
    }

    /// Hands a request to its model.
    fn take(&mut self, message: InferMessage, model: Result<ResolvedModel>) {
        let (id, version) = (message.id.clone(), message.model_version.clone());
        // Unknown if the model does not exist.
        let decoupled = model.as_ref().is_ok_and(|model| model.is_decoupled());
        let trace = if model.is_ok() { self.draw(&message) } else { None };
        let submitted = model.and_then(|model| self.submit(&model, message, trace.as_ref()));
        let share = self.load.share(submitted.as_ref().map_or(0, |submitted| submitted.byte_size));
        match submitted {
            Ok(submitted) if decoupled => self.decoupled.push(Decoupled::new(submitted, version, share)),
            Ok(submitted) => {
                self.single.push_back(QueuedAnswer::Waiting(Single::new(submitted, version, share)))
            }
            Err(error) if decoupled => self.refused.push_back(RefusedRequest::new(&id, &error, share)),
            Err(error) => {
                self.single.push_back(QueuedAnswer::Refused(RefusedRequest::new(&id, &error, share)))
            }
        }
    }

    /// Draws whether a request is traced.
    fn draw(&mut self, message: &ModelInferRequest) -> Option<CallTrace> {
        if !self.face.server.trace().is_on() {
            self.awaited = None;
            return None;
        }
        let now = ArrivalTime::now();
        let since = self.awaited.replace(now).unwrap_or(now);
        CallTrace::draw(&self.face, message, &self.metadata, since)
    }

    fn submit(
        &self,
        model: &ResolvedModel,
        message: InferMessage,
        trace: Option<&CallTrace>,
    ) -> Result<SubmittedRequest> {
        let submitted = infer::submit(&self.face, model, message, &self.caller, trace, |request| {
            // All requests of a stream share its deadline.
            request.deadline = self.limit.as_ref().map(|limit| limit.deadline().into_std());
            for (name, value) in self.forwarded.as_ref().map_err(Error::clone)?.iter() {
                request.parameters.set(name.to_owned(), value.clone());
            }
            Ok(())
        });
        submitted.map_err(|error| match self.face.region_refusal(&self.caller, &error) {
            Some(refused) => Error::unavailable(refused.message().to_owned()),
            None => error,
        })
    }

    /// The next message, or the end.
    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.limit.as_mut().is_some_and(|limit| limit.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Some(Err(deadline::exceeded())));
        }
        loop {
            if let Poll::Ready(mut outcome) = self.poll_answer(context) {
                self.sending = outcome.trace.take();
                if let Some(trace) = &self.sending {
                    trace.begin();
                }
                let ending = outcome.status.filter(|_| self.ends_at_error);
                return Poll::Ready(Some(ending.map_or(Ok(outcome.message), Err)));
            }
            match self.poll_request(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(status)) => return Poll::Ready(Some(Err(status))),
                Poll::Pending if self.reading || !self.load.is_empty() => return Poll::Pending,
                Poll::Pending if self.cut_off => {
                    let why = "the server is stopping and accepts no further requests";
                    return Poll::Ready(Some(Err(Status::unavailable(why))));
                }
                Poll::Pending => return Poll::Ready(None),
            }
        }
    }
}

impl<R> Stream for InferStream<R>
where
    R: Stream<Item = std::result::Result<InferMessage, Status>> + Unpin,
{
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        // The message before is on its way.
        if let Some(sent) = self.sending.take() {
            sent.end();
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let item = self.poll_item(context);
        self.ended = matches!(item, Poll::Ready(None | Some(Err(_))));
        item
    }
}

#[cfg(test)]
mod tests;

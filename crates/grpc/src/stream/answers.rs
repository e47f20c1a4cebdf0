//! The answers to one request of a stream, as messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::stream::Stream;
use nereid_core::backend_api::{Error, Result};
use tonic::Status;

use super::load::Share;
use crate::codec::{Reply, StreamReply};
use crate::infer::Asked;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::{InferParameter, ModelInferResponse};
use crate::status;
use crate::tracing::Sending;

/// The parameter of each response that says whether it is the last one to its request.
const FINAL: &str = "triton_final_response";

/// A message, and the status of the error that it reports.
pub(super) struct Told {
    pub message: StreamReply,
    pub status: Option<Status>,
    /// What hears of the message, if its request is traced.
    pub trace: Option<Sending>,
}

impl Told {
    fn failed(response: ModelInferResponse, error: &Error) -> Self {
        let reply = Reply { response, raw: Vec::new() };
        let message = StreamReply { error_message: error.message().to_owned(), reply };
        Self { message, status: Some(status::of(error)), trace: None }
    }

    fn answered(mut reply: Reply, last: bool) -> Self {
        set_final(&mut reply.response, last);
        let message = StreamReply { error_message: String::new(), reply };
        Self { message, status: None, trace: None }
    }
}

/// A request that was not executed.
pub(super) struct Refused {
    /// What its client receives.
    pub told: Told,
    _share: Share,
}

impl Refused {
    /// Whose request it was, and what was wrong with it.
    pub(super) fn new(id: String, error: &Error, share: Share) -> Self {
        let response = ModelInferResponse { id, ..ModelInferResponse::default() };
        let told = Told { status: None, ..Told::failed(response, error) };
        Self { told, _share: share }
    }
}

fn set_final(response: &mut ModelInferResponse, last: bool) {
    let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(last)) };
    response.parameters.insert(FINAL.to_owned(), value);
}

/// A request in progress, and what its answers need.
struct Pending {
    asked: Asked,
    /// As the client wrote it.
    version: String,
    _share: Share,
}

impl Pending {
    /// The response of which nothing is known but whose it is.
    fn empty(&self) -> ModelInferResponse {
        ModelInferResponse {
            id: self.asked.answers.request_id().to_owned(),
            model_name: self.asked.answers.model_name().to_owned(),
            model_version: self.version.clone(),
            ..ModelInferResponse::default()
        }
    }

    fn told(&self, outcome: Result<Reply>, last: bool) -> Told {
        if let Some(trace) = &self.asked.trace {
            trace.answered();
        }
        let told = match outcome {
            Ok(reply) => Told::answered(reply, last),
            Err(error) => {
                let mut response = self.empty();
                set_final(&mut response, last);
                Told::failed(response, &error)
            }
        };
        Told { trace: self.asked.trace.clone(), ..told }
    }
}

/// A request to a model that gives one answer.
pub(super) struct Single(Pending);

impl Single {
    /// The request and the version that it asked for.
    pub(super) fn new(asked: Asked, version: String, share: Share) -> Self {
        Self(Pending { asked, version, _share: share })
    }

    /// The answer. Not to be polled again once it is there.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Told> {
        let outcome = ready!(self.0.asked.answers.poll_single(context));
        let outcome = outcome.and_then(|response| self.0.asked.encode(response));
        Poll::Ready(self.0.told(outcome, true))
    }
}

/// A request to a decoupled model.
pub(super) struct Decoupled {
    pending: Pending,
    /// Whether a message was marked as the last.
    final_told: bool,
}

impl Decoupled {
    /// The request and the version that it asked for.
    pub(super) fn new(asked: Asked, version: String, share: Share) -> Self {
        Self { pending: Pending { asked, version, _share: share }, final_told: false }
    }
}

impl Stream for Decoupled {
    type Item = Told;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Told>> {
        let this = &mut *self;
        match ready!(this.pending.asked.answers.poll_next(context)) {
            Some(answer) => {
                let last = this.pending.asked.answers.ended_with_answer();
                this.final_told = last;
                let outcome = answer.and_then(|response| this.pending.asked.encode(response));
                Poll::Ready(Some(this.pending.told(outcome, last)))
            }
            None if this.pending.asked.empty_final && !this.final_told => {
                this.final_told = true;
                Poll::Ready(Some(Told::answered(
                    Reply { response: this.pending.empty(), raw: Vec::new() },
                    true,
                )))
            }
            None => Poll::Ready(None),
        }
    }
}

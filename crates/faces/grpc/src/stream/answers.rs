//! The answers to one request of a stream, as messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::stream::Stream;
use nereid_core::backend_api::{Error, ParameterValue, Result};
use tonic::Status;

use super::load::Share;
use crate::codec::{Reply, ResponseFields, StreamReply};
use crate::infer::SubmittedRequest;
use crate::status;
use crate::tracing::CallTrace;

/// Response parameter that marks the last response to a request.
const FINAL: &str = "triton_final_response";

/// A message, and the status of the error that it reports.
pub(super) struct Outcome {
    pub message: StreamReply,
    pub status: Option<Status>,
    /// The trace of its request, if it is traced.
    pub trace: Option<CallTrace>,
}

impl Outcome {
    fn failed(fields: ResponseFields, error: &Error) -> Self {
        let reply = Reply { fields, raw: Vec::new() };
        let message = StreamReply { error_message: error.message().to_owned(), reply };
        Self { message, status: Some(status::of(error)), trace: None }
    }

    fn answered(mut reply: Reply, last: bool) -> Self {
        set_final(&mut reply.fields, last);
        let message = StreamReply { error_message: String::new(), reply };
        Self { message, status: None, trace: None }
    }
}

/// A request that was not executed.
pub(super) struct RefusedRequest {
    /// The message or status for the client.
    pub outcome: Outcome,
    _share: Share,
}

impl RefusedRequest {
    /// The answer to a refused request.
    pub(super) fn new(id: &str, error: &Error, share: Share) -> Self {
        let fields = ResponseFields::new("", "", id);
        let outcome = Outcome { status: None, ..Outcome::failed(fields, error) };
        Self { outcome, _share: share }
    }
}

fn set_final(fields: &mut ResponseFields, last: bool) {
    fields.parameter(FINAL, &ParameterValue::Bool(last));
}

/// A request in progress, and what its answers need.
struct Pending {
    submitted: SubmittedRequest,
    /// As the client wrote it.
    version: String,
    _share: Share,
}

impl Pending {
    /// An empty response that only identifies its request.
    fn empty(&self) -> ResponseFields {
        let answers = &self.submitted.answers;
        ResponseFields::new(answers.model_name(), &self.version, answers.request_id())
    }

    fn outcome(&self, outcome: Result<Reply>, last: bool) -> Outcome {
        if let Some(trace) = &self.submitted.trace {
            trace.answered();
        }
        let outcome = match outcome {
            Ok(reply) => Outcome::answered(reply, last),
            Err(error) => {
                let mut fields = self.empty();
                set_final(&mut fields, last);
                Outcome::failed(fields, &error)
            }
        };
        Outcome { trace: self.submitted.trace.clone(), ..outcome }
    }
}

/// A request to a non-decoupled model.
pub(super) struct Single(Pending);

impl Single {
    /// A submitted request with the version that the client requested.
    pub(super) fn new(submitted: SubmittedRequest, version: String, share: Share) -> Self {
        Self(Pending { submitted, version, _share: share })
    }

    /// The answer; of several the first, as in Triton. Must not be polled again after it is returned.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = ready!(self.0.submitted.answers.poll_first(context));
        let outcome = outcome.and_then(|response| self.0.submitted.encode(response));
        Poll::Ready(self.0.outcome(outcome, true))
    }
}

/// A request to a decoupled model.
pub(super) struct Decoupled {
    pending: Pending,
    /// Whether a message was marked as the last.
    final_sent: bool,
}

impl Decoupled {
    /// A submitted request with the version that the client requested.
    pub(super) fn new(submitted: SubmittedRequest, version: String, share: Share) -> Self {
        Self { pending: Pending { submitted, version, _share: share }, final_sent: false }
    }
}

impl Stream for Decoupled {
    type Item = Outcome;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Outcome>> {
        let this = &mut *self;
        match ready!(this.pending.submitted.answers.poll_next(context)) {
            Some(answer) => {
                let last = this.pending.submitted.answers.ended_with_answer();
                this.final_sent = last;
                let outcome = answer.and_then(|response| this.pending.submitted.encode(response));
                Poll::Ready(Some(this.pending.outcome(outcome, last)))
            }
            None if this.pending.submitted.empty_final && !this.final_sent => {
                this.final_sent = true;
                Poll::Ready(Some(Outcome::answered(
                    Reply { fields: this.pending.empty(), raw: Vec::new() },
                    true,
                )))
            }
            None => Poll::Ready(None),
        }
    }
}

//! The reply to a request: shared by the request, its response factories and its responses.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use nereid_backend_api::{Answer, Error, OutputAllocator, Responder, ResponseSink, Result};

use crate::health::Facts;

/// The reply to one request, which sends its responses.
pub(crate) struct Reply {
    responder: Responder,
    /// Facts shared by the model's requests.
    facts: Arc<Facts>,
}

/// Passes on the answers of a rescheduled request, while its earlier responses and factories may still use its reply.
struct ForwardingSink(Arc<Reply>);

impl Reply {
    /// The reply of a request; a rescheduled one keeps its reply.
    pub(crate) fn new(responder: Responder, facts: Arc<Facts>) -> Arc<Self> {
        let sink: &dyn Any = responder.sink();
        if let Some(ForwardingSink(reply)) = sink.downcast_ref() {
            let reply = Arc::clone(reply);
            drop(responder.into_sink());
            return reply;
        }
        Arc::new(Self { responder, facts })
    }

    /// The responder with which the server reschedules the request. `allocator` places its outputs.
    pub(crate) fn into_responder(self: Arc<Self>, allocator: Option<Arc<dyn OutputAllocator>>) -> Responder {
        match Arc::try_unwrap(self) {
            Ok(reply) => reply.responder,
            Err(reply) => Responder::new(Arc::new(ForwardingSink(reply)), allocator),
        }
    }

    /// The model's output names.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.facts.outputs
    }

    /// Checks that the model has an output of that name.
    pub(crate) fn check_output(&self, name: &str) -> Result<()> {
        if self.facts.outputs.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "unexpected inference output '{name}' (the model's outputs: {})",
            self.facts.outputs.join(", ")
        )))
    }

    /// Inspects an error that the backend answers with.
    pub(crate) fn note(&self, error: &Error) {
        self.facts.health.note(error);
    }

    /// Checks that the last answer was not sent.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.responder.is_finished() {
            return Err(Error::invalid_arg("the request has been answered already"));
        }
        Ok(())
    }
}

impl Deref for Reply {
    type Target = Responder;

    fn deref(&self) -> &Responder {
        &self.responder
    }
}

impl ResponseSink for ForwardingSink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        match (answer, last) {
            (Some(answer), true) => self.0.finish_with(answer),
            (Some(answer), false) => self.0.send(answer),
            (None, true) => self.0.finish(),
            (None, false) => {}
        }
    }

    /// All other calls go to the sink of the request as first received.
    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(self.0.sink())
    }
}

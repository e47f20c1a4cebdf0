//! How a request is answered: shared by the request, its response factories and its responses.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use nereid_backend_api::{
    Answer, CancelSignal, Error, ExecutionTimes, OutputAllocator, Phase, Responder, ResponseKind,
    ResponseSink, ResponseTimes, Result,
};

/// The way to answer one request.
pub(crate) struct Way {
    responder: Responder,
    /// The names of the outputs that the model has.
    outputs: Arc<[String]>,
}

/// Answers of a request that came again, while responses and factories from before may still use the way it has.
struct Passing(Arc<Way>);

impl Way {
    /// The way of a request, or, if it comes again, the way that it had before.
    pub(crate) fn new(responder: Responder, outputs: Arc<[String]>) -> Arc<Self> {
        let sink: &dyn Any = responder.sink();
        if let Some(Passing(way)) = sink.downcast_ref() {
            let way = Arc::clone(way);
            drop(responder.into_sink());
            return way;
        }
        Arc::new(Self { responder, outputs })
    }

    /// The way for the server to give the request to a backend once more. Outputs lie where `allocator` wants them.
    pub(crate) fn into_responder(self: Arc<Self>, allocator: Option<Arc<dyn OutputAllocator>>) -> Responder {
        match Arc::try_unwrap(self) {
            Ok(way) => way.responder,
            Err(way) => Responder::new(Arc::new(Passing(way)), allocator),
        }
    }

    /// The names of the outputs that the model has.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Checks that the model has an output of that name.
    pub(crate) fn check_output(&self, name: &str) -> Result<()> {
        if self.outputs.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "unexpected inference output '{name}': the outputs of the model are {}",
            self.outputs.join(", ")
        )))
    }

    /// Checks that no last answer was given.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.responder.is_finished() {
            return Err(Error::invalid_arg("the request was answered to the end before"));
        }
        Ok(())
    }
}

impl Deref for Way {
    type Target = Responder;

    fn deref(&self) -> &Responder {
        &self.responder
    }
}

impl ResponseSink for Passing {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        match (answer, last) {
            (Some(answer), true) => self.0.finish_with(answer),
            (Some(answer), false) => self.0.send(answer),
            (None, true) => self.0.finish(),
            (None, false) => {}
        }
    }

    fn mark(&self, phase: Phase, at: Instant) {
        self.0.mark(phase, at);
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    fn model_name(&self) -> &str {
        self.0.sink().model_name()
    }

    fn cancel_signal(&self) -> Option<&CancelSignal> {
        self.0.sink().cancel_signal()
    }

    fn await_report(&self) {
        self.0.await_report();
    }

    fn report(&self, times: ExecutionTimes) {
        self.0.report(times);
    }

    fn report_response(&self, kind: ResponseKind, times: ResponseTimes) {
        self.0.report_response(kind, times);
    }
}

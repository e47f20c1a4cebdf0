//! Observes the requests to versions of a release: counts their results, and has copies made of those to the established version.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nereid_core::backend_api::{Answer, CorrelationId, ErrorCode, Request, ResponseSink};
use nereid_core::{Caller, Interceptor, Model, QueueListener, Step};

use crate::controller::Outcome;
use crate::release::ModelRelease;
use crate::shadow::{Copies, ExpectedAnswer, Shadows, keep};

/// The interceptor of a version that takes part in a release.
pub(crate) struct Observer {
    pub release: Arc<ModelRelease>,
    pub shadows: Shadows,
}

impl Interceptor for Observer {
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, caller: &Caller) -> Step {
        // A copy of a part of a sequence would reach a version that knows nothing of the rest.
        let copies = match request.correlation_id {
            CorrelationId::None => self.shadows.copies_of(&self.release, model, request),
            _ => None,
        };
        let has_copies = copies.is_some();
        let (copies, expected) = copies.unzip();
        let sink = |client| {
            Arc::new(ObservingSink {
                client,
                release: Arc::clone(&self.release),
                version: model.version(),
                started: Instant::now(),
                is_copy: caller.is_copy(),
                is_failed: AtomicBool::new(false),
                copies: Mutex::new(copies),
                expected,
            })
        };
        let sink = request.redirect_answers(sink);
        if has_copies { Step::Listen(sink) } else { Step::Proceed }
    }
}

/// Receives the answers to a request.
struct ObservingSink {
    client: Arc<dyn ResponseSink>,
    release: Arc<ModelRelease>,
    version: u64,
    started: Instant,
    is_copy: bool,
    is_failed: AtomicBool,
    /// The copies, until they are sent.
    copies: Mutex<Option<Copies>>,
    /// Where the answer goes that theirs are compared with.
    expected: Option<ExpectedAnswer>,
}

impl ObservingSink {
    fn observe(&self, answer: Option<&Answer>, is_last: bool) {
        if let Some(Err(error)) = answer
            && error.code() != ErrorCode::Cancelled
        {
            self.is_failed.store(true, Ordering::Relaxed);
        }
        if !is_last {
            return;
        }
        let took = self.started.elapsed();
        let outcome = match answer {
            _ if self.is_failed.load(Ordering::Relaxed) => Outcome::Failed,
            Some(Err(_)) => Outcome::Cancelled(took),
            _ if self.is_copy => Outcome::Copied,
            _ => Outcome::Answered(took),
        };
        self.release.add(self.version, outcome);
    }
}

impl ResponseSink for ObservingSink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        self.observe(answer.as_ref(), last);
        if let (Some(expected), Some(Ok(response))) = (&self.expected, &answer) {
            // Kept before the client can write to its memory again.
            expected.send_replace(keep(response));
        }
        self.client.deliver(answer, last);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.client)
    }
}

impl QueueListener for ObservingSink {
    fn queued(&self) {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(copies) = copies {
            copies.send();
        }
    }
}

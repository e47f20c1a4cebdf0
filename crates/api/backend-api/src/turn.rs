//! A request's turn in its sequence: the next request of the sequence runs when the turn ends. Carries the states of
//! the sequence, too.
//!
//! Does not know how sequences are scheduled; [`TurnObserver`] does.

use std::fmt;
use std::sync::Arc;

use crate::{Request, SequenceStates};

/// Notified when the turns of a model's sequences end. Implemented by the server.
///
/// Called on the thread on which the backend releases the request.
pub trait TurnObserver: Send + Sync {
    /// The request of this turn was released.
    fn over(&self, turn: u64);

    /// The request of this turn must execute again. It gets an error if that is impossible.
    fn again(&self, turn: u64, request: Request);
}

/// A request's turn, which ends when dropped.
pub struct Turn {
    /// Notified of the end, with the number of the turn.
    turns: Option<(Arc<dyn TurnObserver>, u64)>,
    iterates: bool,
    states: Option<Arc<SequenceStates>>,
    filler: bool,
}

impl Turn {
    /// A turn in a sequence with these states, if its model has any. For the server.
    pub fn new(states: Option<Arc<SequenceStates>>) -> Self {
        Self { turns: None, iterates: false, states, filler: false }
    }

    /// Sets the observer to notify when the turn ends. If the turn `iterates`, its request can be rescheduled.
    #[must_use]
    pub fn notifying(mut self, turns: Arc<dyn TurnObserver>, number: u64, iterates: bool) -> Self {
        self.turns = Some((turns, number));
        self.iterates = iterates;
        self
    }

    /// The turn of a request that only pads a batch.
    pub fn filler(states: Option<Arc<SequenceStates>>) -> Self {
        Self { turns: None, iterates: false, states, filler: true }
    }

    /// The states of the sequence, if its model has any.
    pub fn states(&self) -> Option<&Arc<SequenceStates>> {
        self.states.as_ref()
    }

    /// Whether the request can be rescheduled.
    pub fn iterates(&self) -> bool {
        self.iterates
    }

    /// Whether the request only pads a batch.
    pub fn is_filler(&self) -> bool {
        self.filler
    }

    /// Ends the turn and returns its request to the scheduler, to run again with the new state of the sequence. If
    /// its model does not iterate, the request is released.
    pub(crate) fn reschedule(mut self, request: Request) {
        match self.turns.take_if(|_| self.iterates) {
            Some((turns, number)) => turns.again(number, request),
            None => drop(request),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, number)) = self.turns.take() {
            turns.over(number);
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.turns.as_ref().map(|(_, number)| number);
        f.debug_struct("Turn").field("number", &number).field("filler", &self.filler).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Answer, InferRequest, Phase, Responder, ResponseSink};

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl TurnObserver for Log {
        fn over(&self, turn: u64) {
            self.0.lock().unwrap().push(format!("{turn} is over"));
        }
        fn again(&self, turn: u64, request: Request) {
            self.0.lock().unwrap().push(format!("{turn} again"));
            request.answer(Ok(crate::Response::default()));
        }
    }

    impl ResponseSink for Log {
        fn deliver(&self, answer: Option<Answer>, _last: bool) {
            let kind = if answer.is_some_and(|answer| answer.is_ok()) { "answered" } else { "failed" };
            self.0.lock().unwrap().push(kind.to_owned());
        }
        fn mark(&self, _: Phase, _: std::time::Instant) {}
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    fn said(iterates: bool, act: impl FnOnce(Request)) -> Vec<String> {
        let log = Arc::new(Log::default());
        let responder = Responder::new(Arc::<Log>::clone(&log), None);
        let mut request = Request::new(InferRequest::default(), 1, responder);
        request.begin_turn(Turn::new(None).notifying(Arc::<Log>::clone(&log), 7, iterates));
        act(request);
        std::mem::take(&mut log.0.lock().unwrap())
    }

    #[test]
    fn turn_ends_after_the_answer_when_the_request_is_released() {
        assert_eq!(
            said(false, |request| request.answer(Ok(crate::Response::default()))),
            ["answered", "7 is over"]
        );
        assert_eq!(said(true, drop), ["failed", "7 is over"]);
        assert_eq!(said(false, |request| drop(request.into_responder())), ["7 is over", "failed"]);
    }

    #[test]
    fn rescheduled_request_runs_again_if_its_model_iterates() {
        assert_eq!(said(true, Request::reschedule), ["7 again", "answered"]);
        assert_eq!(said(false, Request::reschedule), ["failed", "7 is over"]);
    }
}

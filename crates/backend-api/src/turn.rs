//! A request's turn in its sequence: what the server gives along with a request so that the next one of the sequence
//! comes when this one is done, and what the model keeps of the sequence meanwhile.
//!
//! Knows nothing of how sequences are scheduled; [`Turns`] does.

use std::fmt;
use std::sync::Arc;

use crate::{Request, SequenceStates};

/// Hears how the turns of a model's sequences end. The server implements it.
///
/// Called on whatever thread a backend releases a request.
pub trait Turns: Send + Sync {
    /// The request of that turn is released.
    fn over(&self, turn: u64);

    /// The request of that turn wants to be executed once more. It is answered with an error if that cannot be.
    fn again(&self, turn: u64, request: Request);
}

/// A request's turn. It is over when this is dropped.
pub struct Turn {
    /// Who hears of its end, and the number it knows the turn by.
    turns: Option<(Arc<dyn Turns>, u64)>,
    iterates: bool,
    states: Option<Arc<SequenceStates>>,
    filler: bool,
}

impl Turn {
    /// A turn in a sequence with these states, if its model has any. Made by the server.
    pub fn new(states: Option<Arc<SequenceStates>>) -> Self {
        Self { turns: None, iterates: false, states, filler: false }
    }

    /// The same turn, and who hears of its end. If it `iterates`, its request can be handed back.
    #[must_use]
    pub fn told(mut self, turns: Arc<dyn Turns>, number: u64, iterates: bool) -> Self {
        self.turns = Some((turns, number));
        self.iterates = iterates;
        self
    }

    /// The turn of a request that nobody made: it stands in a place of a batch that has to be filled.
    pub fn filler(states: Option<Arc<SequenceStates>>) -> Self {
        Self { turns: None, iterates: false, states, filler: true }
    }

    /// The states of the sequence, if its model has any.
    pub fn states(&self) -> Option<&Arc<SequenceStates>> {
        self.states.as_ref()
    }

    /// Whether the request can be handed back, to come again.
    pub fn iterates(&self) -> bool {
        self.iterates
    }

    /// Whether the request is there only to fill its place.
    pub fn is_filler(&self) -> bool {
        self.filler
    }

    /// Ends the turn by handing its request back, which comes again later with what the sequence has become. Where its
    /// model does not iterate, the request is released.
    pub(crate) fn hand_back(mut self, request: Request) {
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

    impl Turns for Log {
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
        request.begin_turn(Turn::new(None).told(Arc::<Log>::clone(&log), 7, iterates));
        act(request);
        std::mem::take(&mut log.0.lock().unwrap())
    }

    #[test]
    fn a_turn_is_over_after_the_answer_when_its_request_is_released() {
        assert_eq!(
            said(false, |request| request.answer(Ok(crate::Response::default()))),
            ["answered", "7 is over"]
        );
        assert_eq!(said(true, drop), ["failed", "7 is over"]);
        assert_eq!(said(false, |request| drop(request.into_responder())), ["7 is over", "failed"]);
    }

    #[test]
    fn a_request_handed_back_comes_again_if_its_model_iterates() {
        assert_eq!(said(true, Request::hand_back), ["7 again", "answered"]);
        assert_eq!(said(false, Request::hand_back), ["failed", "7 is over"]);
    }
}

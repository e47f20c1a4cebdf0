//! Preserves order: answers leave in the order in which requests left the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Answer, Request, ResponseSink};

/// The requests of one model that are not answered completely, in their order.
#[derive(Default)]
pub struct Order(Mutex<Line>);

#[derive(Default)]
struct Line {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Place>,
}

struct Place {
    sink: Arc<dyn ResponseSink>,
    /// Answers that wait for those before them, each with whether it is the last one.
    held: Vec<(Option<Answer>, bool)>,
}

/// Forwards a request's answers once its turn comes.
struct InTurn {
    order: Arc<Order>,
    number: u64,
    sink: Arc<dyn ResponseSink>,
}

impl Order {
    /// Queues the request: its answers wait for the answers to requests queued before.
    pub fn line_up(self: &Arc<Self>, request: &mut Request) {
        request.redirect_answers(|sink| {
            let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let number = line.first + line.places.len() as u64;
            line.places.push_back(Place { sink: Arc::clone(&sink), held: Vec::new() });
            Arc::new(InTurn { order: Arc::clone(self), number, sink })
        });
    }

    fn deliver(&self, number: u64, answer: Option<Answer>, last: bool) {
        // Handed on under the lock: otherwise a later answer could overtake this one.
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = number.checked_sub(line.first) else { return };
        let Some(place) = line.places.get_mut(index as usize) else { return };
        place.held.push((answer, last));
        while let Some(place) = line.places.front_mut() {
            let mut finished = false;
            for (answer, last) in place.held.drain(..) {
                place.sink.deliver(answer, last);
                finished |= last;
            }
            if !finished {
                break;
            }
            line.places.pop_front();
            line.first += 1;
        }
    }
}

impl ResponseSink for InTurn {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        self.order.deliver(self.number, answer, last);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.sink)
    }
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::{Error, InferRequest, Responder, Response};

    use super::*;

    struct Log {
        name: &'static str,
        entries: Arc<Mutex<Vec<String>>>,
    }

    impl ResponseSink for Log {
        fn deliver(&self, answer: Option<Answer>, last: bool) {
            let answer = match answer {
                None => "nothing",
                Some(Ok(_)) => "answer",
                Some(Err(_)) => "error",
            };
            let entry = format!("{}: {answer}{}", self.name, if last { ", the last" } else { "" });
            self.entries.lock().unwrap().push(entry);
        }
    }

    #[test]
    fn answers_wait_for_those_of_earlier_requests() {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let order = Arc::new(Order::default());
        let [one, two, three] = ["one", "two", "three"].map(|name| {
            let sink = Arc::new(Log { name, entries: Arc::clone(&entries) });
            let mut request = Request::new(InferRequest::default(), 1, Responder::new(sink, None));
            order.line_up(&mut request);
            request.into_responder()
        });
        let said = || std::mem::take(&mut *entries.lock().unwrap());
        two.send(Ok(Response::default()));
        three.finish_with(Err(Error::internal("broken")));
        assert!(said().is_empty());
        // The first request's answers are forwarded at once.
        one.send(Ok(Response::default()));
        assert_eq!(said(), ["one: answer"]);
        // Dropped unanswered: its turn does not last for ever.
        drop(one);
        assert_eq!(said(), ["one: error, the last", "two: answer"]);
        two.finish();
        assert_eq!(said(), ["two: nothing, the last", "three: error, the last"]);
        assert!(order.0.lock().unwrap().places.is_empty());
    }
}

//! The default scheduler: each request by itself, first come, first served.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Request};

use super::Scheduler;

/// A queue from which idle instances take one request at a time.
#[derive(Default)]
pub(crate) struct Fifo {
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// Instances that wait for a request.
    idle: usize,
    closed: bool,
}

impl Fifo {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is never left half-changed, so a panic elsewhere while it was locked does not spoil it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduler for Fifo {
    fn enqueue(&self, request: Request) {
        let mut queue = self.lock();
        if queue.closed {
            drop(queue);
            let error = Error::unavailable(format!("model '{}' is being unloaded", request.model_name));
            return request.answer(Err(error));
        }
        queue.requests.push_back(request);
        let idle = queue.idle > 0;
        drop(queue);
        if idle {
            self.arrived.notify_one();
        }
    }

    fn next(&self) -> Option<Vec<Request>> {
        let mut queue = self.lock();
        loop {
            match queue.requests.pop_front() {
                Some(request) if request.responder().is_cancelled() => {
                    drop(queue);
                    request.answer(Err(Error::cancelled("the request was cancelled while it was queued")));
                    queue = self.lock();
                }
                Some(request) => return Some(vec![request]),
                None if queue.closed => return None,
                None => {
                    queue.idle += 1;
                    queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
            }
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{self, Sender};
    use std::time::Instant;

    use nereid_backend_api::{Answer, ErrorCode, InferRequest, Phase, Responder, Response, ResponseSink};

    use super::*;

    struct Client {
        answers: Sender<(String, Answer)>,
        id: String,
        cancelled: bool,
    }

    impl ResponseSink for Client {
        fn deliver(&self, answer: Option<Answer>, _last: bool) {
            self.answers.send((self.id.clone(), answer.unwrap())).unwrap();
        }
        fn mark(&self, _: Phase, _: Instant) {}
        fn is_cancelled(&self) -> bool {
            self.cancelled
        }
    }

    fn request(id: &str, cancelled: bool, answers: &Sender<(String, Answer)>) -> Request {
        let client = Client { answers: answers.clone(), id: id.into(), cancelled };
        let request = InferRequest { id: id.into(), ..InferRequest::default() };
        Request::new(request, 1, Responder::new(Arc::new(client), None))
    }

    #[test]
    fn requests_leave_one_by_one_in_the_order_they_came() {
        let (answers, _received) = mpsc::channel();
        let fifo = Fifo::default();
        for id in ["a", "b", "c"] {
            fifo.enqueue(request(id, false, &answers));
        }
        for id in ["a", "b", "c"] {
            let batch = fifo.next().unwrap();
            assert_eq!(batch.iter().map(|request| request.id.as_str()).collect::<Vec<_>>(), [id]);
        }
    }

    #[test]
    fn a_cancelled_request_is_answered_and_never_executed() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::default();
        fifo.enqueue(request("gone", true, &answers));
        fifo.enqueue(request("here", false, &answers));
        assert_eq!(fifo.next().unwrap()[0].id, "here");
        let (id, answer) = received.recv().unwrap();
        assert_eq!((id.as_str(), answer.unwrap_err().code()), ("gone", ErrorCode::Cancelled));
    }

    #[test]
    fn closing_lets_the_queue_run_dry_and_refuses_what_comes_later() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::default();
        fifo.enqueue(request("before", false, &answers));
        fifo.close();
        fifo.enqueue(request("after", false, &answers));
        let (id, answer) = received.recv().unwrap();
        assert_eq!((id.as_str(), answer.unwrap_err().code()), ("after", ErrorCode::Unavailable));
        fifo.next().unwrap().pop().unwrap().answer(Ok(Response::default()));
        assert_eq!(received.recv().unwrap().0, "before");
        assert!(fifo.next().is_none());
    }

    #[test]
    fn every_request_of_many_threads_is_executed_exactly_once() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::default();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some(batch) = fifo.next() {
                            batch.into_iter().for_each(|request| request.answer(Ok(Response::default())));
                        }
                    })
                })
                .collect();
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (fifo, answers) = (&fifo, answers.clone());
                    scope.spawn(move || {
                        for number in 0..100 {
                            fifo.enqueue(request(&format!("{client}-{number}"), false, &answers));
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            fifo.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        drop(answers);
        let mut answered: Vec<_> = received.iter().map(|(id, _)| id).collect();
        answered.sort();
        let before = answered.len();
        answered.dedup();
        assert_eq!((before, answered.len()), (400, 400));
    }
}

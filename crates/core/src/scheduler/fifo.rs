//! The default scheduler: each request by itself, first come, first served.
//!
//! States of an instance:
//! - `Executing` -> `Idle`: its thread asks for more and there is nothing;
//! - `Idle` -> `Called`: a request waits for it, or the end has come; its thread wakes up;
//! - `Idle` -> `Claimed`: whoever enqueued executes with it; `Claimed` -> `Called` or `Idle` when that is done;
//! - `Called` -> `Executing`, or `Idle` again if another instance was faster.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, Request};

use super::{Claim, Scheduler};

/// A queue from which idle instances take one request at a time.
pub(crate) struct Fifo {
    queue: Mutex<Queue>,
    /// One for each instance: its thread waits there to be called.
    calls: Vec<Condvar>,
}

struct Queue {
    requests: VecDeque<Request>,
    states: Vec<State>,
    /// The idle instances. The last one is called first: its caches are the warmest.
    idle: Vec<usize>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Executing,
    Idle,
    Called,
    Claimed,
}

impl Fifo {
    /// A scheduler for that many instances, none of which is idle before it asks for a request.
    pub(crate) fn new(instances: usize) -> Self {
        let queue = Queue {
            requests: VecDeque::new(),
            states: vec![State::Executing; instances],
            idle: Vec::with_capacity(instances),
            closed: false,
        };
        Self { queue: Mutex::new(queue), calls: (0..instances).map(|_| Condvar::new()).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the queue is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn rest(&mut self, instance: usize) {
        self.states[instance] = State::Idle;
        self.idle.push(instance);
    }
}

impl Scheduler for Fifo {
    fn enqueue(&self, request: Request, at_once: bool) -> Option<Claim> {
        let mut queue = self.lock();
        if queue.closed {
            drop(queue);
            let error = Error::unavailable(format!("model '{}' is being unloaded", request.model_name));
            request.answer(Err(error));
            return None;
        }
        if at_once
            && queue.requests.is_empty()
            && let Some(instance) = queue.idle.pop()
        {
            queue.states[instance] = State::Claimed;
            return Some(Claim { instance, requests: vec![request] });
        }
        queue.requests.push_back(request);
        if let Some(instance) = queue.idle.pop() {
            queue.states[instance] = State::Called;
            drop(queue);
            self.calls[instance].notify_one();
        }
        None
    }

    fn next(&self, instance: usize) -> Option<Vec<Request>> {
        let mut queue = self.lock();
        loop {
            match queue.requests.pop_front() {
                Some(request) if request.responder().is_cancelled() => {
                    drop(queue);
                    request.answer(Err(Error::cancelled("the request was cancelled while it was queued")));
                    queue = self.lock();
                }
                Some(request) => {
                    queue.states[instance] = State::Executing;
                    return Some(vec![request]);
                }
                None if queue.closed => return None,
                None => {
                    queue.rest(instance);
                    while queue.states[instance] != State::Called {
                        queue = self.calls[instance].wait(queue).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        }
    }

    fn finished(&self, instance: usize) {
        let mut queue = self.lock();
        if queue.requests.is_empty() && !queue.closed {
            return queue.rest(instance);
        }
        queue.states[instance] = State::Called;
        drop(queue);
        self.calls[instance].notify_one();
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        for instance in std::mem::take(&mut queue.idle) {
            queue.states[instance] = State::Called;
            self.calls[instance].notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{self, Sender};
    use std::thread;
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
        let fifo = Fifo::new(1);
        for id in ["a", "b", "c"] {
            assert!(fifo.enqueue(request(id, false, &answers), false).is_none());
        }
        for id in ["a", "b", "c"] {
            let batch = fifo.next(0).unwrap();
            assert_eq!(batch.iter().map(|request| request.id.as_str()).collect::<Vec<_>>(), [id]);
        }
    }

    #[test]
    fn a_cancelled_request_is_answered_and_never_executed() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::new(1);
        assert!(fifo.enqueue(request("gone", true, &answers), false).is_none());
        assert!(fifo.enqueue(request("here", false, &answers), false).is_none());
        assert_eq!(fifo.next(0).unwrap()[0].id, "here");
        let (id, answer) = received.recv().unwrap();
        assert_eq!((id.as_str(), answer.unwrap_err().code()), ("gone", ErrorCode::Cancelled));
    }

    #[test]
    fn closing_lets_the_queue_run_dry_and_refuses_what_comes_later() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::new(1);
        assert!(fifo.enqueue(request("before", false, &answers), false).is_none());
        fifo.close();
        assert!(fifo.enqueue(request("after", false, &answers), false).is_none());
        let (id, answer) = received.recv().unwrap();
        assert_eq!((id.as_str(), answer.unwrap_err().code()), ("after", ErrorCode::Unavailable));
        fifo.next(0).unwrap().pop().unwrap().answer(Ok(Response::default()));
        assert_eq!(received.recv().unwrap().0, "before");
        assert!(fifo.next(0).is_none());
    }

    #[test]
    fn a_caller_that_offers_to_execute_gets_an_idle_instance_and_keeps_its_thread_off() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::new(1);
        // The instance's thread has not asked for anything yet.
        assert!(fifo.enqueue(request("a", false, &answers), true).is_none());
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                while let Some(batch) = fifo.next(0) {
                    batch.into_iter().for_each(|request| request.answer(Ok(Response::default())));
                }
            });
            assert_eq!(received.recv().unwrap().0, "a");
            while fifo.lock().idle.is_empty() {
                thread::yield_now();
            }
            let claim = fifo.enqueue(request("b", false, &answers), true).unwrap();
            assert_eq!((claim.instance, claim.requests[0].id.as_str()), (0, "b"));
            // What comes meanwhile waits, though the thread is awake to take it.
            assert!(fifo.enqueue(request("c", false, &answers), true).is_none());
            fifo.calls[0].notify_all();
            assert!(received.try_recv().is_err());
            claim.requests.into_iter().for_each(|request| request.answer(Ok(Response::default())));
            fifo.finished(0);
            assert_eq!(received.recv().unwrap().0, "b");
            assert_eq!(received.recv().unwrap().0, "c");
            fifo.close();
            worker.join().unwrap();
        });
    }

    #[test]
    fn every_request_of_many_threads_is_executed_exactly_once() {
        let (answers, received) = mpsc::channel();
        let fifo = Fifo::new(3);
        thread::scope(|scope| {
            let execute = |batch: Vec<Request>| {
                batch.into_iter().for_each(|request| request.answer(Ok(Response::default())))
            };
            let workers: Vec<_> = (0..3)
                .map(|instance| {
                    let fifo = &fifo;
                    scope.spawn(move || {
                        while let Some(batch) = fifo.next(instance) {
                            execute(batch);
                        }
                    })
                })
                .collect();
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (fifo, answers) = (&fifo, answers.clone());
                    scope.spawn(move || {
                        for number in 0..1000 {
                            let request = request(&format!("{client}-{number}"), false, &answers);
                            if let Some(claim) = fifo.enqueue(request, client % 2 == 0) {
                                execute(claim.requests);
                                fifo.finished(claim.instance);
                            }
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
        assert_eq!((before, answered.len()), (4000, 4000));
    }
}

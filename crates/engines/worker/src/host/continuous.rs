//! An instance with continuous batching: its thread, its queue, and the side channel that its responses take.
//!
//! The server sends no more requests than the instance holds, so the queue is short.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, Batch, BatchMonitor, CancelSignal, ExecutionTimes, FamilySnapshot, Instance, Intake,
    IntakeSource, MetricRegistry, Next, Request, Responder, ResponseSink,
};
use nereid_worker_protocol::side;
use nereid_worker_protocol::{Incoming, Malformed, Message, Receiver, Sender};

use crate::{convert, mirror};

/// How often metrics and progress are reported while requests execute.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// An instance on a thread of its own.
pub(super) struct ContinuousInstance {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// The requests of an instance.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    sender: Arc<Mutex<Sender>>,
    metrics: Mutex<PublishedMetrics>,
}

/// The metrics of the backend, and what the server has of them.
struct PublishedMetrics {
    registry: MetricRegistry,
    at: Option<Instant>,
    sent: Vec<FamilySnapshot>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    /// The requests that have no last response, by their handles.
    sinks: HashMap<u64, Weak<Sink>>,
    /// How many requests the instance holds.
    held: usize,
    /// Whether the queue may have changed since the instance last looked.
    has_news: bool,
    /// Whether the instance's waker was woken since its last wait.
    is_woken: bool,
    has_ended: bool,
}

impl ContinuousInstance {
    /// Starts the instance. `receiver` is the side channel's; `None` if an earlier instance of the process reads it.
    pub(super) fn start(
        mut instance: Box<dyn Instance>,
        sender: Arc<Mutex<Sender>>,
        receiver: Option<Receiver>,
        metrics: MetricRegistry,
    ) -> io::Result<Self> {
        let metrics = Mutex::new(PublishedMetrics { registry: metrics, at: None, sent: Vec::new() });
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new(), sender, metrics });
        let source = Source(Arc::clone(&queue));
        let thread = thread::Builder::new().name("nereid-instance".to_owned()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| instance.run(Intake::new(source))));
            if outcome.is_err() {
                // The server answers the requests, and starts the process again.
                process::abort();
            }
        })?;
        if let Some(receiver) = receiver {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name("nereid-side".to_owned()).spawn(move || queue.receive(receiver))?;
        }
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Queues the requests of a call, and appends their outcomes.
    ///
    /// # Errors
    /// The call is malformed.
    pub(super) fn take(&self, incoming: &Incoming, message: &mut Message<'_>) -> Result<(), Malformed> {
        let mut reader = incoming.reader();
        let count = reader.count(1)?;
        message.count(count);
        for _ in 0..count {
            let (request, inputs) = reader.request()?;
            let handle = request.handle;
            match convert::inner_request(request, inputs) {
                Ok(request) => {
                    let responder = Responder::new(self.queue.sink(handle), None);
                    self.queue.push(Request::new(request, 1, responder));
                    message.later_outcome();
                }
                Err(error) => message.failure_outcome(convert::failure(&error)),
            }
        }
        reader.end()
    }
}

impl Drop for ContinuousInstance {
    fn drop(&mut self) {
        self.queue.change(|state| state.has_ended = true);
        if let Some(thread) = self.thread.take() {
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the instance may be waiting for.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.has_news = true;
        drop(state);
        self.changed.notify_all();
    }

    fn sink(self: &Arc<Self>, handle: u64) -> Arc<dyn ResponseSink> {
        let sink = Arc::new(Sink { handle, queue: Arc::clone(self), cancelled: CancelSignal::default() });
        self.lock().sinks.insert(handle, Arc::downgrade(&sink));
        sink
    }

    fn push(&self, request: Request) {
        let batch = Batch::new(vec![request], Arc::new(NoExecutionCounts));
        self.change(|state| state.waiting.push_back(batch));
    }

    /// Receives cancellations until the server closes the channel.
    fn receive(&self, mut receiver: Receiver) {
        // An error needs no handling: the process ends with its call channel.
        while let Ok(Some(incoming)) = receiver.receive() {
            if incoming.kind() == side::CANCELLED
                && let Ok(handle) = incoming.reader().u64()
            {
                let sink = self.lock().sinks.get(&handle).and_then(Weak::upgrade);
                if let Some(sink) = sink {
                    sink.cancelled.cancel();
                }
            }
        }
    }

    /// Reports that the instance has begun another step, and its metrics, once in each interval.
    fn report_progress(&self) {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        if metrics.at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        drop(metrics);
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a server, the process is about to end.
        let _ = sender.message(side::PROGRESS).send();
        drop(sender);
        self.publish();
    }

    /// Sends the metrics that have changed.
    fn publish(&self) {
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.at = Some(Instant::now());
        let snapshot = metrics.registry.snapshot();
        if snapshot == metrics.sent {
            return;
        }
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = sender.message(side::METRICS);
        mirror::write(&mut message, &snapshot);
        // Without a server, the process is about to end.
        let _ = message.send();
        metrics.sent = snapshot;
    }

    /// Sends a response to a request.
    fn respond(&self, handle: u64, answer: Option<Answer>, last: bool) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = sender.message(side::RESPOND);
        message.u64(handle);
        message.bool(last);
        let mark = message.mark();
        let written = match answer {
            None => {
                message.nothing_reply();
                Ok(())
            }
            Some(Ok(response)) => {
                message.response_reply(convert::values(&response.parameters));
                message.count(response.outputs.len());
                response.outputs.iter().try_for_each(|output| convert::put_tensor(&mut message, output))
            }
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = written {
            message.truncate(mark);
            message.failure_reply(convert::failure(&error));
        }
        // Without a server, the process is about to end.
        let _ = message.send();
    }
}

/// Sends the responses to one request.
struct Sink {
    handle: u64,
    queue: Arc<Queue>,
    cancelled: CancelSignal,
}

impl ResponseSink for Sink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        if last {
            self.queue.lock().sinks.remove(&self.handle);
            // A client with its answer finds the request in the metrics.
            self.queue.publish();
        }
        self.queue.respond(self.handle, answer, last);
    }

    fn is_cancelled(&self) -> bool {
        // Instances check every request between two steps.
        self.queue.report_progress();
        self.cancelled.is_cancelled()
    }

    fn cancel_signal(&self) -> Option<&CancelSignal> {
        Some(&self.cancelled)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.queue.change(|state| state.held = state.held.saturating_sub(1));
    }
}

/// The queue as the instance sees it.
struct Source(Arc<Queue>);

impl IntakeSource for Source {
    fn try_next(&mut self, fits: &mut dyn FnMut(&Request) -> bool) -> Next {
        let mut state = self.0.lock();
        state.has_news = false;
        let is_idle = state.held == 0;
        match state.waiting.front() {
            None if state.has_ended => return Next::Ended,
            None => return Next::Nothing,
            Some(batch) if !is_idle && !batch.requests().iter().all(&mut *fits) => return Next::Full,
            Some(_) => {}
        }
        match state.waiting.pop_front() {
            Some(batch) => {
                state.held += 1;
                Next::Request(batch)
            }
            None => Next::Nothing,
        }
    }

    fn wait(&mut self) {
        self.0.publish();
        let state = self.0.lock();
        let waits = |state: &mut State| !state.has_news && !state.is_woken;
        let waited = self.0.changed.wait_while(state, waits);
        waited.unwrap_or_else(PoisonError::into_inner).is_woken = false;
    }

    fn waker(&self) -> Waker {
        Arc::new(WakeInstance(Arc::downgrade(&self.0))).into()
    }
}

/// Ends the wait of the instance.
struct WakeInstance(Weak<Queue>);

impl Wake for WakeInstance {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            queue.lock().is_woken = true;
            queue.changed.notify_all();
        }
    }
}

/// The server itself counts executions.
struct NoExecutionCounts;

impl BatchMonitor for NoExecutionCounts {
    fn executed(&self, _: usize, _: ExecutionTimes) {}
}

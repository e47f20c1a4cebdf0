//! Instances with continuous batching: the requests that one takes from its scheduler, and what becomes of them when it fails.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};

use nereid_backend_api::{
    Answer, Batch, BatchMonitor, Error, Instance, Intake, IntakeSource, ModelCapabilities, Next, Request,
    ResponseSink,
};
use nereid_scheduling::{Pulled, Scheduler};

/// An instance and the services for its requests.
pub(super) struct Runner<'a> {
    /// The name of the instance.
    pub name: &'a str,
    /// The number of the instance in the scheduler.
    pub number: usize,
    pub scheduler: &'a Arc<dyn Scheduler>,
    pub monitor: &'a Arc<dyn BatchMonitor>,
    pub capabilities: ModelCapabilities,
}

impl Runner<'_> {
    /// Runs the instance until the scheduler is closed and empty. If it fails before, its requests are answered, and it runs
    /// again.
    pub(super) fn run(&self, instance: &mut dyn Instance) {
        let held = Held::new(self.scheduler, self.number);
        loop {
            let taken_before = held.lock().taken;
            let intake = Intake::new(Source {
                scheduler: Arc::clone(self.scheduler),
                number: self.number,
                monitor: Arc::clone(self.monitor),
                capabilities: self.capabilities,
                held: Arc::clone(&held),
                has_room: true,
            });
            let outcome = catch_unwind(AssertUnwindSafe(|| instance.run(intake)));
            if outcome.is_ok() && held.has_ended.load(Ordering::Relaxed) {
                return;
            }
            let failure = if outcome.is_err() { "panicked" } else { "stopped before its queue ended" };
            tracing::error!("instance '{}' {failure}; its requests are answered with an error", self.name);
            let error = Error::internal(format!("instance '{}' {failure}", self.name));
            held.fail(&error);
            if held.lock().taken == taken_before {
                // Every failure costs a request, so that a broken instance does not keep its queue waiting.
                let Some(requests) = self.scheduler.next(self.number) else { return };
                requests.into_iter().for_each(|request| request.answer(Err(error.clone())));
            }
        }
    }
}

/// The requests that an instance holds: those that it took and has not dropped.
struct Held {
    state: Mutex<HeldState>,
    /// Whether the instance knows that its queue has ended.
    has_ended: AtomicBool,
    /// The instance, and the thread that runs it.
    wake: Arc<WakeInstance>,
    thread: ThreadId,
}

#[derive(Default)]
struct HeldState {
    /// How many requests were taken in all.
    taken: u64,
    requests: BTreeMap<u64, Arc<HeldRequest>>,
}

struct HeldRequest {
    sink: Arc<dyn ResponseSink>,
    has_failed: AtomicBool,
}

impl Held {
    /// Called on the thread that runs the instance.
    fn new(scheduler: &Arc<dyn Scheduler>, number: usize) -> Arc<Self> {
        let wake = Arc::new(WakeInstance { scheduler: Arc::downgrade(scheduler), number });
        let (state, has_ended) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { state, has_ended, wake, thread: thread::current().id() })
    }

    fn lock(&self) -> MutexGuard<'_, HeldState> {
        // Each change is one insertion or removal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.lock().requests.is_empty()
    }

    /// Adds a request, until it is dropped.
    fn add(self: &Arc<Self>, mut request: Request) -> Request {
        request.redirect_answers(|sink| {
            let request = Arc::new(HeldRequest { sink, has_failed: AtomicBool::new(false) });
            let mut state = self.lock();
            let number = state.taken;
            state.taken += 1;
            state.requests.insert(number, Arc::clone(&request));
            Arc::new(HeldSink { held: Arc::clone(self), number, request })
        });
        request
    }

    fn remove(&self, number: u64) {
        let request = self.lock().requests.remove(&number);
        drop(request);
        // The instance may be waiting for room.
        if thread::current().id() != self.thread {
            self.wake.wake_by_ref();
        }
    }

    /// Answers all requests. The instance may still have them, and finds them cancelled.
    fn fail(&self, error: &Error) {
        let requests: Vec<_> = self.lock().requests.values().cloned().collect();
        for request in requests {
            request.has_failed.store(true, Ordering::Release);
            request.sink.deliver(Some(Err(error.clone())), true);
        }
    }
}

/// Forwards the answers to a request. It is dropped with the request and its responder.
struct HeldSink {
    held: Arc<Held>,
    number: u64,
    request: Arc<HeldRequest>,
}

impl ResponseSink for HeldSink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        self.request.sink.deliver(answer, last);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.request.sink)
    }

    fn is_cancelled(&self) -> bool {
        self.request.has_failed.load(Ordering::Acquire) || self.request.sink.is_cancelled()
    }
}

impl Drop for HeldSink {
    fn drop(&mut self) {
        self.held.remove(self.number);
    }
}

/// The queue of a scheduler, for one instance.
struct Source {
    scheduler: Arc<dyn Scheduler>,
    number: usize,
    monitor: Arc<dyn BatchMonitor>,
    capabilities: ModelCapabilities,
    held: Arc<Held>,
    /// Whether another request may be taken, as of the last attempt.
    has_room: bool,
}

impl IntakeSource for Source {
    fn try_next(&mut self, fits: &mut dyn FnMut(&Request) -> bool) -> Next {
        let Some(pulls) = self.scheduler.pulls() else { return Next::Ended };
        loop {
            let pulled = pulls.try_next(self.number, self.held.is_empty(), fits);
            self.has_room = matches!(pulled, Pulled::Taken(_) | Pulled::Nothing);
            match pulled {
                Pulled::Taken(requests) => {
                    let requests = requests.into_iter().map(|request| self.held.add(request)).collect();
                    let mut batch = Batch::new(requests, Arc::clone(&self.monitor));
                    batch.copy_inputs_for(&self.capabilities);
                    if !batch.requests().is_empty() {
                        return Next::Request(batch);
                    }
                }
                Pulled::Full => return Next::Full,
                Pulled::Nothing => return Next::Nothing,
                Pulled::Closed => {
                    self.held.has_ended.store(true, Ordering::Relaxed);
                    return Next::Ended;
                }
            }
        }
    }

    fn wait(&mut self) {
        let Some(pulls) = self.scheduler.pulls() else { return };
        let is_idle = self.held.is_empty();
        if self.has_room || is_idle {
            pulls.wait(self.number, is_idle);
        } else {
            pulls.park(self.number);
        }
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.held.wake).into()
    }
}

/// Ends the wait of an instance. It does not keep the scheduler alive.
struct WakeInstance {
    scheduler: Weak<dyn Scheduler>,
    number: usize,
}

impl Wake for WakeInstance {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let scheduler = self.scheduler.upgrade();
        if let Some(pulls) = scheduler.as_deref().and_then(Scheduler::pulls) {
            pulls.wake(self.number);
        }
    }
}

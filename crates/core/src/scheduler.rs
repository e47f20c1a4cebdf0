//! Brings requests to a model's instances.
//!
//! Instances pull: there is no thread between whoever enqueues and the instance that executes. Where even the way to
//! the instance's thread would cost more than the execution, whoever enqueues may execute, too: see [`Claim`].

mod fifo;

use nereid_backend_api::Request;

pub(crate) use fifo::Fifo;

/// Decides which requests of a model are executed together, when, and by which of its instances.
///
/// An instance is idle, or executes what [`next`](Self::next) or [`enqueue`](Self::enqueue) gave it. Instances go by
/// numbers from 0.
pub trait Scheduler: Send + Sync {
    /// Takes a request. One that cannot be taken is answered at once.
    ///
    /// With `at_once`, the caller offers to execute: if nothing waits before the request and an instance is idle, it
    /// gets both back, and says [`finished`](Self::finished) when it has executed.
    fn enqueue(&self, request: Request, at_once: bool) -> Option<Claim>;

    /// The requests that an instance executes next on its own thread, at least one. Waits for them; `None` once the
    /// scheduler is closed and nothing is left.
    fn next(&self, instance: usize) -> Option<Vec<Request>>;

    /// The instance of a claim has executed.
    fn finished(&self, instance: usize);

    /// Takes no further request. What was taken before is still executed.
    fn close(&self);
}

/// Requests, and the idle instance that executes them on the thread of whoever has the claim.
#[derive(Debug)]
pub struct Claim {
    /// The instance's number.
    pub instance: usize,
    /// The requests, at least one.
    pub requests: Vec<Request>,
}

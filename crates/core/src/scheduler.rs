//! Brings requests to a model's instances.
//!
//! Instances pull: there is no thread between whoever enqueues and the instance that executes.

mod fifo;

use nereid_backend_api::Request;

pub(crate) use fifo::Fifo;

/// Decides which requests of a model are executed together, and when.
pub trait Scheduler: Send + Sync {
    /// Takes a request. One that cannot be taken is answered at once.
    fn enqueue(&self, request: Request);

    /// The requests an instance executes next, at least one. Waits for them; `None` once the scheduler is closed and
    /// nothing is left.
    fn next(&self) -> Option<Vec<Request>>;

    /// Takes no further request. What was taken before is still executed.
    fn close(&self);
}

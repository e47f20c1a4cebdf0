//! What executes a model's requests: the instances of a backend's model ([`Instances`]), or the graph of an ensemble
//! ([`crate::ensemble`]). Another kind, such as a remote node, is one more implementation: nothing above distinguishes
//! them, and [`ExecutorKind`] chooses.
//!
//! What holds for all of them is tested in `ensemble/tests/executors.rs`.

mod instances;
mod kind;

use std::pin::Pin;
use std::sync::Arc;

use nereid_backend_api::{CorrelationId, MemoryUsage, ReadinessReports, Request, Result};

pub(crate) use self::instances::Instances;
pub(crate) use self::kind::{ExecutorKind, dependencies};
use crate::model::Model;
use crate::table::ModelTable;
use nereid_scheduling::Ticket;

/// Executes requests that were admitted.
pub(crate) trait Executor: Send + Sync {
    /// Takes a request, and gives its place in the queue if it waits. One that cannot be taken is answered at once.
    ///
    /// # Errors
    /// The request is wrong, and was not answered.
    fn submit(&self, request: Request) -> Result<Option<Ticket>>;

    /// Takes back a request whose client has gone: if it waits, it is answered at once.
    fn cancel(&self, ticket: Ticket);

    /// How many requests wait here.
    fn pending(&self) -> usize;

    /// Takes no further request, finishes those that it has, and ends. Waits until that is done.
    fn close(&self);

    /// Asks all backends behind it whether they would answer. An error says why one would not.
    fn check_ready(&self) -> Vec<ReadyCheck>;

    /// What a backend of its own, which [`check_ready`](Self::check_ready) asks, reports.
    fn readiness(&self) -> ReadinessReports {
        ReadinessReports::Never
    }

    /// How much memory it takes, as far as that is known.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// Whether it hands requests to other models, which count and trace their parts themselves.
    fn delegates(&self) -> bool {
        false
    }

    /// The models that it hands requests to.
    fn members<'a>(&self, _models: &'a ModelTable) -> Vec<&'a Arc<Model>> {
        Vec::new()
    }

    /// Whether the members that are served now fit `model`, which this executes, as they did when it was loaded.
    ///
    /// # Errors
    /// What no longer fits.
    fn still_fits(&self, _model: &Model, _models: &ModelTable) -> Result<bool> {
        Ok(true)
    }

    /// The number of its [members](Self::members), if all of them are loaded.
    fn member_count(&self) -> usize {
        0
    }

    /// The instances, where those can be made anew while the model stays loaded.
    fn instances(&self) -> Option<&Instances> {
        None
    }

    /// Whether further requests of that sequence are welcome.
    fn goes_on(&self, _sequence: &CorrelationId) -> bool {
        false
    }

    /// Whether clients may continue a sequence here.
    fn has_sequences(&self) -> bool {
        false
    }

    /// Calls `done` once no client can continue a sequence here, perhaps at once. Only the latest callback is called.
    fn when_sequences_end(&self, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// No client can continue its sequence any more.
    fn end_sequences(&self) {}
}

/// What a backend says of its readiness. It takes seconds at most.
pub(crate) type ReadyCheck = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

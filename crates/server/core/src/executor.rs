//! Executors: what executes the requests of a version. Its own kind are the instances of a backend's model
//! ([`Instances`]); a program that assembles a server registers others, such as ensembles, as [`ExecutorFactory`]s.
//!
//! Rules for all executors are tested in `crates/server/ensemble/src/tests/executors.rs`.

mod backend;
mod factory;
mod instances;

use std::pin::Pin;
use std::sync::Arc;

use nereid_backend_api::{CorrelationId, MemoryUsage, ReadinessReports, Request, Result};

pub use self::backend::not_offered;
pub(crate) use self::backend::{BackendFactory, InstanceServices};
pub(crate) use self::factory::ExecutorKinds;
pub use self::factory::{BuildError, Executable, ExecutorFactory, Executors, VersionLoad};
pub(crate) use self::instances::Instances;
use crate::model::Model;
use crate::table::ModelTable;
use nereid_scheduling::{Adaptation, OpenSequence, Ticket, WaitingLevel};

/// Executes admitted requests.
pub trait Executor: Send + Sync {
    /// Takes a request. Returns its ticket if it waits in a queue. A request that cannot be taken is answered at once.
    ///
    /// # Errors
    /// The request is invalid, and was not answered.
    fn submit(&self, request: Request) -> Result<Option<Ticket>>;

    /// Answers a cancelled request if it still waits.
    fn cancel(&self, ticket: Ticket);

    /// Number of waiting requests.
    fn pending(&self) -> usize;

    /// The priority levels with waiting requests, the most urgent first, but not more than `most`.
    fn waiting_levels(&self, _most: usize) -> Vec<WaitingLevel> {
        Vec::new()
    }

    /// How its batches follow a latency objective, if they do.
    fn adaptation(&self) -> Option<Adaptation> {
        None
    }

    /// Refuses further requests and blocks until those taken have ended.
    fn close(&self);

    /// Checks whether the backends behind it would answer requests.
    fn check_ready(&self) -> Vec<ReadyCheck>;

    /// How its own backend reports changes of the outcome of [`check_ready`](Self::check_ready).
    fn readiness(&self) -> ReadinessReports {
        ReadinessReports::Never
    }

    /// The backend's engine, if known. See [`nereid_backend_api::Model::engine`].
    fn engine(&self) -> Option<String> {
        None
    }

    /// Memory in use, if known.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// The ids of the processes that execute its requests, apart from the server's own.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The sequences that clients may continue here, if the executor knows sequences.
    fn sequences(&self) -> Option<&dyn Sequences> {
        None
    }

    /// The models that execute its requests, if it executes them by requests to other models.
    fn composite(&self) -> Option<&dyn Composite> {
        None
    }
}

/// The sequences of an executor. The defaults fit executors whose sequences are open elsewhere.
pub trait Sequences {
    /// Whether clients may continue this sequence.
    fn continues(&self, sequence: &CorrelationId) -> bool;

    /// Whether the executor itself holds an open sequence.
    fn has_open(&self) -> bool {
        false
    }

    /// The number of open sequences that the executor itself holds, and the oldest ones of them, in order.
    fn open(&self, _most: usize) -> (usize, Vec<OpenSequence>) {
        (0, Vec::new())
    }

    /// Calls `done` once no sequence is open, possibly at once. Only the latest callback is called.
    fn when_ended(&self, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// Ends all sequences: clients can no longer continue them.
    fn end(&self) {}
}

/// An executor that executes requests by requests to other models, its members. They count and trace their parts themselves.
pub trait Composite {
    /// The members, one per use; `None` for members that are not served.
    fn members<'a>(&self, models: &'a ModelTable) -> Vec<Option<&'a Arc<Model>>>;

    /// Whether the members that are served now fit `model`, the model of this executor, as they did when it was loaded.
    ///
    /// # Errors
    /// The reasons why they do not fit at all.
    fn still_fits(&self, model: &Model, models: &ModelTable) -> Result<bool>;
}

/// A backend's readiness. It resolves within seconds.
pub type ReadyCheck = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

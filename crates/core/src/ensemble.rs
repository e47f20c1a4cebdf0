//! Ensembles: models that are graphs of other models.
//!
//! A request to an ensemble is made of requests to its members, each taken in by the member's own scheduler like any
//! other. The ensemble is a [`Scheduler`] without instances: what it is given, it runs as a [task](crate::task) that goes on
//! whenever an answer comes, on the thread that brings it. So no thread waits while members execute, and however deep
//! ensembles stand in each other, no stack grows with them.
//!
//! It knows nothing of how models come and go: members are looked up in the model table, when a request begins.

mod computed;
mod fit;
mod plan;
mod run;
mod wave;

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use nereid_backend_api::{ModelConfig, Request};
use nereid_model_config::proto::ModelEnsembling;
use nereid_model_config::proto::model_config::SchedulingChoice;
use tokio::sync::Semaphore;

pub(crate) use self::computed::Computed;
pub(crate) use self::fit::{Fitted, fit, still_fits};
use self::plan::Plan;
use crate::scheduler::{Enqueued, Item, Refusal, Scheduler, Ticket};
use crate::statistics::ModelStatistics;
use crate::table::ModelTable;
use crate::task::TaskGroup;

/// The steps of a configuration; `None` if it is no ensemble's.
pub(crate) fn steps_of(config: &ModelConfig) -> Option<&ModelEnsembling> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => Some(ensemble),
        _ => None,
    }
}

/// Brings requests to an ensemble's members, and their answers together.
pub(crate) struct EnsembleScheduler {
    shared: Arc<Shared>,
    /// The requests in progress.
    runs: Arc<TaskGroup>,
}

/// What all runs of an ensemble share.
struct Shared {
    plan: Plan,
    /// Where members are looked up. It may hold the ensemble, so it is not held.
    models: Weak<ArcSwap<ModelTable>>,
    statistics: Arc<ModelStatistics>,
    /// How many requests each step may have at a time, over all requests; none if any number.
    limits: Vec<Arc<Semaphore>>,
}

impl EnsembleScheduler {
    /// For an ensemble that fits its members; `config` is the one that [`fit()`] gave.
    pub(crate) fn new(
        config: &ModelConfig,
        models: Weak<ArcSwap<ModelTable>>,
        statistics: Arc<ModelStatistics>,
    ) -> Self {
        let plan = Plan::new(config);
        let limits = match plan.max_inflight {
            0 => Vec::new(),
            most => plan.steps.iter().map(|_| Arc::new(Semaphore::new(most))).collect(),
        };
        Self { shared: Arc::new(Shared { plan, models, statistics, limits }), runs: Arc::default() }
    }
}

impl Scheduler for EnsembleScheduler {
    fn enqueue(&self, request: Request, _at_once: bool) -> Enqueued<Request> {
        let shared = Arc::clone(&self.shared);
        match self.runs.spawn(request, |request| run::run(shared, request)) {
            Ok(number) => Enqueued::Waits(Ticket::numbered(number)),
            Err(request) => {
                request.refuse(Refusal::Closing);
                Enqueued::Refused
            }
        }
    }

    /// An ensemble has no instance that could execute anything: this waits until it is closed and nothing is in
    /// progress.
    fn next(&self, _instance: usize) -> Option<Vec<Request>> {
        self.runs.wait_until_done();
        None
    }

    fn finished(&self, _instance: usize) {}

    fn cancel(&self, ticket: Ticket) {
        // It looks whether its request is still wanted before anything else.
        self.runs.wake(ticket.number());
    }

    /// Requests wait for the members, and are counted there.
    fn pending(&self) -> usize {
        0
    }

    fn close(&self) {
        self.runs.close();
    }
}

#[cfg(test)]
mod tests;
